//! The decision of a verb in its shard: what it may know about rows and open files, and what becomes of its changes. It
//! does not wait. Of rows it changes only this shard's; a change of several shards goes to [`super::transaction`].

use super::decision::{Decided, DecisionOutcome, TxnContext};
use super::execution::{Execution, RequestAddress};
use super::foreign::Foreign;
use super::garbage;
use super::leases::LeaseKey;
use super::open_files::Openness;
use super::opens_elsewhere::Grant;
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use super::transaction_parts::is_about;
use super::view::ShardView;
use std::cell::{Cell, RefCell};
use varve_env::clock::Instant;
use varve_posix::{Context, Decision, Effect, KeyState, MissingKeys, Refusal, Verb, View};
use varve_schema::{Change, DirectoryMovesRow, Key, ReplyRecord, Row};
use varve_types::{InodeId, SessionId, Timestamp};

impl Shard {
    /// Decides, registers what the session does with the file, and applies changes that affect this shard alone. The
    /// caller that waits for the batch also triggers its commit.
    pub(super) fn decide<V: Verb>(
        &self,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &TxnContext,
        foreign: &Foreign,
    ) -> Result<Decided<V::Outcome>, ShardRefusal> {
        let mut state = self.state.borrow_mut();
        if let Some(cause) = &state.failed {
            return Err(ShardRefusal::Failed(cause.clone()));
        }
        let now = txn.placed_at.unwrap_or_else(|| self.clock.now());
        let files = RefCell::new(DecidedFiles::default());
        let (decision, newest) = {
            let view = ShardView { shard: self, state: &state, foreign, newest: Cell::new(BatchNumber(0)) };
            let is_open = |inode| self.openness(inode, txn, &view, &files) == Openness::Open;
            let may_be_open = |inode| self.openness(inode, txn, &view, &files) != Openness::Closed;
            let context = Context {
                caller: run.caller,
                now,
                fresh: txn.fresh,
                shards: self.settings.shards,
                inline_limit: self.settings.inline_limit,
                is_open: &is_open,
                may_be_open: &may_be_open,
            };
            (verb.decide(&view, &context), view.newest.get())
        };
        let DecidedFiles { unasked, unopened } = files.into_inner();
        let outcome = match decision {
            Err(MissingKeys(keys)) => DecisionOutcome::Missing(keys),
            Ok(_) if !unasked.is_empty() => DecisionOutcome::Unasked(unasked),
            Ok(Decision::Refuse(refusal)) => DecisionOutcome::Refused(refusal),
            Ok(Decision::Answer(outcome)) => DecisionOutcome::Answered(outcome),
            Ok(Decision::Commit { changes, effects, outcome }) => {
                let change = DecidedChange { changes, effects, outcome, unopened, now };
                self.commit_decided(&mut state, run, txn, foreign, change)?
            }
        };
        let grant = match &outcome {
            DecisionOutcome::Refused(refusal) => self.register_decided(run, Err(refusal)),
            DecisionOutcome::Answered(outcome)
            | DecisionOutcome::Done { outcome, .. }
            | DecisionOutcome::Several { outcome, .. } => self.register_decided(run, Ok(outcome)),
            DecisionOutcome::Missing(_)
            | DecisionOutcome::Unasked(_)
            | DecisionOutcome::Leased { .. }
            | DecisionOutcome::FreshElsewhere { .. } => None,
        };
        Ok(Decided { outcome, newest, grant })
    }

    fn commit_decided<O>(
        &self,
        state: &mut ShardState,
        run: &Execution<'_, O>,
        txn: &TxnContext,
        foreign: &Foreign,
        change: DecidedChange<O>,
    ) -> Result<DecisionOutcome<O>, ShardRefusal> {
        let DecidedChange { mut changes, effects, outcome, unopened, now } = change;
        if let Some(cause) = self.takes_no_changes() {
            return Err(ShardRefusal::Failed(cause));
        }
        changes.extend(garbage::rows_for(&effects));
        let number = state.open.number;
        state.size_stale.extend(effects.iter().filter_map(|effect| match effect {
            Effect::SizeStale(inode) => Some((*inode, number)),
            _ => None,
        }));
        let reply = run.record.as_ref().map(|record| ReplyRecord {
            session: record.session,
            slot: record.slot,
            number: record.number,
            about: match run.address {
                RequestAddress::Name(directory, hash) => Some((directory, hash)),
                RequestAddress::Inode(_) => None,
            },
            reply: (record.encode)(&outcome),
        });
        let session = run.record.as_ref().map(|record| record.session);
        if let Err(until) = self.end_leases(state, &changes, session) {
            return Ok(DecisionOutcome::Leased { until });
        }
        let is_here = |change: &Change| self.is_here(state, change);
        let (mut changes, mut elsewhere) = match changes.iter().all(is_here) {
            true => (changes, Vec::new()),
            false => changes.into_iter().partition(is_here),
        };
        if !foreign.is_empty() || !elsewhere.iter().all(|change| is_about(change, txn.fresh)) {
            let moves = |change: &Change| moves_directory(state, foreign, change);
            if changes.iter().chain(&elsewhere).any(moves) {
                let Some(counted) = self.count_directory_move(state, foreign) else {
                    return Ok(DecisionOutcome::Missing(vec![Key::DirectoryMoves]));
                };
                if is_here(&counted) { changes.push(counted) } else { elsewhere.push(counted) }
            }
            return Ok(DecisionOutcome::Several { own: changes, elsewhere, effects, outcome, reply, unopened });
        }
        if !elsewhere.is_empty() && txn.placed.is_none() {
            return Ok(DecisionOutcome::FreshElsewhere { rows: elsewhere, at: now });
        }
        if changes.iter().any(|change| self.must_wait(state, change)) {
            return Err(ShardRefusal::Busy);
        }
        for change in changes {
            self.apply(state, change);
        }
        if let Some(reply) = reply {
            self.remember(state, reply);
        }
        Ok(DecisionOutcome::Done { outcome, effects, batch: state.open.number })
    }

