use super::*;
use crate::transport::{CallError, FindError, Server};
use futures::future::{BoxFuture, FutureExt, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::sync::mpsc::{Receiver, channel};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Instant;
use varve_wire::{Request, Response};
use varve_world::clock::Moment;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Answers that come when a test says so.
#[derive(Default)]
struct Answers {
    awaited: AtomicUsize,
    come: AtomicUsize,
    looks: AtomicUsize,
}

impl Transport for Answers {
    fn find(&self, _: u64) -> BoxFuture<'_, Result<Arc<Server>, FindError>> {
        ready(Err(FindError::Absent("nobody is asked here".into()))).boxed()
    }

    fn call<'a>(
        &'a self,
        _: &'a Server,
        _: usize,
        _: &'a Request,
        _: Moment,
    ) -> BoxFuture<'a, Result<Response, CallError>> {
        ready(Err(CallError::Lost("nobody is asked here".into()))).boxed()
    }

    fn pause(&self, _: Duration) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn close(&self) {}

    fn awaited(&self) -> usize {
        self.awaited.load(Acquire)
    }

    fn bring_answers(&self, _: fn(Waker)) -> usize {
        self.looks.fetch_add(1, AcqRel);
        let came = self.come.swap(0, AcqRel);
        self.awaited.fetch_sub(came, AcqRel);
        came
    }
}

/// A door of two threads, and whether a request waits for them.
#[derive(Default)]
struct Two {
    attendance: Attendance,
    answers: Answers,
    request: AtomicBool,
}

impl Two {
    fn new(awaited: usize) -> Arc<Two> {
        let two = Arc::new(Two::default());
        two.answers.awaited.store(awaited, Relaxed);
        let request = Arc::downgrade(&two);
        let awaits = move |_| request.upgrade().is_some_and(|two| two.request.load(Acquire));
        two.attendance.keep(0, Box::new(awaits));
        two
    }

    /// The end of a thread's shift; it tells when it reads.
    fn ends_shift(self: &Arc<Two>) -> (JoinHandle<()>, Receiver<()>) {
        self.ends(true)
    }

    fn ends(self: &Arc<Two>, may_stand_by: bool) -> (JoinHandle<()>, Receiver<()>) {
        let (two, (tell, reads)) = (Arc::clone(self), channel());
        let thread = thread::spawn(move || {
            two.attendance.attend(&two.answers, may_stand_by);
            tell.send(()).unwrap();
        });
        (thread, reads)
    }

    /// Until somebody looks for answers, once more.
    fn is_looked_for(&self) {
        let before = self.answers.looks.load(Acquire);
        while self.answers.looks.load(Acquire) == before {
            thread::yield_now();
        }
    }
}

/// Promise: an answer that is awaited is looked for until it has come, and a thread that no answer is awaited for reads.
#[test]
fn a_thread_attends_until_all_answers_have_come() {
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

/// Promise: the attendant leaves for a request that nobody else is about to read, and soon for any other.
#[test]
fn the_attendant_reads_what_nobody_else_does() {
    let two = Two::new(1);
    let (_thread, reads) = two.ends_shift();
    two.is_looked_for();
    two.request.store(true, Release);
    reads.recv_timeout(LONG).unwrap();

    two.attendance.reading.store(1, Release);
    let (_thread, reads) = two.ends_shift();
    reads.recv_timeout(LONG).expect("whoever was to read it does not come");
}

/// Promise: there is one attendant; who finds one stands by, and reads after a while all the same.
#[test]
fn who_finds_an_attendant_stands_by() {
    let two = Two::new(1);
    let (_attendant, attends) = two.ends_shift();
    two.is_looked_for();
    let (_other, reads) = two.ends_shift();
    reads.recv_timeout(LONG).expect("nobody has called it, but requests may wait");
    assert!(attends.try_recv().is_err());
    let begun = Instant::now();
    (0..100).for_each(|_| two.ends(false).1.recv_timeout(LONG).unwrap());
    assert!(begun.elapsed() < 50 * STANDS_BY, "there is more of its request to be done");
    two.answers.come.fetch_add(1, AcqRel);
    attends.recv_timeout(LONG).unwrap();
}

/// Promise: an attendant that waits for something else is the attendant no more, and leaves the next one alone.
#[test]
fn an_attendant_that_has_to_wait_is_replaced() {
    let two = Two::new(2);
    let attendant = two.attendance.become_attendant().expect("there is none");
    assert!(attendant.attends() && two.attendance.become_attendant().is_none());
    errand::begin(
        {
            let two = Arc::clone(&two);
            async move { two.attendance.step_back() }
        },
        errand::Here::Brings,
    );
    assert!(!attendant.attends());
    let (_other, reads) = two.ends_shift();
    two.is_looked_for();
    drop(attendant);
    assert!(two.attendance.become_attendant().is_none(), "the other attends");
    two.answers.come.fetch_add(2, AcqRel);
    reads.recv_timeout(LONG).unwrap();
}

/// Promise: whoever is about to wait calls one of those who stand by.
#[test]
fn one_of_those_who_stand_by_is_called() {
    let two = Two::new(1);
    let _attendant = two.attendance.become_attendant().expect("there is none");
    let is_called = || {
        let theirs = Arc::clone(&two);
        let stands_by = thread::spawn(move || theirs.attendance.stand_by());
        while !stands_by.is_finished() {
            thread::scope(|scope| scope.spawn(|| two.attendance.step_back()).join().unwrap());
        }
        stands_by.join().unwrap()
    };
    assert!((0..100).any(|_| is_called()), "called before it gave up");
}
