//! Keeps a worker awake between requests that come one after the other.
//!
//! While nothing else is to be done, a task of the worker looks for the next request, as [`SpinBudget`] allows; when it
//! yields, the runtime asks the kernel what has come without waiting for it. Without requests there is no busy-poll
//! loop.
//!
//! Where all requests come on one connection, that connection looks for the next one by itself ([`BusyPoll::find`]):
//! its shared-memory slot or socket is asked, and not the runtime, which would take longer than the request.
//!
//! Clients that have a shared-memory slot use it while a busy-poll loop lasts, and their sockets while there is none.
//! What is posted meanwhile is begun from here, at the request queue of its connection ([`super::request_queue`]), and
//! nothing of the runtime's lies between.
//!
//! The loop knows when all requests at hand have been begun, and then sends the batches of all shards
//! ([`CommitRound`]).

use super::request_queue::RequestQueue;
use super::shm_slots::{LookedInto, PolledRequests};
use crate::shards::CommitRound;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::spin::{LastDone, SpinBudget, SpinWait};

/// How long a worker looks for its next request. Of a mount's caller it comes only when the kernel has been round by the
/// caller and a thread of FUSE, which takes 40 to 80 µs, and of a directory that is cut over the workers it may be another's
/// turn first; a worker that sleeps meanwhile does the same work in twice the time.
const BUSY_POLL: Duration = Duration::from_micros(300);

/// A client that does nothing but ask has its next request there within so long. All else of the worker waits meanwhile.
const ALONE: Duration = Duration::from_micros(20);
/// After so many requests on one connection it is taken to be alone,
const ALONE_AFTER: u32 = 16;
/// and once in so many the runtime is asked all the same, for others that have come.
const ALONE_ROUND: u32 = 16;

/// Looks into shared-memory slots before the processor is given to whoever else wants it, which takes longer than all
/// of them.
const SPINS_A_ROUND: u32 = 32;

/// How often the runtime is asked, while shared-memory slots are looked into, for others that have come and for what
/// other threads have woken: while requests come from there, and while none do. It takes a call of the kernel and a
/// microsecond or two.
const ASKED_EVERY: Duration = Duration::from_micros(20);
const ASKED_IDLY_EVERY: Duration = Duration::from_micros(10);

/// Rounds in which tasks that this thread has woken have their turn before it looks again, after the last was woken: what waits goes from its
/// connection's task to its shard's and back.
const TURNS: u32 = 3;

#[derive(Default)]
pub struct BusyPoll {
    spin_budget: RefCell<SpinBudget>,
    /// Of a connection that is alone.
    alone: RefCell<SpinBudget>,
    /// The connection on which the last request came, and how many did in a row.
    last: Cell<(usize, u32)>,
    /// Requests that have come, and all that has moved on connections.
    requests: Cell<u64>,
    moves: Cell<u64>,
    kept: Cell<bool>,
    wanted: Notify,
    /// With those who say that a request will come.
    roused: RefCell<SpinBudget>,
    shm_slots: LookedInto,
    /// Rounds to come in which tasks have their turn.
    turns: Cell<u32>,
    /// The request that is begun next is the only one at hand.
    only: Cell<bool>,
    /// Batches to send when all requests at hand have been begun.
    pub commits: Rc<CommitRound>,
}

impl BusyPoll {
    /// A request has come on a connection, which is told from others by a number.
    pub fn came_on(&self, connection: usize) {
        let (last, in_a_row) = self.last.get();
        self.last.set((connection, if last == connection { in_a_row.wrapping_add(1) } else { 0 }));
        self.note();
    }

    /// While the busy-poll loop lasts the worker looks into the shared-memory slot of a connection, if it has one.
    pub fn poll_slot(&self, request_queue: &Rc<RequestQueue>) {
        if self.kept.get() {
            self.shm_slots.add(request_queue);
        }
    }

    /// A request has come by another way.
    pub fn came(&self) {
        self.last.set((0, 0));
        self.note();
    }

