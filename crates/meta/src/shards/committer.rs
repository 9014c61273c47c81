//! Runs a shard's commits: in a task, or inline at the end of a round of the worker, which saves the way through the
//! runtime. The task finishes any commit that has to wait, whichever side began it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// The shards of a worker that have a batch to send when the worker has begun all requests at hand. Outside a round,
/// each shard's task sends its batch.
#[derive(Default)]
pub struct CommitRound {
    is_open: Cell<bool>,
    unsent: RefCell<VecDeque<Weak<Committer>>>,
}

impl CommitRound {
    /// From now on batches are collected for [`CommitRound::send`], or no longer.
    pub fn set_open(&self, open: bool) {
        self.is_open.set(open);
    }

    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Sends the batches that were collected, and those that shards fill because of these, as far as that needs no
    /// waiting. Returns whether there were any.
    pub fn send(&self) -> bool {
        let before = self.is_open.replace(true);
        let mut sent = false;
        loop {
            let Some(committer) = self.unsent.borrow_mut().pop_front() else { break };
            if let Some(committer) = committer.upgrade() {
                committer.in_round.set(false);
                committer.do_now();
                sent = true;
            }
        }
        self.is_open.set(before);
        sent
    }

    fn add(&self, committer: &Rc<Committer>) {
        if !committer.in_round.replace(true) {
            self.unsent.borrow_mut().push_back(Rc::downgrade(committer));
        }
    }
}

/// Wakes or runs the committer of one shard.
#[derive(Default)]
pub(super) struct CommitWork {
    round: Rc<CommitRound>,
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
    /// It is in the worker's round.
    in_round: Cell<bool>,
}

impl CommitWork {
    pub fn new(round: Rc<CommitRound>) -> CommitWork {
        CommitWork { round, ..CommitWork::default() }
    }

    /// Returns the task that runs `sending`, which waits for work by [`CommitWork::notified`].
    pub fn task(&self, sending: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        let sending: Pin<Box<dyn Future<Output = ()>>> = Box::pin(sending);
        let committer = Rc::new(Committer {
            waker: RefCell::default(),
            sending: RefCell::new(Some(sending)),
            in_round: Cell::default(),
        });
        self.committer.replace(Rc::downgrade(&committer));
        async move {
            poll_fn(|context| {
                keep(&committer.waker, context);
                committer.run(context)
            })
            .await;
        }
    }

    /// Signals work, for the end of the worker's round or for the task.
    pub fn notify_one(&self) {
        self.wanted.set(true);
        if self.round.is_open()
            && let Some(committer) = self.committer.borrow().upgrade()
        {
            return self.round.add(&committer);
        }
        if let Some(task) = self.idle.take() {
            task.wake();
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
    /// Does the work that was signalled, as far as that needs no waiting.
    fn do_now(&self) {
        // Without a waker the task has not begun yet, and it begins with this work.
        let Some(waker) = self.waker.borrow().clone() else { return };
        if self.run(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
    }

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
mod tests;
