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
use super::calls_in_progress::CallsInProgress;
use super::committer::{CommitRound, CommitWork};
use super::garbage::{Garbage, Room};
use super::incoming::IncomingPartitions;
use super::inode_block::InodeBlock;
use super::leases::Leases;
use super::locks::Locks;
use super::open_files::OpenFiles;
use super::opens_elsewhere::OpensElsewhere;
use super::partitions::Partitions;
use super::peers::{PeerChannels, Peers};
use super::refusal::Cause;
use super::replies::Replies;
use super::resident::{BatchNumber, CacheBudget, Resident};
use super::rows::ShardRows;
use super::transaction_state::Transactions;
use super::truncate_queue::TruncateQueues;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_cluster::lease::Lease;
use varve_env::clock::Clock;
use varve_env::key_hash::KeyHashing;
use varve_env::volume_dir::VolumeDir;
use varve_schema::{Change, TransactionId};
use varve_store::{TableConfig, TableError};
use varve_types::{InodeId, PartitionMap, ShardId, VolumeSettings};

pub struct ShardConfig {
    pub id: ShardId,
    pub settings: VolumeSettings,
    pub volume: VolumeDir,
    pub table: TableConfig,
    pub peers: Rc<dyn Peers>,
    pub clock: Arc<dyn Clock>,
    /// Of the server. A shard asks it before it changes a backing file, whose new owner would not notice.
    pub lease: Arc<Lease>,
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
    pub(super) lease: Arc<Lease>,
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
    pub locks: Locks,
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
    pub truncating: TruncateQueues,
    /// Inodes whose rows became *stale* and may not be stale on disk yet, with the last batch that made them so.
    pub size_stale: HashMap<InodeId, BatchNumber>,
    /// Directories whose partition here has grown above the split threshold.
    pub split_wanted: Vec<InodeId>,
    /// Attempts at splits from this shard in this epoch.
    pub splits_begun: u64,
    /// Partitions arriving by splits to this shard.
    pub incoming_partitions: IncomingPartitions,
    /// The table refused a write: this shard serves nothing any more and must be opened again.
    pub failed: Option<Cause>,
    pub closing: bool,
}

impl ShardState {
    /// Locks the keys of `changes` for an undecided transaction and keeps their partitions loaded and unsplit.
    pub fn lock(&mut self, transaction: TransactionId, changes: &[Change]) {
        self.locks.lock(&mut self.partitions, transaction, changes);
    }

    pub fn unlock(&mut self, transaction: TransactionId, changes: &[Change]) {
        self.locks.unlock(&mut self.partitions, transaction, changes);
    }
}

/// How long a request waits for a lock, a load or a split before it fails with `Busy`. Clients retry until their own
/// deadline.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

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
}
