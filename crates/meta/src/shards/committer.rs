//! Who sends a shard's batches: a task; or whoever knows that nothing more comes to the open batch soon, on its own time, which
//! saves the way by the runtime. What has to wait is waited for by the task, whoever began it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// What the committer is asked by.
#[derive(Default)]
pub(super) struct CommitWork {
    wanted: Cell<bool>,
    /// Of the task, while it waits for work.
    idle: RefCell<Option<Waker>>,
    committer: RefCell<Weak<Committer>>,
}

struct Committer {
    /// Of the task.
    waker: RefCell<Option<Waker>>,
    /// `None` while it is run, and when it has ended.
    sending: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl CommitWork {
    /// The task that runs `sending`, which waits for work by [`CommitWork::notified`].
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

    /// There is something to do: the task does it.
    pub fn notify_one(&self) {
        self.wanted.set(true);
        if let Some(task) = self.idle.take() {
            task.wake();
        }
    }

    /// There is something to do, and it is done now, as far as that need wait for nothing.
    pub fn do_now(&self) {
        self.wanted.set(true);
        let committer = self.committer.borrow().upgrade();
        let Some(committer) = committer else { return };
        // Without one the task has not begun yet, and begins with what is to be done.
        let Some(waker) = committer.waker.borrow().clone() else { return };
        if committer.run(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
    }

    /// Ready when there is something to do.
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
    /// Nothing where it is being run: who runs it looks for more to do before it waits.
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

    /// What does one thing after the other, in the midst of each of which it may have to wait.
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
                    // As a waiter does that has more to send.
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

    /// Promise: what is to be done now is done when the call returns, and what comes up in it too; what the task is told, it
    /// does.
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

    /// Promise: what has to wait, whoever began it, the task finishes, and then does what came meanwhile; and it ends.
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
