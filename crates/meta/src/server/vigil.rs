//! Keeps a worker awake between requests that come one after the other.
//!
//! While nothing else is to be done, a task of the worker looks for the next request, as [`Patience`] allows; when it yields,
//! the runtime asks the kernel what has come without waiting for it. Without requests there is no vigil.
//!
//! Where all requests come on one connection, that connection looks for the next one by itself ([`Vigil::find`]): its mailbox
//! or socket is asked, and not the runtime, which would take longer than the request.
//!
//! Clients that have a mailbox use it while a vigil lasts, and their sockets while there is none. What is posted meanwhile is begun
//! from here, at the desk of its connection ([`super::desk`]), and nothing of the runtime's lies between.
//!
//! Who looks knows what is at hand, and so when batches are complete: then they are sent from here, without the way by their
//! shards' tasks ([`Vigil::send`]).

use super::desk::Desk;
use super::mailboxes::{Came, LookedInto};
use crate::shards::Shard;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use varve_world::patience::{Last, Look, Patience};

/// How long a worker looks for its next request. Of a mount's caller it comes only when the kernel has been round by the
/// caller and a thread of FUSE, which takes 40 to 80 µs, and of a directory that is cut over the workers it may be another's
/// turn first; a worker that sleeps meanwhile does the same work in twice the time.
const VIGIL: Duration = Duration::from_micros(300);

/// A client that does nothing but ask has its next request there within so long. All else of the worker waits meanwhile.
const ALONE: Duration = Duration::from_micros(20);
/// After so many requests on one connection it is taken to be alone,
const ALONE_AFTER: u32 = 16;
/// and once in so many the runtime is asked all the same, for others that have come.
const ALONE_ROUND: u32 = 16;

/// Looks into mailboxes before the processor is given to whoever else wants it, which takes longer than all of them.
const LOOKS_A_ROUND: u32 = 32;

/// How often the runtime is asked, while mailboxes are looked into, for others that have come and for what other threads have woken: while
/// requests come from there, and while none do. It takes a call of the kernel and a microsecond or two.
const ASKED_EVERY: Duration = Duration::from_micros(20);
const ASKED_IDLY_EVERY: Duration = Duration::from_micros(10);

/// Rounds in which tasks that this thread has woken have their turn before it looks again, after the last was woken: what waits goes from its
/// connection's task to its shard's and back.
const TURNS: u32 = 3;

#[derive(Default)]
pub struct Vigil {
    patience: RefCell<Patience>,
    /// Of a connection that is alone.
    alone: RefCell<Patience>,
    /// The connection on which the last request came, and how many did in a row.
    last: Cell<(usize, u32)>,
    /// Requests that have come, and all that has moved on connections.
    requests: Cell<u64>,
    moves: Cell<u64>,
    kept: Cell<bool>,
    begin: Notify,
    /// With those who say that a request will come.
    roused: RefCell<Patience>,
    mailboxes: LookedInto,
    /// Rounds to come in which tasks have their turn.
    turns: Cell<u32>,
    /// The request that is begun next is the only one at hand.
    only: Cell<bool>,
    /// Shards with changes to send when all requests at hand have been begun.
    unsent: RefCell<VecDeque<Rc<Shard>>>,
    sending: Cell<bool>,
}

impl Vigil {
    /// A request has come on a connection, which is told from others by a number.
    pub fn came_on(&self, connection: usize) {
        let (last, in_a_row) = self.last.get();
        self.last.set((connection, if last == connection { in_a_row.wrapping_add(1) } else { 0 }));
        self.note();
    }

