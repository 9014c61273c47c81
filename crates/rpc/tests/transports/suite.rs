//! The promises of every transport.

use crate::fixture::{Ask, SOON, Server, Transport, deadline, pause};
use futures::future::{FutureExt, join, join_all};
use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;
use std::time::{Duration, Instant};
use varve_rpc::{BODY_BYTES_MAX, CallError, Cause, Limits, NotBegun, Peer};

const LIMITS: Limits =
    Limits { in_flight: 256, waiting: 4096, queued_bytes: 4 << 20, silence: Duration::from_secs(60) };

/// Calls that are made together are answered each by its own reply, in the order in which they are done.
pub fn replies_come_in_any_order(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let order = RefCell::new(Vec::new());
    let until = deadline(event_loop.handle(), SOON);
    let calls = [Ask::Later(1, 300), Ask::Echo(2), Ask::Echo(3), Ask::Echo(4)].map(|ask| {
        let call = connection.call(ask.bytes(), until);
        call.map(|reply| order.borrow_mut().push(reply.unwrap()[0]))
    });
    event_loop.block_on(join_all(calls));
    assert_eq!(*order.borrow(), [2, 3, 4, 1]);
}

/// Calls one after the other, of all lengths.
pub fn messages_of_all_lengths_pass(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let until = deadline(event_loop.handle(), SOON);
    event_loop.block_on(async {
        for round in 0..300_u32 {
            let reply = connection.call(Ask::Echo(round as u8).bytes(), until).await.unwrap();
            assert_eq!(reply[..], [round as u8]);
        }
        for length in [0, 1, 16_000, 16_384, 70_000, BODY_BYTES_MAX as u32] {
            let mut request = Ask::Long(length).bytes().to_vec();
            request.resize(request.len().max(length as usize), 1);
            let reply = connection.call(request.into(), until).await.unwrap();
            assert!(reply.len() == length as usize && reply.iter().all(|byte| *byte == 7));
        }
    });
}

/// A call ends at its deadline, the server learns of it, and the connection goes on.
pub fn deadline_ends_a_call(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    event_loop.block_on(async {
        let begun = Instant::now();
        let handle = event_loop.handle();
        let ended = connection.call(Ask::Hang.bytes(), deadline(handle, Duration::from_millis(50))).await;
        assert_eq!(ended, Err(CallError::Unknown(Cause::Deadline)));
        assert!(begun.elapsed() >= Duration::from_millis(50) && begun.elapsed() < SOON);
        server.counters.reach(handle, |counters| &counters.cancelled, 1).await;
        let late = connection.call(Ask::Echo(1).bytes(), handle.now()).await;
        assert_eq!(late, Err(CallError::NotSent(Cause::Deadline)), "it was late from the beginning");
        assert_eq!(connection.call(Ask::Echo(2).bytes(), deadline(handle, SOON)).await.unwrap()[..], [2]);
    });
}

/// A call whose caller is gone is cancelled, and its reply goes nowhere.
pub fn dropped_call_is_cancelled(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    event_loop.block_on(async {
        let handle = event_loop.handle();
        let until = deadline(handle, SOON);
        let call = connection.call(Ask::Hang.bytes(), until);
        let begun = server.counters.reach(handle, |counters| &counters.begun, 1);
        futures::future::select(call, std::pin::pin!(begun)).await;
        server.counters.reach(handle, |counters| &counters.cancelled, 1).await;
        assert_eq!(connection.call(Ask::Echo(2).bytes(), until).await.unwrap()[..], [2]);
        while connection.in_flight() > 0 {
            assert!(handle.now() < until);
            pause(handle, 1).await;
        }
    });
}

/// A request above the limit is refused where it is made.
pub fn long_request_is_refused(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let until = deadline(event_loop.handle(), SOON);
    let refused = event_loop.block_on(connection.call(vec![0; BODY_BYTES_MAX + 1].into(), until));
    assert_eq!(refused, Err(CallError::NotSent(Cause::TooLong(BODY_BYTES_MAX + 1))));
    assert_eq!(event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until)).unwrap()[..], [1]);
}

