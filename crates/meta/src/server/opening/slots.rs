//! The state of each shard at one worker, and every transition between states.
//!
//! ```text
//! Waiting ──► Opening ──► Open ──► Failed ──► Open, Refused or Released
//!                │          │
//!                ├──► Refused ──► Open, Refused or Released
//!                ├──► Released
//!                │          ▼
//! Elsewhere ─────┘      MovingAway ──► Elsewhere, Open or Failed
//! ```
//!
//! With several servers, the cluster's map makes `Elsewhere`, `Released` and a shard that was closed for another server
//! `Waiting`.
//!
//! Invariants:
//! - A shard has one state. Where it is open, or is moving away, this worker has its table open, and no other has.
//! - Attempts to open a shard do not overlap. Only the attempt that is in progress leaves `Opening`.
//! - Only `Failed` and `Refused` may have a read-only view, since nobody owns the shard then.
//! - `Released` is left only when the cluster's map gives the shard back: another server owns it.
//! - The table of a shard's open files is at the worker that owns the shard, in any state of the shard. While the shard
//!   moves to another worker, it is in no slot between the closing here and the opening there. It stays here while the shard
//!   is closed for another server, until the cluster's map names that one.
//! - The shard map names this worker unless the state is `Elsewhere`, but for a shard that is being taken over: its owner
//!   in the map changes when it is `Open` here, and the worker that it leaves knows it as `Elsewhere` soon after that.

use super::loss::{LostChanges, Owing};
use super::{NotOpen, OpenFailure};
use crate::shards::{Cause, Leases, OpenFiles, PeerCall, Shard};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use varve_cluster::map::Term;
use varve_env::clock::{Clock, Instant};
use varve_types::{InodeId, SessionId, ShardId};

/// The state of a shard at a worker. `S` is the open shard.
pub(super) enum SlotState<S = Rc<Shard>> {
    /// Another worker owns it.
    Elsewhere,
    /// Owned, and never tried.
    Waiting,
    /// The first attempt is in progress.
    Opening,
    Open(S),
    MovingAway(S, Gate),
    /// Was open and has failed; the next attempt has not ended.
    Failed {
        cause: Cause,
        view: Option<S>,
    },
    /// The last attempt has failed.
    Refused {
        failure: OpenFailure,
        view: Option<S>,
    },
    /// Another server has taken it over. `by_map`: the cluster's map says whose it is, and may give it back.
    Released {
        cause: Cause,
        by_map: bool,
    },
    /// The worker has closed it and ends.
    Closed,
}

/// The calls that a shard still serves while it moves away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Those of other shards.
    Peers,
    /// Those that end something.
    Ending,
    None,
    /// None: it is closed for another server, and the cluster's map will name its owner, which may be this worker.
    Given,
}

/// Attempts to open a shard.
#[derive(Clone, Copy, Default)]
pub(super) struct Attempts {
    pub begun: u64,
    pub ended: u64,
}

pub(super) struct ShardSlot<S = Rc<Shard>> {
    pub state: SlotState<S>,
    /// Since when it is in this state.
    pub since: Instant,
    pub attempts: Attempts,
    /// The term of this worker's ownership, or of its last one, if the server has joined others.
    pub term: Term,
    /// `asked`: requested since it was refused. `hurried`: a caller waits for the next attempt.
    pub asked: bool,
    pub hurried: bool,
    /// This server has had it open.
    pub had: bool,
    /// It failed with acknowledged changes that may or may not have survived.
    pub owing: Option<Owing>,
    /// It is open again without some acknowledged changes: syncs report the loss.
    pub lost: Option<LostChanges>,
    /// The files that sessions have open. `None`: another worker has the table.
    pub open_files: Option<OpenFiles>,
    /// The leases on its rows. `None`: another worker has it.
    pub leases: Option<Leases>,
}

impl<S: Clone> ShardSlot<S> {
    fn new(own: bool, since: Instant) -> ShardSlot<S> {
        let state = if own { SlotState::Waiting } else { SlotState::Elsewhere };
        let (attempts, term, asked, hurried, had, owing, lost, open_files, leases) = Default::default();
        ShardSlot { state, since, attempts, term, asked, hurried, had, owing, lost, open_files, leases }
    }

    /// The open files and leases of sessions, which outlive the openings of the shard. `None`: another worker has it.
    pub fn sessions(&self) -> Option<(OpenFiles, Leases)> {
        Some((self.open_files.clone()?, self.leases.clone()?))
    }

    fn enter(&mut self, state: SlotState<S>, now: Instant) {
        (self.state, self.since) = (state, now);
    }

