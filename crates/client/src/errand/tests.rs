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

/// An errand that waits for the answer, goes to a thread of its own if `leaves`, and tells where it ended.
fn errand(answer: &Arc<Answer>, leaves: bool, ended: Sender<ThreadId>) {
    let answer = Arc::clone(answer);
    begin(async move {
        answer.wait().await;
        if leaves {
            let waits = async { super::leaves() };
            assert!(!waiting(waits).await, "what waits is no errand");
            assert!(super::leaves());
        }
        ended.send(std::thread::current().id()).unwrap();
    });
}

fn bring_on_a_thread(answer: &Answer) -> ThreadId {
    let waker = answer.come().expect("the errand waits");
    let bringer = std::thread::spawn(move || {
        bring(waker);
        assert_eq!(HERE.get(), Here::Waits, "what it is while it brings is over");
    });
    let id = bringer.thread().id();
    bringer.join().unwrap();
    id
}

fn next(ended: &Receiver<ThreadId>) -> ThreadId {
    ended.recv_timeout(LONG).expect("the errand ends")
}

/// Promise: an errand goes on at the thread that brings its answer, and is over when that thread goes on.
#[test]
fn an_errand_ends_where_its_answer_comes() {
    let (answer, (tell, ended)) = (Arc::new(Answer::default()), channel());
    errand(&answer, false, tell);
    assert!(ended.try_recv().is_err(), "this thread is not kept");
    let bringer = bring_on_a_thread(&answer);
    assert_eq!(ended.try_recv(), Ok(bringer));
}

/// Promise: whatever has to wait is not done by a thread that brings an answer; elsewhere no other thread is needed.
#[test]
fn what_waits_gets_a_thread_of_its_own() {
    let (answer, (tell, ended)) = (Arc::new(Answer::default()), channel());
    errand(&answer, true, tell.clone());
    let bringer = bring_on_a_thread(&answer);
    let own = next(&ended);
    assert!(own != bringer && own != std::thread::current().id());

    errand(&answer, true, tell);
    assert_eq!(next(&ended), std::thread::current().id(), "the answer was there already");
}

/// Promise: an errand may wait for a mutex, whose last owner wakes it before it has let go of it wholly.
#[test]
fn an_errand_may_wait_for_a_mutex() {
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

/// Promise: where no thread can be made, an errand waits until one can.
#[test]
fn an_errand_without_a_thread_is_not_lost() {
    let (answer, (tell, ended)) = (Arc::new(Answer::default()), channel());
    errand(&answer, false, tell);
    LEFT.lock().push(answer.come().expect("the errand waits"));
    assert!(ended.try_recv().is_err());
    take_up_left();
    next(&ended);
}

/// Promise: an answer that comes while the errand is polled is not lost, and whoever brings it does not wait for that.
#[test]
fn an_answer_that_comes_at_once_is_not_lost() {
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

/// Promise: a panic ends the errand, which lets go of what it had, and not the thread that brought its answer.
#[test]
fn a_panic_costs_one_errand() {
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
fn who_meets_others_is_known() {
    let errands = Errands::default();
    let met = || errands.begin().1;
    assert_eq!([met(), met()], [Met::Nobody; 2]);
    let (first, met_by_first) = errands.begin();
    assert_eq!((met_by_first, met()), (Met::Nobody, Met::Others));
    drop(first);
    assert!((0..CROWDED).all(|_| met() == Met::Others));
    assert_eq!(met(), Met::Nobody);
    let under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| errands.begin().0).collect();
    assert_eq!(met(), Met::TooMany);
    drop(under_way);
    assert_eq!(errands.under_way(), 0);
}

/// Promise: changes are announced while they follow, and hardly ever where they do not.
#[test]
fn what_does_not_follow_is_announced_seldom() {
    let errands = Errands::default();
    for _ in 0..1000 {
        assert!(errands.announces());
        errands.begin();
    }
    let in_vain = (0..10_000).filter(|_| errands.announces()).count();
    assert!(in_vain < 60, "{in_vain} announcements in vain");
    let (first, _) = errands.begin();
    errands.begin();
    drop(first);
    assert!((0..10_000).all(|_| !errands.announces()), "callers meet");
}