    /// Has a connection that is alone look for its next request; `there` says whether it has come.
    pub fn find<T>(&self, connection: usize, mut there: impl FnMut() -> Option<T>) -> Option<T> {
        let (_, in_a_row) = self.last.get();
        if !self.is_alone(connection) || in_a_row.is_multiple_of(ALONE_ROUND) {
            return None;
        }
        let mut spin = self.alone.borrow_mut().spin_for(ALONE)?;
        loop {
            if let Some(found) = there() {
                self.only.set(true);
                self.alone.borrow_mut().succeeded();
                return Some(found);
            }
            if !spin.again() {
                self.alone.borrow_mut().failed();
                return None;
            }
        }
    }

    fn is_alone(&self, connection: usize) -> bool {
        let (last, in_a_row) = self.last.get();
        last == connection && in_a_row >= ALONE_AFTER
    }

    /// Whether the request that is begun next is the only one at hand.
    pub fn only_one(&self, only: bool) {
        self.only.set(only);
    }

    /// Polls a request for the first time. If no other request is at hand, its change is sent at once, else together
    /// with the changes of the others.
    pub fn begin<T>(&self, mut poll: impl FnMut() -> Poll<T>) -> Poll<T> {
        let only = self.only.take();
        let before = self.commits.is_open();
        self.commits.set_open(only || before);
        let mut polled = poll();
        if only {
            while self.commits.send() && polled.is_pending() {
                polled = poll();
            }
        }
        self.commits.set_open(before);
        polled
    }

    fn note(&self) {
        self.requests.set(self.requests.get() + 1);
        self.moved();
        if !self.kept.get() && self.spin_budget.borrow_mut().spin_for(BUSY_POLL).is_some() {
            self.kept.set(true);
            self.commits.set_open(true);
            self.wanted.notify_one();
        }
    }

    /// Something that the next request may wait for has been done.
    pub fn moved(&self) {
        self.moves.set(self.moves.get() + 1);
    }

    /// A task of this worker has been woken for a request.
    pub fn woke(&self) {
        self.turns.set(TURNS);
    }

