//! Runs a shard's commits: in a task, or inline by a caller that knows that nothing more comes to the open batch soon,
//! which saves the way through the runtime. The task finishes any commit that has to wait, whichever side began it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// Wakes or runs the committer.
#[derive(Default)]
pub(super) struct CommitWork {
    wanted: Cell<bool>,
    /// The task's waker while it waits for work.
    idle: RefCell<Option<Waker>>,
    committer: RefCell<Weak<Committer>>,
}

struct Committer {
    /// The task's waker.
    waker: RefCell<Option<Waker>>,
    /// `None` while it runs, and when it has ended.
    sending: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl CommitWork {
    /// Returns the task that runs `sending`, which waits for work by [`CommitWork::notified`].
    pub fn task(&self, sending: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        let sending: Pin<Box<dyn Future<Output = ()>>> = Box::pin(sending);
        let committer = Rc::new(Committer { waker: RefCell::default(), sending: RefCell::new(Some(sending)) });
        self.committer.replace(Rc::downgrade(&committer));
        async move {
            poll_fn(|context| {
                keep(&committer.waker, context);
                committer.run(context)
            })
            .await;
        }
    }

    /// Signals work and leaves it to the task.
    pub fn notify_one(&self) {
        self.wanted.set(true);
        if let Some(task) = self.idle.take() {
            task.wake();
        }
    }

    /// Signals work and does it now, as far as that needs no waiting.
    pub fn do_now(&self) {
        self.wanted.set(true);
        let committer = self.committer.borrow().upgrade();
        let Some(committer) = committer else { return };
        // Without a waker the task has not begun yet, and it begins with this work.
        let Some(waker) = committer.waker.borrow().clone() else { return };
        if committer.run(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
    }

    /// Ready when there is work.
    pub async fn notified(&self) {
        poll_fn(|context| {
            if self.wanted.take() {
                return Poll::Ready(());
            }
            keep(&self.idle, context);
            Poll::Pending
        })
        .await;
    }
}

impl Committer {
    /// Does nothing if it is already running: the running side checks for more work before it waits.
    fn run(&self, context: &mut Context<'_>) -> Poll<()> {
        let sending = self.sending.borrow_mut().take();
        let Some(mut sending) = sending else { return Poll::Ready(()) };
        let polled = sending.as_mut().poll(context);
        if polled.is_pending() {
            self.sending.replace(Some(sending));
        }
        polled
    }
}

fn keep(place: &RefCell<Option<Waker>>, context: &Context<'_>) {
    let mut kept = place.borrow_mut();
    if !kept.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        *kept = Some(context.waker().clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    /// Performs one step after another, each of which may have to wait.
    struct Bench {
        work: CommitWork,
        left: Cell<u32>,
        done: RefCell<Vec<u32>>,
        slow: Cell<bool>,
        go_on: Notify,
        closed: Cell<bool>,
    }

    impl Bench {
        fn open() -> Rc<Bench> {
            let (work, left, done, slow, go_on, closed) = Default::default();
            let bench = Rc::new(Bench { work, left, done, slow, go_on, closed });
            tokio::task::spawn_local(bench.work.task(Rc::clone(&bench).send()));
            bench
        }

        async fn send(self: Rc<Self>) {
            loop {
                let left = self.left.take();
                if left == 0 {
                    if self.closed.get() {
                        return;
                    }
                    self.work.notified().await;
                    continue;
                }
                if self.slow.get() {
                    self.go_on.notified().await;
                }
                self.done.borrow_mut().push(left);
                if left == 7 {
                    // Like a waiter that has more to send.
                    self.left.set(8);
                    self.work.do_now();
                }
            }
        }

        fn bring(&self, count: u32) {
            self.left.set(count);
        }
    }

    fn at_bench<T: Future<Output = ()>>(test: impl FnOnce(Rc<Bench>) -> T) {
        let runtime = tokio::runtime::Builder::new_current_thread().build_local(Default::default()).unwrap();
        runtime.block_on(async { test(Bench::open()).await });
    }

    /// Promise: work to be done inline is done when the call returns, with the work that it causes; the task does the
    /// work that it is notified of.
    #[test]
    fn commit_runs_inline_or_in_the_task() {
        at_bench(|bench| async move {
            bench.bring(1);
            bench.work.do_now();
            assert!(bench.done.borrow().is_empty(), "the task has not begun");
            tokio::task::yield_now().await;
            assert_eq!(*bench.done.borrow(), [1]);
            for count in [2, 7] {
                bench.bring(count);
                bench.work.do_now();
            }
            assert_eq!(*bench.done.borrow(), [1, 2, 7, 8]);
            assert!(bench.work.idle.borrow().is_some(), "it still waits");
            bench.bring(3);
            bench.work.notify_one();
            assert_eq!(bench.done.borrow().len(), 4);
            tokio::task::yield_now().await;
            assert_eq!(*bench.done.borrow(), [1, 2, 7, 8, 3]);
        });
    }

    /// Promise: the task finishes a commit that has to wait, whichever side began it, then does the work that came
    /// meanwhile; and it ends.
    #[test]
    fn blocking_commit_moves_to_the_task() {
        at_bench(|bench| async move {
            tokio::task::yield_now().await;
            bench.slow.set(true);
            bench.bring(1);
            bench.work.do_now();
            bench.bring(2);
            bench.work.do_now();
            assert!(bench.done.borrow().is_empty());
            bench.slow.set(false);
            bench.go_on.notify_one();
            tokio::task::yield_now().await;
            assert_eq!(*bench.done.borrow(), [1, 2]);
            bench.closed.set(true);
            bench.work.do_now();
            tokio::task::yield_now().await;
            assert_eq!(Rc::strong_count(&bench), 1, "nobody holds it any more");
            bench.work.do_now();
            bench.work.notify_one();
        });
    }
}