    fn take_state(&mut self) -> SlotState<S> {
        std::mem::replace(&mut self.state, SlotState::Closed)
    }

    pub fn view(&self) -> Option<&S> {
        match &self.state {
            SlotState::Failed { view, .. } | SlotState::Refused { view, .. } => view.as_ref(),
            _ => None,
        }
    }

    /// Why it is not open, if it failed, could not be opened or was released.
    pub fn cause(&self) -> Option<&Cause> {
        match &self.state {
            SlotState::Failed { cause, .. } | SlotState::Released { cause, .. } => Some(cause),
            SlotState::Refused { failure, .. } => Some(&failure.cause),
            _ => None,
        }
    }

    pub fn begin_attempt(&mut self, now: Instant) {
        self.hurried = false;
        self.attempts.begun += 1;
        match self.state {
            SlotState::Waiting => self.enter(SlotState::Opening, now),
            SlotState::Opening | SlotState::Failed { .. } | SlotState::Refused { .. } => {}
            _ => unreachable!("only a shard without an owner is opened"),
        }
    }

    /// The attempt has succeeded. Returns the read-only view, which must be closed.
    pub fn opened(&mut self, shard: S, now: Instant) -> Option<S> {
        let view = self.end_attempt();
        self.had = true;
        self.enter(SlotState::Open(shard), now);
        view
    }

    /// The attempt has failed. `view`: a new read-only view.
    pub fn refused(&mut self, failure: OpenFailure, view: Option<S>, now: Instant) {
        let since = if matches!(self.state, SlotState::Refused { .. }) { self.since } else { now };
        let view = self.end_attempt().or(view);
        self.enter(SlotState::Refused { failure, view }, since);
    }

    /// Another server has the shard. Returns the read-only view, which must be closed.
    pub fn released(&mut self, cause: Cause, now: Instant) -> Option<S> {
        let view = self.end_attempt();
        self.enter(SlotState::Released { cause, by_map: false }, now);
        view
    }

    /// As [`ShardSlot::released`]; the cluster's map will name the owner, which may be this worker.
    pub fn released_to_map(&mut self, cause: Cause, now: Instant) -> Option<S> {
        let view = self.end_attempt();
        self.enter(SlotState::Released { cause, by_map: true }, now);
        view
    }

    fn end_attempt(&mut self) -> Option<S> {
        self.attempts.ended = self.attempts.begun;
        match self.take_state() {
            SlotState::Opening => None,
            SlotState::Failed { view, .. } | SlotState::Refused { view, .. } => view,
            _ => unreachable!("an attempt ends as it began, without an owner"),
        }
    }

    /// The open shard, or the one that is moving away, has failed.
    pub fn fail(&mut self, cause: Cause, now: Instant) {
        debug_assert!(matches!(self.state, SlotState::Open(_) | SlotState::MovingAway(..)), "only an open shard fails");
        self.enter(SlotState::Failed { cause, view: None }, now);
    }

    /// Adds a read-only view; gives it back if the shard has one or is open again.
    pub fn add_view(&mut self, new: S) -> Option<S> {
        match &mut self.state {
            SlotState::Failed { view: view @ None, .. } | SlotState::Refused { view: view @ None, .. } => {
                *view = Some(new);
                None
            }
            _ => Some(new),
        }
    }

    /// The worker ends, and has closed the shard. Returns the read-only view, which must be closed.
    pub fn closed(&mut self, now: Instant) -> Option<S> {
        let view = self.view().cloned();
        if !matches!(self.state, SlotState::Elsewhere | SlotState::Released { .. }) {
            self.enter(SlotState::Closed, now);
        }
        view
    }

    /// The open shard begins to move away.
    pub fn move_away(&mut self, now: Instant) {
        match self.take_state() {
            SlotState::Open(shard) => self.enter(SlotState::MovingAway(shard, Gate::Peers), now),
            _ => unreachable!("only an open shard moves"),
        }
    }

    pub fn set_gate(&mut self, gate: Gate) {
        match &mut self.state {
            SlotState::MovingAway(_, of) => *of = gate,
            _ => unreachable!("only a move ends a move"),
        }
    }

    /// The shard does not move after all.
    pub fn stay(&mut self, now: Instant) {
        match self.take_state() {
            SlotState::MovingAway(shard, _) => self.enter(SlotState::Open(shard), now),
            _ => unreachable!("only a move ends a move"),
        }
    }

    /// Another worker has opened the shard.
    pub fn moved(&mut self, now: Instant) {
        debug_assert!(matches!(self.state, SlotState::MovingAway(_, Gate::None)), "a shard moves when it is closed");
        self.enter(SlotState::Elsewhere, now);
    }