    /// Somebody says that a request is about to come: what `came` finds, if it comes soon.
    pub async fn rouse<T>(&self, mut came: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spin = self.roused.borrow_mut().spin_for(BUSY_POLL)?;
        loop {
            if let Some(found) = came() {
                let mut roused = self.roused.borrow_mut();
                match spin.cost_the_processor() {
                    true => roused.failed(),
                    false => roused.succeeded(),
                }
                return Some(found);
            }
            if !spin.again() {
                self.roused.borrow_mut().failed();
                return None;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Keeps busy-poll loops for as long as the worker lives.
    pub async fn keep(&self) {
        loop {
            self.wanted.notified().await;
            self.spin().await;
            self.shm_slots.sleep();
            self.kept.set(false);
            self.commits.set_open(false);
            self.commits.send();
        }
    }

    /// Sends the batches, and lets the requests that waited for them reply.
    async fn send(&self) {
        if self.commits.send() {
            after_those_woken().await;
        }
    }

    async fn spin(&self) {
        let mut requests = self.requests.get();
        let Some(mut spin) = self.begin_spin() else { return };
        tokio::task::yield_now().await;
        self.send().await;
        let mut asked = LastDone::now();
        loop {
            let moves = self.moves.get();
            let came = self.poll_shm_slots();
            if came.woken > 0 {
                self.woke();
            }
            let found = came != PolledRequests::default();
            if !found && !spin.again() {
                self.spin_budget.borrow_mut().failed();
                return;
            }
            let every = if found { ASKED_EVERY } else { ASKED_IDLY_EVERY };
            if self.shm_slots.is_empty() || asked.is_past(every) {
                tokio::task::yield_now().await;
                asked = LastDone::now();
            } else if self.turns.get() > 0 {
                self.turns.set(self.turns.get() - 1);
                after_those_woken().await;
            }
            self.send().await;
            if self.moves.get() == moves {
                continue;
            }
            if spin.cost_the_processor() {
                self.spin_budget.borrow_mut().failed();
                return;
            }
            if self.requests.get() != requests {
                requests = self.requests.get();
                self.spin_budget.borrow_mut().succeeded();
            }
            let Some(next) = self.begin_spin() else { return };
            spin = next;
        }
    }

    /// Has begun what is posted, and says what that was. Who is alone looks for its next request by itself, so it has to take this one.
    fn poll_shm_slots(&self) -> PolledRequests {
        self.only.set(false);
        if self.shm_slots.is_empty() {
            return PolledRequests::default();
        }
        let mut spins = (0..SPINS_A_ROUND).map(|_| self.shm_slots.spin());
        let Some(posted) = spins.find(|posted| posted.count() > 0) else { return PolledRequests::default() };
        self.only.set(posted.count() == 1);
        let came = self.shm_slots.begin(posted, |request_queue| self.is_alone(request_queue.number()));
        self.only.set(came == PolledRequests { begun: 0, woken: 1 });
        came
    }

    fn begin_spin(&self) -> Option<SpinWait> {
        self.spin_budget.borrow_mut().spin_for(BUSY_POLL)
    }
}

/// Ready when the tasks that this thread woke before have run, without a question to the kernel between.
async fn after_those_woken() {
    let mut have_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut have_run, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(busy_poll: &BusyPoll, connection: usize) -> bool {
        busy_poll.find(connection, || Some(())).is_some()
    }

    /// Promise: a connection looks for itself once all requests come on it, asks the runtime now and then all the same, and
    /// stops as soon as another has one.
    #[test]
    fn lone_connection_busy_polls_for_its_next_request() {
        let busy_poll = BusyPoll::default();
        let alone: Vec<bool> = (0..64)
            .map(|_| {
                busy_poll.came_on(7);
                finds(&busy_poll, 7)
            })
            .collect();
        assert!(!alone[..=16].contains(&true) && alone[17..32].iter().all(|found| *found));
        assert_eq!(alone.iter().skip(17).filter(|found| !**found).count(), 2, "asked at every sixteenth");
        assert!(!finds(&busy_poll, 8), "another than the last");
        busy_poll.came_on(8);
        assert!(!finds(&busy_poll, 7) && !finds(&busy_poll, 8));
        (0..20).for_each(|_| busy_poll.came_on(8));
        assert!(finds(&busy_poll, 8));
        busy_poll.came();
        assert!(!finds(&busy_poll, 8), "one came by another way");
    }

    /// Promise: a task that was woken runs first, and one that lets the runtime ask the kernel not before it does.
    #[test]
    fn woken_tasks_run_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().build_local(Default::default()).unwrap();
        let ran = Rc::new(Cell::new(0));
        let counts = Rc::clone(&ran);
        let busy_poll = async move {
            let seen = Rc::clone(&counts);
            let woken = tokio::task::spawn_local(async move {
                counts.set(1);
                tokio::task::yield_now().await;
                counts.set(2);
            });
            for _ in 0..3 {
                after_those_woken().await;
                assert_eq!(seen.get(), 1);
            }
            woken.await.unwrap();
        };
        runtime.block_on(async { tokio::task::spawn_local(busy_poll).await.unwrap() });
        assert_eq!(ran.get(), 2);
    }

    /// Promise: who finds nothing hardly looks any more.
    #[test]
    fn slow_lone_connection_polls_rarely() {
        let busy_poll = BusyPoll::default();
        (0..=ALONE_AFTER).for_each(|_| busy_poll.came_on(7));
        let mut asked = 0;
        for _ in 0..2000 {
            busy_poll.came_on(7);
            let mut this = false;
            assert!(
                busy_poll
                    .find(7, || {
                        this = true;
                        None::<()>
                    })
                    .is_none()
            );
            asked += u32::from(this);
        }
        assert!(asked < 40, "{asked} looks in vain");
    }
}
