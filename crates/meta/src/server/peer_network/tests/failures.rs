//! Servers that leave, die, hang, or lose their lease.

use super::*;
use std::os::unix::net::UnixListener;

/// Promise: a member that leaves ends its calls at once: those that were sent with an unknown outcome, others as not
/// sent.
#[test]
fn member_that_leaves_ends_its_calls() {
    let (a, b) = pair();
    let sent = a.begin(&b, hanging(1));
    b.worker.wait_for_held(1);
    // Nobody listens there, so the call waits for a connection.
    let address = WorkerAddress { unix: Some(sockets().join("nobody").to_string_lossy().into_owned()), tcp: None };
    let absent = PeerMember { number: 3, boot_id: BOOT.into(), address };
    a.network.handle().set_members(vec![b.member(), absent]);
    let handle = a.network.handle().clone();
    let unsent = std::thread::spawn(move || block_on(handle.call(3, &fresh(2))));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!sent.is_finished() && !unsent.is_finished(), "the connection to a member that stays has ended");
    let begun = std::time::Instant::now();
    a.knows(&[]);
    let (sent, unsent) = (sent.join().unwrap(), unsent.join().unwrap());
    assert!(matches!(&sent, Err(NotAnswered::Unknown(_))), "{sent:?}");
    assert!(matches!(&unsent, Err(NotAnswered::NotSent(_))), "{unsent:?}");
    assert!(begun.elapsed() < SOON / 2);
}

/// Promise: a server ends the connection of a caller that is no member any more.
#[test]
fn caller_that_is_no_member_is_disconnected() {
    let (a, b) = pair();
    let call = a.begin(&b, hanging(1));
    b.worker.wait_for_held(1);
    b.knows(&[]);
    let ended = call.join().unwrap();
    assert!(matches!(&ended, Err(NotAnswered::Unknown(_))), "{ended:?}");
}

/// Promise: a call whose connection is lost has an unknown outcome, and is not sent to the server that comes next.
#[test]
fn call_with_lost_connection_is_not_sent_twice() {
    let setup = Setup { path: Some(sockets().join("twice")), ..Setup::new(2) };
    let (a, b) = (Node::start(1), setup.start());
    a.knows(&[&b]);
    b.knows(&[&a]);
    let call = a.begin(&b, hanging(1));
    b.worker.wait_for_held(1);
    drop(b);
    let b = setup.start();
    b.knows(&[&a]);
    let ended = call.join().unwrap();
    assert!(matches!(&ended, Err(NotAnswered::Unknown(_))), "{ended:?}");
    assert_eq!(a.call(&b, &fresh(2)).unwrap(), done(&fresh(2)), "the connection is made again");
    assert_eq!(*b.worker.ids.lock(), [2]);
}

/// Promise: a reply does not leave once the lease has ended, even if the worker answered before.
#[test]
fn no_reply_leaves_after_the_lease() {
    let (a, b) = pair();
    assert!(a.call(&b, &fresh(1)).is_ok());
    let call = a.begin(&b, hanging(2));
    b.worker.wait_for_held(1);
    b.lease.end();
    b.worker.release();
    let ended = call.join().unwrap();
    assert!(matches!(&ended, Err(NotAnswered::Unknown(why)) if why.contains("lost")), "{ended:?}");
}

/// Promise: a worker that does not answer costs its callers the deadline of their calls, and nobody else anything.
#[test]
fn silent_worker_costs_the_deadline() {
    let (a, b) = pair();
    let begun = std::time::Instant::now();
    let ended = a.call(&b, &PeerRequest { deadline: Duration::from_millis(200), ..hanging(1) });
    assert!(matches!(&ended, Err(NotAnswered::Unknown(_) | NotAnswered::Failed(_))), "{ended:?}");
    assert!((Duration::from_millis(150)..SOON / 2).contains(&begun.elapsed()));
    assert!(a.call(&b, &fresh(2)).is_ok());
}

/// Promise: a server that stands still while calls are in progress loses its connection, and no other server notices.
#[test]
fn server_that_stands_still_loses_its_connection() {
    let limits = PeerLimits { silence: Duration::from_millis(400), ..PeerLimits::default() };
    let a = Setup { limits, ..Setup::new(1) }.start();
    let (b, c) = (Node::start(2), Node::start(3));
    let (stands, stand) = std::sync::mpsc::channel::<()>();
    let mut config = Setup::new(4).config(sockets().join("still"));
    // The thread of this server hangs in the first request, as if the process was stopped.
    let stand = Mutex::new(stand);
    config.route = Box::new(move |_| {
        let _ = stand.lock().recv();
        None
    });
    let still = PeerNetwork::start(config).unwrap();
    still.handle().set_members(vec![a.member()]);
    let member = PeerMember { number: 4, boot_id: BOOT.into(), address: still.address().clone() };
    a.network.handle().set_members(vec![b.member(), c.member(), member]);
    b.knows(&[&a]);
    let begun = std::time::Instant::now();
    let handle = a.network.handle().clone();
    let call = std::thread::spawn(move || block_on(handle.call(4, &fresh(1))));
    assert!(a.call(&b, &fresh(1)).is_ok());
    let ended = call.join().unwrap();
    assert!(matches!(&ended, Err(NotAnswered::Unknown(_))), "{ended:?}");
    assert!(begun.elapsed() < SOON / 2);
    drop(stands);
}

/// Promise: a process that accepts connections and says nothing costs a call its deadline; the call was not sent.
#[test]
fn listener_that_says_nothing_costs_the_deadline() {
    let (a, path) = (Node::start(1), sockets().join("mute"));
    let _mute = UnixListener::bind(&path).unwrap();
    let address = WorkerAddress { unix: Some(path.to_string_lossy().into_owned()), tcp: None };
    a.network.handle().set_members(vec![PeerMember { number: 2, boot_id: BOOT.into(), address }]);
    let call = PeerRequest { deadline: Duration::from_millis(300), ..fresh(1) };
    let ended = block_on(a.network.handle().call(2, &call));
    assert!(matches!(&ended, Err(NotAnswered::NotSent(_))), "{ended:?}");
}