    /// The cluster's map gives the shard to this worker, which opens it as after a restart. `false`: it has it.
    pub fn begin_ownership(&mut self, term: Term, sessions_return: Duration, now: Instant) -> bool {
        let former = self.term;
        self.term = former.max(term);
        let is_free = matches!(
            self.state,
            SlotState::Elsewhere | SlotState::Released { .. } | SlotState::MovingAway(_, Gate::Given)
        );
        if !is_free {
            return false;
        }
        // Taken back in the next term: nobody else has served it. Sessions that do not know the term yet go on with what
        // they have registered.
        let was_ours =
            matches!(self.state, SlotState::Released { by_map: true, .. } | SlotState::MovingAway(_, Gate::Given));
        let is_taken_back = was_ours && term == former.next();
        if !is_taken_back || self.open_files.is_none() {
            self.open_files = Some(OpenFiles::after(sessions_return));
        }
        self.leases = Some(Leases::new(Some(now)));
        self.enter(SlotState::Waiting, now);
        true
    }

    /// Another server has the shard that was closed or released for it, and sessions register their files there. `false`: it
    /// was not.
    pub fn gone(&mut self, now: Instant) -> bool {
        let is_gone =
            matches!(self.state, SlotState::Released { by_map: true, .. } | SlotState::MovingAway(_, Gate::Given));
        if is_gone {
            (self.open_files, self.leases) = (None, None);
            self.enter(SlotState::Elsewhere, now);
        }
        is_gone
    }

    /// The shard is to be opened for the first time here; `false`: it is not elsewhere.
    pub fn begin_take_over(&mut self, now: Instant) -> bool {
        let elsewhere = matches!(self.state, SlotState::Elsewhere);
        if elsewhere {
            self.enter(SlotState::Opening, now);
        }
        elsewhere
    }

    /// The shard could not be taken over: it stays elsewhere.
    pub fn not_taken_over(&mut self, now: Instant) {
        self.end_attempt();
        self.enter(SlotState::Elsewhere, now);
    }
}

/// All shards of the volume, as one worker knows them.
pub struct ShardSlots {
    slots: Vec<RefCell<ShardSlot>>,
    clock: Arc<dyn Clock>,
    /// Shards in the state `Waiting`, in the order in which they are opened.
    waiting: RefCell<VecDeque<ShardId>>,
    under_way: Rc<Cell<usize>>,
    /// The worker ends and starts no more attempts.
    given_up: Cell<bool>,
}