/// A server that dies ends all calls at once, each with an unknown outcome.
pub fn broken_connection_ends_all_calls(transport: Transport) {
    let (mut server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let until = deadline(event_loop.handle(), 10 * SOON);
    let begun = Instant::now();
    let calls = join_all((0..50).map(|_| connection.call(Ask::Hang.bytes(), until)));
    let killed = async {
        let counters = std::sync::Arc::clone(&server.counters);
        counters.reach(event_loop.handle(), |counters| &counters.begun, 50).await;
        server.kill();
    };
    let (ended, ()) = event_loop.block_on(join(calls, killed));
    assert!(ended.iter().all(|call| matches!(call, Err(CallError::Unknown(Cause::Lost(_))))), "{:?}", ended[0]);
    assert!(connection.is_lost() && begun.elapsed() < SOON);
    let after = event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until));
    assert!(matches!(after, Err(CallError::NotSent(Cause::Lost(_)))), "{after:?}");
}

/// A server that is there and does nothing is given up; one that works for long is not.
pub fn silent_server_is_given_up(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let limits = Limits { silence: Duration::from_millis(400), ..LIMITS };
    let connection = server.connect(&event_loop, limits);
    let until = deadline(event_loop.handle(), 10 * SOON);
    let long = event_loop.block_on(connection.call(Ask::Later(1, 1000).bytes(), until));
    assert_eq!(long.unwrap()[..], [1]);
    let begun = Instant::now();
    let stuck = event_loop.block_on(connection.call(Ask::Block(3000).bytes(), until));
    assert!(matches!(stuck, Err(CallError::Unknown(Cause::Lost(_)))), "{stuck:?}");
    assert!(begun.elapsed() < Duration::from_millis(2500), "{:?}", begun.elapsed());
}

/// More calls than the limits allow wait for their turn until their deadline, and beyond a limit they do not wait.
pub fn full_connection_makes_callers_wait(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let limits = Limits { in_flight: 2, waiting: 3, ..LIMITS };
    let connection = server.connect(&event_loop, limits);
    let handle = event_loop.handle();
    event_loop.block_on(async {
        let until = deadline(handle, SOON);
        let mut hanging = join_all((0..2).map(|_| connection.call(Ask::Hang.bytes(), until)));
        assert!((&mut hanging).now_or_never().is_none());
        let soon = deadline(handle, Duration::from_millis(50));
        let waiting = join_all((0..4).map(|_| connection.call(Ask::Echo(1).bytes(), soon))).await;
        let not_sent = |cause| Err(CallError::NotSent(cause));
        assert_eq!(waiting[..3], [Cause::Deadline, Cause::Deadline, Cause::Deadline].map(not_sent));
        assert_eq!(waiting[3], not_sent(Cause::Overload(3)));
        let next = connection.call(Ask::Echo(7).bytes(), until);
        let freed = async {
            pause(handle, 20).await;
            drop(hanging);
        };
        assert_eq!(join(next, freed).await.0.unwrap()[..], [7]);
    });
    assert!(server.counters.running_most.load(SeqCst) <= 3);
}

