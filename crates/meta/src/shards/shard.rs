//! Runs verbs on one shard: fetch → decide → commit.
//!
//! Invariants:
//! - A verb decides only on rows that are resident when it decides, and does not wait between its last read and its
//!   last change. So one shard needs no locks among its own requests.
//! - The next decision sees the changes of a decision immediately. Clients see them when their batch is appended to the
//!   log: a reply is sent only after the batches that hold the changes it saw or made.
//! - A shard decides on an entry only while its partition is loaded here and the partition's range holds the name.
//! - A key locked by an undecided cross-shard change is hidden from all other requests.

use super::batch::{CommitBatch, Waiter};
use super::committer::{CommitRound, CommitWork};
use super::decide::{Decided, DecisionOutcome, TxnContext};
use super::foreign::Foreign;
use super::garbage::{Garbage, Room};
use super::handover::CallsInProgress;
use super::incoming::IncomingPartition;
use super::inodes::InodeBlock;
use super::leases::Leases;
use super::open_files::{FileUse, OpenFiles};
use super::opens_elsewhere::{Grant, OpensElsewhere};
use super::partitions::Partitions;
use super::peers::{PeerChannels, Peers};
use super::refusal::{Cause, ShardRefusal};
use super::replies::{Replies, SessionChange};
use super::resident::{BatchNumber, CacheBudget, Resident};
use super::rows::ShardRows;
use super::transaction::Transactions;
use super::truncates::TruncateQueue;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::clock::{Clock, Instant};
use varve_env::key_hash::KeyHashing;
use varve_env::stages::{self, Stage};
use varve_env::volume_dir::VolumeDir;
use varve_posix::{KeyState, Refusal, Verb, View};
use varve_schema::{Change, Key, TransactionId};
use varve_store::{TableConfig, TableError};
use varve_types::{Credentials, InodeId, NameHash, PartitionIndex, PartitionMap, SessionId, ShardId, VolumeSettings};

pub struct ShardConfig {
    pub id: ShardId,
    pub settings: VolumeSettings,
    pub volume: VolumeDir,
    pub table: TableConfig,
    pub peers: Rc<dyn Peers>,
    pub clock: Arc<dyn Clock>,
    /// Of the worker.
    pub commits: Rc<CommitRound>,
    /// Outlives the shard: the next opening of it by this server gets the same.
    pub open_files: OpenFiles,
    /// Outlive the shard too.
    pub leases: Leases,
    /// Budget for cached rows of all shards together.
    pub cache: Arc<CacheBudget>,
    /// Budget for the names of loaded partitions of all shards together.
    pub names: Arc<CacheBudget>,
}

pub struct Shard {
    pub(super) id: ShardId,
    pub(super) settings: VolumeSettings,
    pub(super) volume: VolumeDir,
    pub(super) table: ShardRows,
    pub(super) peers: PeerChannels,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) open_files: OpenFiles,
    pub(super) opens_elsewhere: OpensElsewhere,
    pub(super) leases: Leases,
    pub(super) state: RefCell<ShardState>,
    /// Wakes requests when a lock, a load or a split that they wait for has ended, so that they check again.
    pub(super) changed: Notify,
    /// Wakes the committer: the open batch is not empty.
    pub(super) work: CommitWork,
    pub(super) room: Room,
    pub(super) calls: Rc<CallsInProgress>,
}

pub(super) struct ShardState {
    pub resident: Resident,
    /// Rows fetched since the cache was last checked against its budget.
    pub fetched: usize,
    /// Number of readaheads begun, which identifies each one.
    pub reads_ahead: u64,
    /// Number of background reads of a partition's names, which identifies each one.
    pub readings: u64,
    pub partitions: Partitions,
    pub loading: HashSet<InodeId, KeyHashing>,
    pub locks: HashMap<Key, TransactionId, KeyHashing>,
    /// Known maps of directories that were split. Hints.
    pub maps: HashMap<InodeId, PartitionMap, KeyHashing>,
    pub open: CommitBatch,
    pub in_flight: Vec<Waiter>,
    pub appended: BatchNumber,
    pub replies: Replies,
    pub inodes: InodeBlock,
    pub transactions: Transactions,
    /// Inodes of this shard without a name: those with an orphan row.
    pub orphans: HashSet<InodeId>,
    /// Backing files to be removed.
    pub garbage: Garbage,
    /// Queues of truncates, one per file.
    pub truncating: HashMap<InodeId, Rc<TruncateQueue>>,
    /// Inodes whose rows became *stale* and may not be stale on disk yet, with the last batch that made them so.
    pub size_stale: HashMap<InodeId, BatchNumber>,
    /// Directories whose partition here has grown above the split threshold.
    pub split_wanted: Vec<InodeId>,
    /// Attempts at splits from this shard in this epoch.
    pub splits_begun: u64,
    /// Partitions arriving by splits to this shard.
    pub incoming_partitions: HashMap<InodeId, IncomingPartition>,
    /// The table refused a write: this shard serves nothing any more and must be opened again.
    pub failed: Option<Cause>,
    pub closing: bool,
}

