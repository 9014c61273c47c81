use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

/// Far longer than any thread here takes.
const LONG: Duration = Duration::from_secs(60);

fn begin(work: impl Future<Output = ()> + Send + 'static) {
    super::begin(work, Here::Leaves);
}

/// An answer that a test brings when it likes.
#[derive(Default)]
struct Answer(Mutex<(bool, Option<Waker>)>);

impl Answer {
    fn come(&self) -> Option<Waker> {
        let mut state = self.0.lock();
        state.0 = true;
        state.1.take()
    }

    async fn wait(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.0.lock();
            state.1 = Some(context.waker().clone());
            if state.0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// An asynchronous operation that waits for the answer, goes to a thread of its own if `leaves`, and tells where it
/// ended.
fn async_op(answer: &Arc<Answer>, leaves: bool, ended: Sender<ThreadId>) {
    let answer = Arc::clone(answer);
    begin(async move {
        answer.wait().await;
        if leaves {
            let waits = async { super::leaves() };
            assert!(!waiting(waits).await, "what waits is no asynchronous operation");
            assert!(super::leaves());
        }
        ended.send(std::thread::current().id()).unwrap();
    });
}

fn bring_on_a_thread(answer: &Answer) -> ThreadId {
    let waker = answer.come().expect("the asynchronous operation waits");
    let bringer = std::thread::spawn(move || {
        bring(waker);
        assert_eq!(HERE.get(), Here::Waits, "what it is while it brings is over");
    });
    let id = bringer.thread().id();
    bringer.join().unwrap();
    id
}

fn next(ended: &Receiver<ThreadId>) -> ThreadId {
    ended.recv_timeout(LONG).expect("the asynchronous operation ends")
}

/// Promise: an asynchronous operation goes on at the thread that brings its answer, and is over when that thread goes
/// on.
#[test]
fn async_op_completes_on_the_replying_thread() {
    let (answer, (tell, ended)) = (Arc::new(Answer::default()), channel());
    async_op(&answer, false, tell);
    assert!(ended.try_recv().is_err(), "this thread is not kept");
    let bringer = bring_on_a_thread(&answer);
    assert_eq!(ended.try_recv(), Ok(bringer));
}

/// Promise: whatever has to wait is not done by a thread that brings an answer; elsewhere no other thread is needed.
#[test]
fn blocking_work_gets_its_own_thread() {
    let (answer, (tell, ended)) = (Arc::new(Answer::default()), channel());
    async_op(&answer, true, tell.clone());
    let bringer = bring_on_a_thread(&answer);
    let own = next(&ended);
    assert!(own != bringer && own != std::thread::current().id());

    async_op(&answer, true, tell);
    assert_eq!(next(&ended), std::thread::current().id(), "the answer was there already");
}

/// Promise: an asynchronous operation may wait for a mutex, whose last owner wakes it before it has let go of it
/// wholly.
#[test]
fn async_op_may_wait_for_a_mutex() {
    let (mutex, (tell, ended)) = (Arc::new(futures::lock::Mutex::new(())), channel());
    let held = mutex.try_lock().expect("it is new");
    let theirs = Arc::clone(&mutex);
    begin(async move {
        drop(theirs.lock().await);
        tell.send(std::thread::current().id()).unwrap();
    });
    assert!(ended.try_recv().is_err());
    drop(held);
    assert_ne!(next(&ended), std::thread::current().id());
}

/// Promise: where no thread can be made, an asynchronous operation waits until one can.
#[test]
fn async_op_survives_thread_creation_failure() {
    let (answer, (tell, ended)) = (Arc::new(Answer::default()), channel());
    async_op(&answer, false, tell);
    LEFT.lock().push(answer.come().expect("the asynchronous operation waits"));
    assert!(ended.try_recv().is_err());
    take_up_left();
    next(&ended);
}

/// Promise: an answer that comes while the asynchronous operation is polled is not lost, and whoever brings it does not
/// wait for that.
#[test]
fn immediate_reply_is_not_lost() {
    let (tell, ended) = channel();
    let mut polls = 0;
    begin(async move {
        let wakes_itself = std::future::poll_fn(|context| {
            polls += 1;
            let waker = context.waker().clone();
            std::thread::spawn(move || bring(waker)).join().unwrap();
            if polls < 3 { Poll::Pending } else { Poll::Ready(polls) }
        });
        tell.send(wakes_itself.await).unwrap();
    });
    assert_eq!(ended.try_recv(), Ok(3));
}

/// Promise: a panic ends the asynchronous operation, which lets go of what it had, and not the thread that brought its
/// answer.
#[test]
fn panic_ends_only_its_async_op() {
    let (answer, held) = (Arc::new(Answer::default()), Arc::new(()));
    let (theirs, kept) = (Arc::clone(&answer), Arc::clone(&held));
    begin(async move {
        theirs.wait().await;
        assert_eq!(Arc::strong_count(&kept), 1, "a broken rule");
    });
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    bring_on_a_thread(&answer);
    std::panic::set_hook(quiet);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Promise: it is known who meets others, for a while after the last time too, and when those are too many.
#[test]
fn concurrent_ops_are_detected() {
    let async_ops = AsyncOps::default();
    let met = || async_ops.begin().1;
    assert_eq!([met(), met()], [Met::Nobody; 2]);
    let (first, met_by_first) = async_ops.begin();
    assert_eq!((met_by_first, met()), (Met::Nobody, Met::Others));
    drop(first);
    assert!((0..CROWDED).all(|_| met() == Met::Others));
    assert_eq!(met(), Met::Nobody);
    let under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| async_ops.begin().0).collect();
    assert_eq!(met(), Met::TooMany);
    drop(under_way);
    assert_eq!(async_ops.under_way(), 0);
}

/// Promise: changes are announced while they follow, and hardly ever where they do not.
#[test]
fn unused_announcements_become_rare() {
    let async_ops = AsyncOps::default();
    for _ in 0..1000 {
        assert!(async_ops.announces());
        async_ops.begin();
    }
    let in_vain = (0..10_000).filter(|_| async_ops.announces()).count();
    assert!(in_vain < 60, "{in_vain} announcements in vain");
    let (first, _) = async_ops.begin();
    async_ops.begin();
    drop(first);
    assert!((0..10_000).all(|_| !async_ops.announces()), "callers meet");
}
