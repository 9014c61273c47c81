use super::*;
use crate::transport::{CallError, FindError, ServerWelcome};
use futures::future::{BoxFuture, FutureExt, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::sync::mpsc::{Receiver, channel};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Instant as StdInstant;
use varve_env::clock::Instant;
use varve_proto::{Request, Response};
use varve_types::{MapServer, ShardMap, WorkerPlace};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Answers that come when a test says so.
#[derive(Default)]
struct Answers {
    awaited: AtomicUsize,
    come: AtomicUsize,
    spins: AtomicUsize,
}

impl Transport for Answers {
    fn find(&self) -> BoxFuture<'_, Result<ServerWelcome, FindError>> {
        ready(Err(FindError::Absent("nobody is asked here".into()))).boxed()
    }

    fn greet<'a>(&'a self, _: &'a MapServer) -> BoxFuture<'a, Result<ServerWelcome, FindError>> {
        self.find()
    }

    fn follow(&self, _: &ShardMap) {}

    fn lose(&self, _: u64) {}

    fn call<'a>(&'a self, to: WorkerPlace, _: &'a Request, _: Instant) -> BoxFuture<'a, Result<Response, CallError>> {
        ready(Err(CallError::Lost { server: to.server, why: "nobody is asked here".into() })).boxed()
    }

    fn pause(&self, _: Duration) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn close(&self) {}

    fn awaited(&self) -> usize {
        self.awaited.load(Acquire)
    }

    fn bring_answers(&self, _: fn(Waker)) -> usize {
        self.spins.fetch_add(1, AcqRel);
        let came = self.come.swap(0, AcqRel);
        self.awaited.fetch_sub(came, AcqRel);
        came
    }
}

/// A frontend of two threads, and whether a request waits for them.
#[derive(Default)]
struct Two {
    reactor: Reactor,
    answers: Answers,
    request: AtomicBool,
}

impl Two {
    fn new(awaited: usize) -> Arc<Two> {
        let two = Arc::new(Two::default());
        two.answers.awaited.store(awaited, Relaxed);
        let request = Arc::downgrade(&two);
        let awaits = move |_| request.upgrade().is_some_and(|two| two.request.load(Acquire));
        two.reactor.keep(0, Box::new(awaits));
        two
    }

    /// The end of a thread's shift; it tells when it reads.
    fn ends_shift(self: &Arc<Two>) -> (JoinHandle<()>, Receiver<()>) {
        self.ends(true)
    }

    fn ends(self: &Arc<Two>, may_wait_for_turn: bool) -> (JoinHandle<()>, Receiver<()>) {
        let (two, (tell, reads)) = (Arc::clone(self), channel());
        let thread = thread::spawn(move || {
            two.reactor.run_reactor(&two.answers, may_wait_for_turn);
            tell.send(()).unwrap();
        });
        (thread, reads)
    }

    /// Until somebody looks for answers, once more.
    fn is_looked_for(&self) {
        let before = self.answers.spins.load(Acquire);
        while self.answers.spins.load(Acquire) == before {
            thread::yield_now();
        }
    }
}

/// Promise: an answer that is awaited is looked for until it has come, and a thread that no answer is awaited for reads.
#[test]
fn reactor_thread_polls_until_all_replies_arrive() {
    let two = Two::new(2);
    let (_thread, reads) = two.ends_shift();
    two.is_looked_for();
    two.answers.come.fetch_add(1, AcqRel);
    two.is_looked_for();
    assert!(reads.try_recv().is_err(), "one more is awaited");
    two.answers.come.fetch_add(1, AcqRel);
    reads.recv_timeout(LONG).unwrap();
    let (_thread, reads) = two.ends_shift();
    reads.recv_timeout(LONG).unwrap();
}

/// Promise: the reactor thread leaves for a request that nobody else is about to read, and soon for any other.
#[test]
fn reactor_thread_reads_unread_requests() {
    let two = Two::new(1);
    let (_thread, reads) = two.ends_shift();
    two.is_looked_for();
    two.request.store(true, Release);
    reads.recv_timeout(LONG).unwrap();

    two.reactor.reading.store(1, Release);
    let (_thread, reads) = two.ends_shift();
    reads.recv_timeout(LONG).expect("whoever was to read it does not come");
}

/// Promise: there is one reactor thread; who finds one stands by, and reads after a while all the same.
#[test]
fn second_thread_waits_for_its_turn() {
    let two = Two::new(1);
    let (_reactor_thread, is_active) = two.ends_shift();
    two.is_looked_for();
    let (_other, reads) = two.ends_shift();
    reads.recv_timeout(LONG).expect("nobody has called it, but requests may wait");
    assert!(is_active.try_recv().is_err());
    let begun = StdInstant::now();
    (0..100).for_each(|_| two.ends(false).1.recv_timeout(LONG).unwrap());
    assert!(begun.elapsed() < 50 * TURN_WAIT_MAX, "there is more of its request to be done");
    two.answers.come.fetch_add(1, AcqRel);
    is_active.recv_timeout(LONG).unwrap();
}

/// Promise: a reactor thread that waits for something else is the reactor thread no more, and leaves the next one
/// alone.
#[test]
fn blocking_reactor_thread_is_replaced() {
    let two = Two::new(2);
    let reactor_thread = two.reactor.become_reactor_thread().expect("there is none");
    assert!(reactor_thread.is_active() && two.reactor.become_reactor_thread().is_none());
    async_ops::begin(
        {
            let two = Arc::clone(&two);
            async move { two.reactor.hand_off_reactor() }
        },
        async_ops::Here::Brings,
    );
    assert!(!reactor_thread.is_active());
    let (_other, reads) = two.ends_shift();
    two.is_looked_for();
    drop(reactor_thread);
    assert!(two.reactor.become_reactor_thread().is_none(), "the other attends");
    two.answers.come.fetch_add(2, AcqRel);
    reads.recv_timeout(LONG).unwrap();
}

/// Promise: whoever is about to wait calls one of those who stand by.
#[test]
fn one_waiting_thread_is_woken() {
    let two = Two::new(1);
    let _reactor_thread = two.reactor.become_reactor_thread().expect("there is none");
    let is_called = || {
        let theirs = Arc::clone(&two);
        let stands_by = thread::spawn(move || theirs.reactor.wait_for_turn());
        while !stands_by.is_finished() {
            thread::scope(|scope| scope.spawn(|| two.reactor.hand_off_reactor()).join().unwrap());
        }
        stands_by.join().unwrap()
    };
    assert!((0..100).any(|_| is_called()), "called before it gave up");
}
