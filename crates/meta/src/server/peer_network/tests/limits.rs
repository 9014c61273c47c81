//! Limits of calls, and peers that use them up.

use super::*;
use std::os::unix::net::UnixStream;

/// Promise: at the limit of calls the next one is refused at once, and one that ends something is still sent.
#[test]
fn calls_above_the_limit_are_refused() {
    let limits = PeerLimits { calls: 4, ending_calls: 1, ..PeerLimits::default() };
    let (a, b) = (Setup { limits, ..Setup::new(1) }.start(), Setup { limits, ..Setup::new(2) }.start());
    a.knows(&[&b]);
    b.knows(&[&a]);
    let calls: Vec<_> = (1..=4).map(|id| a.begin(&b, hanging(id))).collect();
    b.worker.wait_for_held(4);
    let refused = a.call(&b, &fresh(5));
    assert!(matches!(&refused, Err(NotAnswered::Overload(_))), "{refused:?}");
    let transaction = varve_schema::TransactionId { coordinator: ShardId(1), epoch: Epoch(1), counter: 1 };
    let ending = a.call(&b, &request(6, PeerCall::Resolve { transaction, commit: true }));
    assert!(matches!(&ending, Err(NotAnswered::Failed(_))), "the worker had it: {ending:?}");
    b.worker.release();
    assert!(calls.into_iter().all(|call| call.join().unwrap().is_ok()));
    assert!(a.call(&b, &fresh(7)).is_ok());
}

/// Promise: requests above the limit of bytes are refused at once; one alone is sent, whatever its length.
#[test]
fn bytes_above_the_limit_are_refused() {
    let limits = PeerLimits { bytes: 1000, ..PeerLimits::default() };
    let (a, b) = (Setup { limits, ..Setup::new(1) }.start(), Node::start(2));
    a.knows(&[&b]);
    b.knows(&[&a]);
    let keys = vec![varve_schema::Key::Directory(InodeId(1)); 200];
    let long = request(1, PeerCall::Fetch(keys));
    assert!(matches!(a.call(&b, &long), Err(NotAnswered::Failed(_))), "the worker had it");
    let call = a.begin(&b, hanging(2));
    b.worker.wait_for_held(1);
    let refused = a.call(&b, &PeerRequest { id: 3, ..long });
    assert!(matches!(&refused, Err(NotAnswered::Overload(_))), "{refused:?}");
    b.worker.release();
    assert!(call.join().unwrap().is_ok());
}

/// Promise: a call that finds no room in its worker's inbox by its deadline was not carried out, and its caller learns it
/// or counts it as unknown.
#[test]
fn full_inbox_keeps_calls_out() {
    let (inbox, mut messages) = mpsc::channel(1);
    let mut config = Setup::new(2).config(sockets().join("full"));
    config.route = Box::new(move |_| Some(inbox.clone()));
    let full = PeerNetwork::start(config).unwrap();
    let a = Node::start(1);
    full.handle().set_members(vec![a.member()]);
    let member = PeerMember { number: 2, boot_id: BOOT.into(), address: full.address().clone() };
    a.network.handle().set_members(vec![member]);
    let handle = a.network.handle();
    let requests = [1, 2, 3].map(|id| PeerRequest { deadline: Duration::from_millis(300), ..fresh(id) });
    let ended = block_on(join_all(requests.iter().map(|request| handle.call(2, request))));
    for ended in ended {
        let kept = match &ended {
            Ok(response) => response.reply == PeerReply::Busy,
            Err(error) => matches!(error, NotAnswered::Unknown(_) | NotAnswered::Failed(_)),
        };
        assert!(kept, "{ended:?}");
    }
    assert!(messages.try_recv().is_ok(), "one had room");
    assert!(messages.try_recv().is_err(), "a call comes after its deadline");
}

/// Promise: peers that connect and say nothing do not keep a server out.
#[test]
fn silent_connections_keep_no_server_out() {
    let b = Node::start(2);
    let path = b.network.address().unix.clone().unwrap();
    let _silent: Vec<_> = (0..300).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let a = Node::start(1);
    a.knows(&[&b]);
    b.knows(&[&a]);
    let begun = std::time::Instant::now();
    assert!(a.call(&b, &fresh(1)).is_ok());
    assert!(begun.elapsed() < Duration::from_secs(8), "before the deadline of the others' handshakes");
}