/// How long a request waits for a lock, a load or a split before it fails with `Busy`. Clients retry until their own
/// deadline.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

/// Limit on rounds of fetching before a request fails with `Busy`, if its deadline does not come first. It is above the
/// longest chain of keys that name each other (a directory's ancestors, in a cycle check), so that only a request whose
/// rows are dropped as fast as they are fetched reaches it.
const ROUNDS_MAX: usize = 70_000;

/// The source of a new inode's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    Nothing,
    /// A file: an id of this shard.
    File,
    /// A directory: an id of its future home.
    Directory {
        home: ShardId,
    },
}

/// The address by which a request was routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestAddress {
    /// A name of a directory.
    Name(InodeId, NameHash),
    /// An inode's own rows.
    Inode(InodeId),
}

/// The caller, the address and the other parameters of one run of a verb.
pub struct Execution<'a, O> {
    pub caller: &'a Credentials,
    pub address: RequestAddress,
    pub makes: Makes,
    /// For changes of clients: how to record the reply for a retry.
    pub record: Option<ReplyRecorder<'a, O>>,
    /// Registers how the caller's session uses the file, in the step of the decision: another session may remove the
    /// name before the reply is sent, and must find the file open.
    pub registrar: Option<Registrar<'a, O>>,
}

/// Derives from a decision how the session uses a file from then on.
#[derive(Clone, Copy)]
pub struct Registrar<'a, O> {
    pub of: &'a dyn Fn(Result<&O, &Refusal>) -> Option<FileUse>,
    /// Set as [`OpenFiles::register`] returns it.
    pub writer_gone: &'a Cell<bool>,
}

impl<O> Execution<'_, O> {
    fn asked(&self) -> Option<SessionChange> {
        self.record.as_ref().map(|record| SessionChange {
            session: record.session,
            slot: record.slot,
            number: record.number,
        })
    }
}

/// The identity of a change, and how its reply is encoded on the wire.
pub struct ReplyRecorder<'a, O> {
    pub session: SessionId,
    pub slot: u32,
    pub number: u64,
    pub encode: &'a dyn Fn(&O) -> Bytes,
}

/// A verb's view: this shard's resident rows and the rows fetched from other shards.
pub(super) struct ShardView<'a> {
    pub shard: &'a Shard,
    pub state: &'a ShardState,
    pub foreign: &'a Foreign,
    /// The latest batch that holds a change of a row shown.
    pub newest: Cell<BatchNumber>,
}

impl View for ShardView<'_> {
    fn row(&self, key: &Key) -> KeyState<'_> {
        if self.shard.place(self.state, key) != self.shard.id {
            return self.foreign.seen(key);
        }
        let (seen, changed_in) = self.shard.seen_here(self.state, key);
        self.newest.set(self.newest.get().max(changed_in));
        seen
    }

    fn partition_of(&self, directory: InodeId, hash: NameHash) -> PartitionIndex {
        self.shard.partition_of(self.state, directory, hash)
    }
}

impl Shard {
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// The leases on rows of this shard.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Whether this is a read-only view of the last owner's state.
    pub fn is_read_only(&self) -> bool {
        matches!(self.table, ShardRows::ReadOnly(..))
    }

    /// The cause to report for changes to a read-only shard.
    pub(super) fn takes_no_changes(&self) -> Option<Cause> {
        match &self.table {
            ShardRows::Own(_) => None,
            ShardRows::ReadOnly(_, errno) => {
                let error = TableError::ReadOnly { shard: self.id, errno: *errno };
                Some(Cause { errno: *errno, reason: error.to_string() })
            }
        }
    }

    /// Why this shard must be opened again, or `None`.
    pub fn failed(&self) -> Option<Cause> {
        self.state.borrow().failed.clone()
    }

