//! Several servers at once.

use crate::fixture::{Ask, SOON, Server, Transport, deadline};
use futures::future::{FutureExt, LocalBoxFuture, join_all};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use varve_rpc::{CallError, Cause, Connection, Dial, DialError, EventLoop, Limits, Peer, Peers};

fn echo(peer: &Peer, byte: u8, event_loop: &EventLoop, wait: Duration) -> impl Future<Output = bool> + use<> {
    let until = deadline(event_loop.handle(), wait);
    let peer = peer.clone();
    async move { peer.call(Ask::Echo(byte).bytes(), until).await.is_ok_and(|reply| reply[..] == [byte]) }
}

/// Promise: the loss of one server is nothing to the others, over whatever transport, and it is found again.
#[test]
fn servers_are_lost_and_found_on_their_own() {
    let event_loop = Transport::SharedMemory.new_loop();
    let transports = [Transport::Unix, Transport::SharedMemory, Transport::Tcp, Transport::InProcess];
    let mut servers = transports.map(|transport| Server::start(transport, Limits::default()));
    let peers = Peers::new(event_loop.handle());
    for (number, server) in servers.iter().enumerate() {
        peers.insert(number, server.dial(&event_loop, Limits::default()));
    }
    let all = |wait| {
        let calls: Vec<_> = (0..4).map(|n| echo(&peers.get(&n).unwrap(), n as u8, &event_loop, wait)).collect();
        event_loop.block_on(join_all(calls))
    };
    assert_eq!(all(SOON), [true; 4]);
    servers[1].kill();
    servers[2].kill();
    let begun = Instant::now();
    assert_eq!(all(Duration::from_millis(300)), [true, false, false, true]);
    assert!(begun.elapsed() < Duration::from_secs(5));
    servers[2].restart(Limits::default());
    servers[1].restart(Limits::default());
    assert_eq!(all(SOON), [true; 4]);
    peers.remove(&0);
    assert!(peers.get(&0).is_none());
}

fn counted(event_loop: &EventLoop, dialled: &Rc<Cell<u32>>, error: DialError) -> Peer {
    let dialled = Rc::clone(dialled);
    let dial: Rc<dyn Dial> = Rc::new(move || -> LocalBoxFuture<'static, Result<Connection, DialError>> {
        dialled.set(dialled.get() + 1);
        futures::future::ready(Err(error.clone())).boxed_local()
    });
    Peer::new(event_loop.handle(), dial)
}

/// Promise: an absent server is tried again and again, less and less often, and its callers learn why they waited.
#[test]
fn absent_server_is_tried_with_pauses() {
    let (event_loop, dialled) = (Transport::Unix.new_loop(), Rc::default());
    let peer = counted(&event_loop, &dialled, DialError::Unreachable("nobody listens".into()));
    let until = deadline(event_loop.handle(), Duration::from_millis(700));
    let calls = join_all((0..50).map(|_| peer.call(Ask::Echo(1).bytes(), until)));
    let ended = event_loop.block_on(calls);
    let expected = Err(CallError::NotSent(Cause::Unreachable("nobody listens".into())));
    assert!(ended.iter().all(|call| *call == expected), "{:?}", ended[0]);
    assert!((4..12).contains(&dialled.get()), "{} tries in 0.7 s", dialled.get());
}

/// Promise: a server that refuses the client ends its calls at once.
#[test]
fn refusal_ends_calls_at_once() {
    let (event_loop, dialled) = (Transport::Unix.new_loop(), Rc::default());
    let peer = counted(&event_loop, &dialled, DialError::Refused("not you".into()));
    let until = deadline(event_loop.handle(), SOON);
    let calls = join_all((0..50).map(|_| peer.call(Ask::Echo(1).bytes(), until)));
    let begun = Instant::now();
    let ended = event_loop.block_on(calls);
    assert!(ended.iter().all(|call| *call == Err(CallError::NotSent(Cause::Refused("not you".into())))));
    assert!(dialled.get() < 5 && begun.elapsed() < SOON / 2);
}

/// Promise: a server that accepts and closes at once is not asked more often than one that is absent.
#[test]
fn short_lived_connections_count_as_failures() {
    let (event_loop, dialled) = (Transport::Unix.new_loop(), Rc::new(Cell::new(0)));
    let (count, handle) = (Rc::clone(&dialled), event_loop.handle().clone());
    let dial: Rc<dyn Dial> = Rc::new(move || -> LocalBoxFuture<'static, Result<Connection, DialError>> {
        count.set(count.get() + 1);
        let (near, far) = varve_rpc::InProcessLink::pair();
        drop(far);
        futures::future::ready(Ok(Connection::new(&handle, near, Limits::default()))).boxed_local()
    });
    let peer = Peer::new(event_loop.handle(), dial);
    let until = deadline(event_loop.handle(), Duration::from_millis(500));
    let ended = event_loop.block_on(async {
        loop {
            match peer.call(Ask::Echo(1).bytes(), until).await {
                Err(CallError::Unknown(_)) => {}
                ended => return ended,
            }
        }
    });
    assert!(matches!(ended, Err(CallError::NotSent(_))), "{ended:?}");
    assert!(dialled.get() < 15, "{} connections in half a second", dialled.get());
}

/// Promise: a server that is closed ends its calls at once, and those that were sent have an unknown outcome.
#[test]
fn closed_peer_ends_its_calls() {
    let event_loop = Transport::Unix.new_loop();
    let server = Server::start(Transport::Unix, Limits::default());
    let up = Peer::new(event_loop.handle(), server.dial(&event_loop, Limits::default()));
    let absent = counted(&event_loop, &Rc::default(), DialError::Unreachable("nobody listens".into()));
    let until = deadline(event_loop.handle(), SOON);
    let begun = Instant::now();
    let calls = futures::future::join(up.call(Ask::Hang.bytes(), until), absent.call(Ask::Echo(1).bytes(), until));
    let closing = async {
        server.counters.reach(event_loop.handle(), |counters| &counters.begun, 1).await;
        up.close();
        absent.close();
    };
    let ((sent, unsent), ()) = event_loop.block_on(futures::future::join(calls, closing));
    assert!(matches!(sent, Err(CallError::Unknown(Cause::Lost(_)))), "{sent:?}");
    assert!(matches!(unsent, Err(CallError::NotSent(Cause::Lost(_)))), "{unsent:?}");
    let later = event_loop.block_on(up.call(Ask::Echo(1).bytes(), until));
    assert!(matches!(later, Err(CallError::NotSent(Cause::Lost(_)))), "{later:?}");
    assert!(begun.elapsed() < SOON / 2);
}

/// Promise: no reply leaves a server that may not reply any more, over whatever transport, even one that is ready.
#[test]
fn server_that_may_not_reply_ends_the_connection() {
    for transport in [Transport::Unix, Transport::SharedMemory, Transport::Tcp, Transport::InProcess] {
        let event_loop = transport.new_loop();
        let server = Server::start(transport, Limits::default());
        let connection = server.connect(&event_loop, Limits::default());
        let until = deadline(event_loop.handle(), SOON);
        assert!(event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until)).is_ok());
        server.counters.mute.store(true, SeqCst);
        let ended = event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until));
        assert!(matches!(ended, Err(CallError::Unknown(Cause::Lost(_)))), "{transport:?}: {ended:?}");
    }
}