    /// While the vigil lasts the worker looks into the mailbox of a connection, if it has one.
    pub fn look_into(&self, desk: &Rc<Desk>) {
        if self.kept.get() {
            self.mailboxes.add(desk);
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
        let mut look = self.alone.borrow_mut().look_for(ALONE)?;
        loop {
            if let Some(found) = there() {
                self.only.set(true);
                self.alone.borrow_mut().succeeded();
                return Some(found);
            }
            if !look.again() {
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

    /// A change waits in the open batch of `shard`, and what it was asked by for that batch. It is sent at once if no other
    /// request is at hand, else together with what they change.
    pub fn send(&self, shard: &Rc<Shard>) {
        let only = self.only.take();
        if !only && !self.kept.get() && !self.sending.get() {
            return shard.commit_soon();
        }
        let mut unsent = self.unsent.borrow_mut();
        if !unsent.iter().any(|other| Rc::ptr_eq(other, shard)) {
            unsent.push_back(Rc::clone(shard));
        }
        drop(unsent);
        if only {
            self.send_all();
        }
    }

    /// What is sent has others send theirs: the name of a directory follows its rows.
    fn send_all(&self) {
        if self.sending.replace(true) {
            return;
        }
        loop {
            let Some(shard) = self.unsent.borrow_mut().pop_front() else { break };
            shard.commit_at_once();
        }
        self.sending.set(false);
    }

    fn note(&self) {
        self.requests.set(self.requests.get() + 1);
        self.moved();
        if !self.kept.get() && self.patience.borrow_mut().look_for(VIGIL).is_some() {
            self.kept.set(true);
            self.begin.notify_one();
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
        let mut look = self.roused.borrow_mut().look_for(VIGIL)?;
        loop {
            if let Some(found) = came() {
                let mut roused = self.roused.borrow_mut();
                match look.cost_the_processor() {
                    true => roused.failed(),
                    false => roused.succeeded(),
                }
                return Some(found);
            }
            if !look.again() {
                self.roused.borrow_mut().failed();
                return None;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Keeps vigils for as long as the worker lives.
    pub async fn keep(&self) {
        loop {
            self.begin.notified().await;
            self.look().await;
            self.mailboxes.sleep();
            self.kept.set(false);
            self.send_all();
        }
    }

    async fn look(&self) {
        let mut requests = self.requests.get();
        let Some(mut look) = self.begin_look() else { return };
        tokio::task::yield_now().await;
        self.send_all();
        let mut asked = Last::now();
        loop {
            let moves = self.moves.get();
            let came = self.look_into_mailboxes();
            if came.woken > 0 {
                self.woke();
            }
            let found = came != Came::default();
            if !found && !look.again() {
                self.patience.borrow_mut().failed();
                return;
            }
            let every = if found { ASKED_EVERY } else { ASKED_IDLY_EVERY };
            if self.mailboxes.is_empty() || asked.is_past(every) {
                tokio::task::yield_now().await;
                asked = Last::now();
            } else if self.turns.get() > 0 {
                self.turns.set(self.turns.get() - 1);
                after_those_woken().await;
            }
            self.send_all();
            if self.moves.get() == moves {
                continue;
            }
            if look.cost_the_processor() {
                self.patience.borrow_mut().failed();
                return;
            }
            if self.requests.get() != requests {
                requests = self.requests.get();
                self.patience.borrow_mut().succeeded();
            }
            let Some(next) = self.begin_look() else { return };
            look = next;
        }
    }

    /// Has begun what is posted, and says what that was. Who is alone looks for its next request by itself, so it has to take this one.
    fn look_into_mailboxes(&self) -> Came {
        self.only.set(false);
        if self.mailboxes.is_empty() {
            return Came::default();
        }
        let mut looks = (0..LOOKS_A_ROUND).map(|_| self.mailboxes.look());
        let Some(posted) = looks.find(|posted| posted.count() > 0) else { return Came::default() };
        self.only.set(posted.count() == 1);
        let came = self.mailboxes.begin(posted, |desk| self.is_alone(desk.number()));
        self.only.set(came == Came { begun: 0, woken: 1 });
        came
    }

    fn begin_look(&self) -> Option<Look> {
        self.patience.borrow_mut().look_for(VIGIL)
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

    fn finds(vigil: &Vigil, connection: usize) -> bool {
        vigil.find(connection, || Some(())).is_some()
    }

    /// Promise: a connection looks for itself once all requests come on it, asks the runtime now and then all the same, and
    /// stops as soon as another has one.
    #[test]
    fn who_is_alone_looks_for_its_next_request() {
        let vigil = Vigil::default();
        let alone: Vec<bool> = (0..64)
            .map(|_| {
                vigil.came_on(7);
                finds(&vigil, 7)
            })
            .collect();
        assert!(!alone[..=16].contains(&true) && alone[17..32].iter().all(|found| *found));
        assert_eq!(alone.iter().skip(17).filter(|found| !**found).count(), 2, "asked at every sixteenth");
        assert!(!finds(&vigil, 8), "another than the last");
        vigil.came_on(8);
        assert!(!finds(&vigil, 7) && !finds(&vigil, 8));
        (0..20).for_each(|_| vigil.came_on(8));
        assert!(finds(&vigil, 8));
        vigil.came();
        assert!(!finds(&vigil, 8), "one came by another way");
    }

    /// Promise: a task that was woken runs first, and one that lets the runtime ask the kernel not before it does.
    #[test]
    fn those_who_were_woken_run_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().build_local(Default::default()).unwrap();
        let ran = Rc::new(Cell::new(0));
        let counts = Rc::clone(&ran);
        let vigil = async move {
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
        runtime.block_on(async { tokio::task::spawn_local(vigil).await.unwrap() });
        assert_eq!(ran.get(), 2);
    }

    /// Promise: who finds nothing hardly looks any more.
    #[test]
    fn who_is_alone_and_slow_looks_seldom() {
        let vigil = Vigil::default();
        (0..=ALONE_AFTER).for_each(|_| vigil.came_on(7));
        let mut asked = 0;
        for _ in 0..2000 {
            vigil.came_on(7);
            let mut this = false;
            assert!(
                vigil
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
