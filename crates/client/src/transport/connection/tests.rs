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
    let connection = ServerConnection {
        stream: SocketStream::Unix(near),
        shm_slot,
        input: Vec::new(),
        output: Vec::new(),
        spin_budget: SpinBudget::default(),
        spin: None,
        spins: 0,
        wait: WAIT_SLICE,
        message_bytes_max: frame::FRAME_BYTES_MAX,
    };
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
    let mut answer = Vec::new();
    frame::encode(&"so it is", &mut answer).unwrap();
    let twice = [&answer[..], &answer[..]].concat();
    for len in 0..=twice.len() {
        let (mut connection, asked, _far) = connected();
        connection.send_and_go(&"is it so?").unwrap();
        is_asked(&asked);
        assert!(connection.receive_at_hand::<String>().unwrap().is_none(), "nothing has come");
        assert!(asked.answer(&twice[..len]));
        check(len.cmp(&answer.len()), connection.receive_at_hand().map(Option::unwrap));

        connection.send(&"is it so?", SPIN_TIME).unwrap();
        is_asked(&asked);
        assert!(asked.answer(&twice[..len]));
        let received = connection.receive(|| panic!("it waits for more"), || panic!("it sleeps"));
        check(len.cmp(&answer.len()), received.map(Option::unwrap));
    }
}

fn check(len: std::cmp::Ordering, received: io::Result<String>) {
    match len {
        std::cmp::Ordering::Less => assert!(received.unwrap_err().to_string().contains("incomplete message")),
        std::cmp::Ordering::Equal => assert_eq!(received.unwrap(), "so it is"),
        std::cmp::Ordering::Greater => assert!(received.unwrap_err().to_string().contains("more replies than")),
    }
}