    /// Registers what the session does with the file from this decision on. Returns what another shard must register.
    fn register_decided<O>(&self, run: &Execution<'_, O>, decided: Result<&O, &Refusal>) -> Option<Grant> {
        let registrar = run.registrar.as_ref()?;
        let (writer_gone, grant) = self.register_here((registrar.of)(decided)?);
        registrar.writer_gone.set(writer_gone);
        grant
    }

    /// Whether a file is open, as far as this shard can decide. A file is added to `unasked` if the shard in its number
    /// must be asked first. It is added to `unopened` if its row is at another shard and the decision takes it to be
    /// closed: the prepare call to that shard checks it.
    fn openness(
        &self,
        inode: InodeId,
        txn: &TxnContext,
        view: &ShardView<'_>,
        files: &RefCell<DecidedFiles>,
    ) -> Openness {
        if txn.as_if_open {
            return Openness::Open;
        }
        let own = inode.shard() == self.id;
        let own_answer = || self.open_files.openness(inode, self.clock.monotonic());
        if view.foreign.rows_of(inode).any(|key| self.place(view.state, key) != self.id) {
            let here = if own { own_answer() } else { Openness::Closed };
            if here == Openness::Closed {
                files.borrow_mut().unopened.push(inode);
            }
            return here;
        }
        if own {
            return own_answer();
        }
        txn.asked.openness(inode).unwrap_or_else(|| {
            files.borrow_mut().unasked.push(inode);
            Openness::Open
        })
    }

    /// Ends the leases that changes of rows of this shard invalidate; `Err`: see [`Leases::change`].
    ///
    /// [`Leases::change`]: super::leases::Leases::change
    pub(super) fn end_leases(
        &self,
        state: &ShardState,
        changes: &[Change],
        session: Option<SessionId>,
    ) -> Result<(), Instant> {
        let leased = |change: &Change| match change {
            Change::Put(key, _) | Change::Delete(key) => LeaseKey::changed_by(change, state.resident.seen(key).0),
            Change::Tally { .. } => None,
        };
        let keys: Vec<_> = changes.iter().filter_map(leased).collect();
        self.leases.change(&keys, session, self.clock.monotonic())
    }

    /// The change that excludes other moves of directories. `None`: the row must be fetched first.
    fn count_directory_move(&self, state: &ShardState, foreign: &Foreign) -> Option<Change> {
        let view = ShardView { shard: self, state, foreign, newest: Cell::new(BatchNumber(0)) };
        let count = match view.row(&Key::DirectoryMoves) {
            KeyState::Unknown => return None,
            KeyState::Present(Row::DirectoryMoves(row)) => row.count,
            KeyState::Present(_) | KeyState::Absent => 0,
        };
        let row = DirectoryMovesRow { count: count.wrapping_add(1) };
        Some(Change::put(Key::DirectoryMoves, Row::DirectoryMoves(row)))
    }
}

/// Whether `change` gives a directory another parent.
fn moves_directory(state: &ShardState, foreign: &Foreign, change: &Change) -> bool {
    let Change::Put(key, row) = change else { return false };
    let Row::Directory(row) = &**row else { return false };
    let before = match state.resident.seen(key).0 {
        KeyState::Unknown => foreign.seen(key),
        known => known,
    };
    matches!(before, KeyState::Present(Row::Directory(before)) if before.parent != row.parent)
}

/// A decision to change something.
struct DecidedChange<O> {
    changes: Vec<Change>,
    effects: Vec<Effect>,
    outcome: O,
    unopened: Vec<InodeId>,
    now: Timestamp,
}

/// Files that a decision asked about.
#[derive(Default)]
struct DecidedFiles {
    unasked: Vec<InodeId>,
    unopened: Vec<InodeId>,
}
