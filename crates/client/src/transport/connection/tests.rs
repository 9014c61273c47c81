use super::*;
use std::mem::MaybeUninit;
use varve_env::shm_slot::ServerSide;
use varve_env::spin::SPIN_TIME;

/// A connection whose server is this test.
fn connected() -> (ServerConnection, ServerSide, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let (asked, shared) = ServerSide::make().unwrap();
    let shm_slot = Some(ClientSide::open(&shared).unwrap());
    asked.spin();
    let connection =
        ServerConnection { shm_slot, wait: WAIT_SLICE, open: true, ..ServerConnection::on(SocketStream::Unix(near)) };
    (connection, asked, far)
}

fn is_asked(asked: &ServerSide) {
    let mut request = [MaybeUninit::uninit(); 64];
    assert!(asked.take(&mut request) > 0, "the request came by the socket");
}

/// Promise: if a reply in shared memory is no complete message, or more than one, the caller gets an error at once,
/// because nothing more will arrive; both with polling and with a waiting caller.
#[test]
fn reply_in_shared_memory_is_one_message() {
    let answer = |call| {
        let (mut answer, body) = (Vec::new(), frame::body_of(&"so it is").unwrap().into());
        Message::Reply { call, body }.encode(&mut answer);
        answer
    };
    let [first, second] = [answer(1), answer(2)];
    for len in 0..=2 * first.len() {
        let (mut connection, asked, _far) = connected();
        connection.send_and_go(&"is it so?", WAIT_SLICE).unwrap();
        is_asked(&asked);
        assert!(connection.receive_at_hand::<String>().unwrap().is_none(), "nothing has come");
        assert!(asked.answer(&[&first[..], &first].concat()[..len]));
        check(len.cmp(&first.len()), connection.receive_at_hand().map(Option::unwrap));

        let (mut connection, asked, _far) = match len.cmp(&first.len()) {
            std::cmp::Ordering::Equal => (connection, asked, _far),
            _ => connected(),
        };
        connection.send(&"is it so?", WAIT_SLICE, SPIN_TIME).unwrap();
        is_asked(&asked);
        let last = if connection.calls == 1 { &first } else { &second };
        assert!(asked.answer(&[&last[..], last].concat()[..len]));
        let received = connection.receive(|| panic!("it waits for more"), || panic!("it sleeps"));
        check(len.cmp(&first.len()), received.map(Option::unwrap));
    }
}

fn check(len: std::cmp::Ordering, received: io::Result<String>) {
    match len {
        std::cmp::Ordering::Less => assert!(received.unwrap_err().to_string().contains("incomplete message")),
        std::cmp::Ordering::Equal => assert_eq!(received.unwrap(), "so it is"),
        std::cmp::Ordering::Greater => assert!(received.unwrap_err().to_string().contains("more replies than")),
    }
}