async fn one_turn() {
    let mut turned = false;
    poll_fn(|context| {
        if std::mem::replace(&mut turned, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A server neither begins more calls of a connection than its limit nor keeps the replies of a client that reads
/// slowly.
pub fn slow_reader_slows_its_server(transport: Transport) {
    let limits = Limits { in_flight: 16, queued_bytes: 1 << 20, ..LIMITS };
    let (server, event_loop) = (Server::start(transport, limits), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let until = deadline(event_loop.handle(), SOON);
    let mut calls = join_all((0..200).map(|_| connection.call(Ask::Long(1 << 20).bytes(), until)));
    event_loop.block_on(async {
        // The loop sends the requests, and stops. Nobody reads what comes back.
        assert!((&mut calls).now_or_never().is_none());
        one_turn().await;
    });
    std::thread::sleep(Duration::from_millis(300));
    let begun = server.counters.begun.load(SeqCst);
    assert!(begun <= 40, "{begun} of 200 replies of 1 MiB were made");
    let replies = event_loop.block_on(calls);
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().len() == 1 << 20));
    assert_eq!(server.counters.begun.load(SeqCst), 200);
}

/// A client of a higher limit than its server's waits, and all its calls are answered.
pub fn server_limits_calls_in_flight(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, Limits { in_flight: 8, ..LIMITS }), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let until = deadline(event_loop.handle(), SOON);
    let calls = (0..100).map(|byte| connection.call(Ask::Later(byte, 5).bytes(), until));
    let replies = event_loop.block_on(join_all(calls));
    assert!(replies.into_iter().enumerate().all(|(byte, reply)| reply.unwrap()[..] == [byte as u8]));
    assert!(server.counters.running_most.load(SeqCst) <= 9);
}

/// A server without memory serves one call of a connection at a time, and all of them.
pub fn server_without_memory_takes_one_call(transport: Transport) {
    let (server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    server.counters.full.store(true, SeqCst);
    let connection = server.connect(&event_loop, LIMITS);
    let until = deadline(event_loop.handle(), SOON);
    let calls = (0..20).map(|byte| connection.call(Ask::Later(byte, 2).bytes(), until));
    let replies = event_loop.block_on(join_all(calls));
    assert!(replies.into_iter().enumerate().all(|(byte, reply)| reply.unwrap()[..] == [byte as u8]));
    assert_eq!(server.counters.running_most.load(SeqCst), 1);
}

/// A thousand calls are in flight on one connection at a time.
pub fn thousand_calls_are_in_flight(transport: Transport) {
    let limits = Limits { in_flight: 1000, ..LIMITS };
    let (server, event_loop) = (Server::start(transport, limits), transport.new_loop());
    let connection = server.connect(&event_loop, limits);
    let until = deadline(event_loop.handle(), SOON);
    let calls = join_all((0..1000_u32).map(|n| connection.call(Ask::Later(n as u8, 300).bytes(), until)));
    let replies = event_loop.block_on(calls);
    assert!(replies.into_iter().enumerate().all(|(n, reply)| reply.unwrap()[..] == [n as u8]));
    assert!(server.counters.running_most.load(SeqCst) > 900);
}

/// A peer whose server was restarted is found again, by the calls that wait for it.
pub fn restarted_server_is_found(transport: Transport) {
    if transport == Transport::InProcess {
        // It ends with the process that calls it.
        return;
    }
    let (mut server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let handle = event_loop.handle();
    let peer = Peer::new(handle, server.dial(&event_loop, LIMITS));
    let call = |wait| peer.call(Ask::Echo(1).bytes(), deadline(handle, wait));
    assert_eq!(event_loop.block_on(call(SOON)).unwrap()[..], [1]);
    assert!(peer.is_up());
    server.kill();
    let gone = event_loop.block_on(call(Duration::from_millis(200)));
    let expected = |ended: &CallError| {
        matches!(ended, CallError::NotSent(Cause::Unreachable(_)) | CallError::Unknown(Cause::Lost(_)))
    };
    assert!(gone.as_ref().is_err_and(expected), "{gone:?}");
    server.restart(LIMITS);
    assert_eq!(event_loop.block_on(call(SOON)).unwrap()[..], [1]);
}

/// A server that stops answers what it has begun and begins nothing more.
pub fn stopping_server_answers_its_calls(transport: Transport) {
    let (mut server, event_loop) = (Server::start(transport, LIMITS), transport.new_loop());
    let connection = server.connect(&event_loop, LIMITS);
    let handle = event_loop.handle();
    let until = deadline(handle, SOON);
    event_loop.block_on(async {
        let running = connection.call(Ask::Later(1, 300).bytes(), until);
        let stopped = async {
            server.counters.reach(handle, |counters| &counters.begun, 1).await;
            server.begin_stop();
            pause(handle, 50).await;
            connection.call(Ask::Echo(2).bytes(), until).await
        };
        let (answered, late) = join(running, stopped).await;
        assert_eq!(answered.unwrap()[..], [1]);
        assert_eq!(late, Err(CallError::NotBegun(NotBegun::Stopping)));
    });
}