    /// Runs one verb to its end. Rarely needed futures are boxed to keep the others small, because a request's future
    /// is moved into its slot when it arrives. `Ok` and `Err` are returned once the batches they depend on are
    /// appended.
    pub async fn run<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: Execution<'_, V::Outcome>,
    ) -> Result<V::Outcome, ShardRefusal> {
        let fresh = match run.makes {
            Makes::Nothing => InodeId::ROOT,
            Makes::File => self.fresh_inode().await?,
            Makes::Directory { home } => Box::pin(self.fresh_inode_of(home)).await?,
        };
        self.run_on(verb, &run, TxnContext::of(fresh)).await
    }

    /// Runs a verb to its end, continuing from the state in `txn`.
    pub(super) async fn run_on<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        mut txn: TxnContext,
    ) -> Result<V::Outcome, ShardRefusal> {
        let result = self.run_with(verb, run, &mut txn).await;
        // Once decided, the name may still reach the log, whatever was replied.
        if result.is_err()
            && !txn.named
            && let Some(placed) = txn.placed
        {
            Box::pin(self.withdraw(txn.fresh, placed)).await;
        }
        result
    }

    async fn run_with<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &mut TxnContext,
    ) -> Result<V::Outcome, ShardRefusal> {
        let deadline = self.clock.monotonic().after(WAIT_MAX);
        loop {
            let attempted = self.attempt(verb, run, txn, deadline).await;
            if let Some(held) = txn.held.take() {
                Box::pin(self.let_go(held)).await;
            }
            match attempted {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(ShardRefusal::Busy) if self.clock.monotonic() < deadline => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Decides on all rows and answers that the decision needs. The caller continues in the same step.
    async fn decide_on_rows<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &mut TxnContext,
        deadline: Instant,
    ) -> Result<(Decided<V::Outcome>, Foreign), ShardRefusal> {
        let mut foreign = Foreign::default();
        let mut rounds = 0;
        loop {
            self.check_address(run.address).await?;
            let decided = self.decide(verb, run, txn, &foreign)?;
            let waits = matches!(decided.outcome, DecisionOutcome::Missing(_) | DecisionOutcome::Unasked(_));
            if waits && (rounds >= ROUNDS_MAX || (rounds > 0 && self.clock.monotonic() >= deadline)) {
                return Err(ShardRefusal::Busy);
            }
            rounds += 1;
            match decided.outcome {
                DecisionOutcome::Missing(keys) => {
                    let _passage = stages::enter(Stage::Fetch);
                    let removal = V::REMOVES_DIRECTORY.then_some(&mut txn.held);
                    Box::pin(self.fetch(keys, &mut foreign, removal)).await?;
                }
                DecisionOutcome::Unasked(inodes) => Box::pin(self.ask_openness(inodes, &mut txn.asked)).await?,
                _ => return Ok((decided, foreign)),
            }
        }
    }

    /// One round of fetch, decide, commit. `None`: decide again, because the rows of a fresh inode were stored at their
    /// home, or because leases of other sessions have ended.
    async fn attempt<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &mut TxnContext,
        deadline: Instant,
    ) -> Result<Option<V::Outcome>, ShardRefusal> {
        let (decided, foreign) = self.decide_on_rows(verb, run, txn, deadline).await?;
        let Decided { outcome: decided, newest, grant } = decided;
        let (outcome, effects) = match decided {
            DecisionOutcome::Missing(_) | DecisionOutcome::Unasked(_) => return Err(ShardRefusal::Busy),
            DecisionOutcome::Leased { until } => {
                tokio::time::sleep(until.since(self.clock.monotonic())).await;
                return Ok(None);
            }
            // A name may be replaced between two reads. A second read finds another inode, unless the first one is
            // lost.
            DecisionOutcome::Refused(Refusal::Torn(inode)) if !foreign.is_empty() && txn.torn != Some(inode) => {
                txn.torn = Some(inode);
                return Err(ShardRefusal::Busy);
            }
            DecisionOutcome::Refused(refusal) => {
                self.appended(newest).await?;
                self.register_granted(run, grant).await?;
                return Err(refusal.into());
            }
            DecisionOutcome::Answered(outcome) => {
                self.appended(newest).await?;
                self.register_granted(run, grant).await?;
                return Ok(Some(outcome));
            }
            DecisionOutcome::Done { outcome, effects, batch } => {
                txn.named = true;
                let done = match self.appended(batch).await {
                    Ok(()) => self.register_granted(run, grant).await,
                    failed => failed,
                };
                if let Err(refusal) = done {
                    // If the store only hangs, the change is still written later; its effects are not carried out.
                    self.give_up_all(effects, run.asked(), &refusal);
                    return Err(refusal);
                }
                (outcome, effects)
            }
            DecisionOutcome::FreshElsewhere { rows, at } => {
                txn.placed = Some(rows.iter().filter_map(Change::put_key).cloned().collect());
                txn.placed_at = Some(at);
                let placed = Box::pin(self.place_fresh(txn.fresh, rows)).await;
                if placed == Err(ShardRefusal::Busy) {
                    txn.placed = None;
                }
                return placed.map(|()| None);
            }
            DecisionOutcome::Several { own, elsewhere, effects, outcome, reply, unopened } => {
                let sorted = self.sort((own, elsewhere), &foreign, &unopened, txn.held.as_ref());
                let committed = Box::pin(self.commit_over_shards(sorted, &mut txn.held, reply)).await;
                // A session may have opened the file in the meantime. If the file is taken to be open and is not, it is
                // an orphan for a moment.
                txn.as_if_open |= matches!(committed, Err(ShardRefusal::Busy));
                // After any other error the change may be decided.
                txn.named |= !matches!(committed, Err(ShardRefusal::Busy));
                committed?;
                self.register_granted(run, grant).await?;
                (outcome, effects)
            }
        };
        if !effects.is_empty() {
            Box::pin(self.perform(effects, run.asked())).await?;
        }
        Ok(Some(outcome))
    }

    /// Registers the use of a file at the shard in its number, if that is another one, before the reply is sent.
    async fn register_granted<O>(
        self: &Rc<Self>,
        run: &Execution<'_, O>,
        grant: Option<Grant>,
    ) -> Result<(), ShardRefusal> {
        let (Some(grant), Some(registrar)) = (grant, &run.registrar) else { return Ok(()) };
        registrar.writer_gone.set(Box::pin(self.register_elsewhere(grant)).await?);
        // A split may have taken the row away meanwhile, and then the file may have been removed as not open.
        self.check_address(run.address).await
    }

    // Rules for showing and changing rows.

    /// A row of this shard as it may be shown.
    pub(super) fn seen_here<'s>(&self, state: &'s ShardState, key: &Key) -> (KeyState<'s>, BatchNumber) {
        const UNKNOWN: (KeyState<'static>, BatchNumber) = (KeyState::Unknown, BatchNumber(0));
        if !state.locks.is_empty() && state.locks.contains_key(key) {
            return UNKNOWN;
        }
        match key {
            Key::Entry(directory, name) => {
                let Some(partition) = state.partitions.get(*directory) else { return UNKNOWN };
                if partition.holds_name(name) {
                    return UNKNOWN;
                }
                match state.resident.seen(key) {
                    UNKNOWN if !partition.names.may_hold(name.hash()) => (KeyState::Absent, partition.changed_in),
                    known => known,
                }
            }
            Key::Partition(directory, _) => match state.resident.seen(key) {
                (KeyState::Present(_), _) if state.partitions.get(*directory).is_none() => UNKNOWN,
                known => known,
            },
            _ => state.resident.seen(key),
        }
    }

    /// Whether an undecided cross-shard change or the final phase of a split hides a row of this shard.
    pub(super) fn is_hidden(&self, state: &ShardState, key: &Key) -> bool {
        let held = match key {
            Key::Entry(directory, name) => state.partitions.get(*directory).is_some_and(|p| p.holds_name(name)),
            _ => false,
        };
        held || state.locks.contains_key(key)
    }

    /// Whether `change` conflicts with an undecided cross-shard change, with the final phase of a split, or with an open
    /// that is being registered at another shard.
    pub(super) fn must_wait(&self, state: &ShardState, change: &Change) -> bool {
        match change {
            Change::Put(key, _) | Change::Delete(key) => {
                let partition = match key {
                    Key::Entry(directory, _) | Key::Partition(directory, _) => state.partitions.get(*directory),
                    _ => None,
                };
                let tallied = matches!(key, Key::Partition(..))
                    && partition.is_some_and(|p| p.pending_tallies > 0 || p.split.is_some());
                let held = matches!(key, Key::Entry(_, name) if partition.is_some_and(|p| p.holds_name(name)));
                state.locks.contains_key(key) || tallied || held || self.is_being_opened(state, key)
            }
            Change::Tally { directory, name, .. } => {
                state.locks.contains_key(&Key::Partition(*directory, self.index_here(*directory)))
                    || state.partitions.get(*directory).is_some_and(|p| p.holds_name(name))
            }
        }
    }
}