/// An attempt to open a shard, or a move, in progress.
pub(super) struct UnderWay(Rc<Cell<usize>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl ShardSlots {
    /// `shards`: all shards in order, each with whether this worker owns it. They are opened in order, but first the
    /// shard of the root, through which every path leads. `sessions_return`: see [`OpenFiles::after`]. `owned_since`:
    /// see [`Leases::new`].
    pub fn new(
        shards: impl Iterator<Item = (ShardId, bool)>,
        sessions_return: Duration,
        owned_since: Option<Instant>,
        clock: Arc<dyn Clock>,
    ) -> ShardSlots {
        let now = clock.monotonic();
        let mut waiting = VecDeque::new();
        let slots = shards.map(|(shard, own)| {
            if own {
                waiting.push_back(shard);
            }
            let open_files = own.then(|| OpenFiles::after(sessions_return));
            let leases = own.then(|| Leases::new(owned_since));
            RefCell::new(ShardSlot { open_files, leases, ..ShardSlot::new(own, now) })
        });
        let slots = slots.collect();
        let (under_way, given_up) = Default::default();
        let slots = ShardSlots { slots, clock, waiting: RefCell::new(waiting), under_way, given_up };
        slots.prefer(InodeId::ROOT.shard());
        slots
    }

    /// # Panics
    /// If there is no such shard.
    pub(super) fn of(&self, shard: ShardId) -> RefMut<'_, ShardSlot> {
        self.slots[usize::from(shard.0)].borrow_mut()
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.monotonic()
    }

    /// The shard, if it is open here.
    pub fn open(&self, shard: ShardId) -> Option<Rc<Shard>> {
        match &self.slots.get(usize::from(shard.0))?.borrow().state {
            SlotState::Open(shard) => Some(Rc::clone(shard)),
            _ => None,
        }
    }

    /// The shard, if it serves this call of another shard now.
    pub fn open_to_peer(&self, shard: ShardId, call: &PeerCall) -> Option<Rc<Shard>> {
        match &self.slots.get(usize::from(shard.0))?.borrow().state {
            SlotState::Open(shard) | SlotState::MovingAway(shard, Gate::Peers) => Some(Rc::clone(shard)),
            SlotState::MovingAway(shard, Gate::Ending) if call.ends_something() => Some(Rc::clone(shard)),
            _ => None,
        }
    }

    /// The shard, if it is open here and not closed for another worker yet.
    pub fn open_or_moving(&self, shard: ShardId) -> Option<Rc<Shard>> {
        match &self.slots.get(usize::from(shard.0))?.borrow().state {
            SlotState::Open(shard) | SlotState::MovingAway(shard, Gate::Peers | Gate::Ending) => Some(Rc::clone(shard)),
            _ => None,
        }
    }

    /// The open files of the shard, in any state of it. `None`: they are between two workers.
    pub fn open_files(&self, shard: ShardId) -> Option<Result<OpenFiles, NotOpen>> {
        let Some(slot) = self.slots.get(usize::from(shard.0)) else { return Some(Err(NotOpen::Elsewhere)) };
        let slot = slot.borrow();
        match (&slot.state, &slot.open_files) {
            // Sessions open its files at another server.
            (SlotState::Released { cause, by_map: false }, _) => Some(Err(NotOpen::Failed(cause.clone()))),
            (SlotState::Released { by_map: true, .. } | SlotState::MovingAway(_, Gate::Given), _) => None,
            (_, Some(open_files)) => Some(Ok(open_files.clone())),
            (SlotState::MovingAway(..), None) => None,
            (_, None) => Some(Err(NotOpen::Elsewhere)),
        }
    }

    /// Removes an ended session from the open files of all shards.
    pub fn end_session(&self, session: SessionId) {
        self.each(|slot| {
            if let Some(open_files) = &slot.open_files {
                open_files.end_session(session);
            }
        });
    }

    /// Whether no session has something registered at a shard of this worker, or may come back and register it.
    pub fn are_files_closed(&self) -> bool {
        let now = self.now();
        self.slots.iter().all(|slot| {
            let slot = slot.borrow();
            match &slot.open_files {
                Some(open_files) => open_files.is_quiet(now),
                None => matches!(slot.state, SlotState::Elsewhere),
            }
        })
    }

    /// The shards that are open here, those that are moving away and not closed yet included.
    pub fn all_open(&self) -> Vec<Rc<Shard>> {
        let open = |slot: &RefCell<ShardSlot>| match &slot.borrow().state {
            SlotState::Open(shard) | SlotState::MovingAway(shard, Gate::Peers | Gate::Ending) => Some(Rc::clone(shard)),
            _ => None,
        };
        self.slots.iter().filter_map(open).collect()
    }

    /// Whether shards of this worker may have acknowledged changes that are fsynced only when they open.
    pub fn owe_syncs(&self) -> bool {
        let owes = |slot: &ShardSlot| match slot.state {
            SlotState::Waiting | SlotState::Opening => true,
            SlotState::Failed { .. } | SlotState::Refused { .. } => slot.owing.is_some(),
            _ => false,
        };
        self.slots.iter().any(|slot| owes(&slot.borrow()))
    }

    /// All shards for which `test` is true.
    pub(super) fn which(&self, test: impl Fn(&ShardSlot) -> bool) -> Vec<ShardId> {
        let numbered = (0..).map(ShardId).zip(&self.slots);
        numbered.filter(|(_, slot)| test(&slot.borrow())).map(|(shard, _)| shard).collect()
    }

    pub(super) fn each(&self, mut change: impl FnMut(&mut ShardSlot)) {
        self.slots.iter().for_each(|slot| change(&mut slot.borrow_mut()));
    }

    /// A caller requests the shard: it is opened next, unless its opening has begun.
    pub(super) fn prefer(&self, shard: ShardId) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(place) = waiting.iter().position(|waits| *waits == shard) {
            waiting.remove(place);
            waiting.push_front(shard);
        }
    }

    pub(super) fn next(&self) -> Option<ShardId> {
        self.waiting.borrow_mut().pop_front()
    }

    pub(super) fn begin(&self) -> UnderWay {
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(Rc::clone(&self.under_way))
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.get() > 0
    }

    pub(super) fn give_up(&self) {
        self.given_up.set(true);
        self.waiting.borrow_mut().clear();
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// Whether this server has never had the shard open, and so has acknowledged no change in it.
    pub fn never_had(&self, shard: ShardId) -> bool {
        !self.of(shard).had
    }
}

#[cfg(test)]
mod tests;
