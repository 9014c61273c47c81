//! Opening and closing a shard: from a table to a running shard, and back.

use super::batch::CommitBatch;
use super::committer::CommitWork;
use super::effects::reap_leftovers;
use super::garbage::{Garbage, Room};
use super::incoming::IncomingPartitions;
use super::inode_block::InodeBlock;
use super::locks::Locks;
use super::opens_elsewhere::OpensElsewhere;
use super::partitions::Partitions;
use super::peers::{PeerChannels, ShardTerm};
use super::refusal::ShardRefusal;
use super::replies::{Replied, Replies};
use super::resident::{BatchNumber, Resident};
use super::rows::ShardRows;
use super::shard::{Shard, ShardConfig, ShardState};
use super::transaction_state::Transactions;
use super::truncate_queue::TruncateQueues;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use tokio::sync::Notify;
use varve_schema::codec;
use varve_schema::{Key, Kind, Row};
use varve_store::{Table, TableError, TableReader};
use varve_types::{Epoch, Errno, SessionId};

#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("{0}")]
    Refused(#[from] ShardRefusal),
    #[error("shard {0} has a damaged row, {1}; run `varve fsck` on the volume")]
    Damaged(varve_types::ShardId, String),
}

impl ShardError {
    /// The errno that callers get.
    pub fn errno(&self) -> Errno {
        match self {
            ShardError::Table(error) => error.errno(),
            ShardError::Refused(ShardRefusal::Failed(cause)) => cause.errno,
            ShardError::Refused(_) | ShardError::Damaged(..) => Errno::EIO,
        }
    }
}

/// Inode counters below this are never allocated: 0 is no inode, 1 is the root.
const FIRST_INODE_COUNTER: u64 = 2;

impl Shard {
    /// Opens the table, claims its next epoch, and restores the state of the last owner. Must run on a `LocalSet`. The
    /// shard serves requests as soon as this returns. Undecided changes of the last epoch stay locked until their
    /// coordinators have been asked.
    pub async fn open(config: ShardConfig) -> Result<Rc<Shard>, ShardError> {
        // Sessions register their open files also while the shard cannot be opened.
        config.open_files.shard_opens(config.clock.monotonic());
        let table = Table::open(config.table.clone()).await?;
        config.open_files.enter_term(table.epoch());
        let shard = Shard::on(ShardRows::Own(table), config);
        tokio::task::spawn_local(shard.work.task(shard.clone().commit_batches()));
        shard.restore().await?;
        tokio::task::spawn_local(shard.clone().collect_garbage());
        Ok(shard)
    }

    /// Opens a read-only recovery view of the last owner's state. It claims nothing and writes nothing, so it works
    /// where [`Shard::open`] does not. Rows locked by a change of unknown outcome stay hidden; reads of these rows and
    /// all changes fail with `errno`. While this view is in use, no process may own the shard.
    pub async fn open_read_only(config: ShardConfig, errno: Errno) -> Result<Rc<Shard>, ShardError> {
        let reader = TableReader::open(&config.table).await?;
        let shard = Shard::on(ShardRows::ReadOnly(Box::new(reader), errno), config);
        for (key, row) in shard.rows_of(Kind::Intent).await? {
            if let (Key::Intent(transaction), Row::Intent(intent)) = (key, row) {
                shard.lock_for(transaction, &intent);
            }
        }
        Ok(shard)
    }

    fn on(table: ShardRows, config: ShardConfig) -> Rc<Shard> {
        let state = ShardState {
            resident: Resident::new(config.cache),
            fetched: 0,
            reads_ahead: 0,
            readings: 0,
            partitions: Partitions::new(config.names),
            loading: HashSet::default(),
            locks: Locks::default(),
            maps: HashMap::default(),
            open: CommitBatch::first(),
            in_flight: Vec::new(),
            appended: BatchNumber(0),
            replies: Replies::default(),
            inodes: InodeBlock::after(FIRST_INODE_COUNTER),
            transactions: Transactions::default(),
            orphans: HashSet::new(),
            garbage: Garbage::default(),
            truncating: TruncateQueues::default(),
            size_stale: HashMap::new(),
            split_wanted: Vec::new(),
            splits_begun: 0,
            incoming_partitions: IncomingPartitions::default(),
            failed: None,
            closing: false,
        };
        let own = ShardTerm { shard: config.id, term: table.epoch() };
        let only_reads = matches!(table, ShardRows::ReadOnly(..));
        Rc::new(Shard {
            id: config.id,
            peers: PeerChannels::new(config.peers, own, config.settings.shards, only_reads),
            settings: config.settings,
            volume: config.volume,
            table,
            clock: config.clock,
            lease: config.lease,
            open_files: config.open_files,
            opens_elsewhere: OpensElsewhere::default(),
            leases: config.leases,
            state: RefCell::new(state),
            changed: Notify::new(),
            work: CommitWork::new(config.commits),
            calls: Rc::default(),
            room: Room::of(config.table.store.reserve().cloned()),
        })
    }

    async fn restore(self: &Rc<Self>) -> Result<(), ShardError> {
        for (_, row) in self.rows_of(Kind::Counter).await? {
            if let Row::Counter(counter) = row {
                self.state.borrow_mut().inodes = InodeBlock::after(counter.inodes_end);
            }
        }
        let now = self.clock.monotonic();
        for (key, row) in self.rows_of(Kind::Replies).await? {
            if let Row::Replies(records) = row {
                self.state.borrow_mut().replies.restore(key, records, now);
            }
        }
        for kind in [Kind::Intent, Kind::Decision] {
            for (key, row) in self.rows_of(kind).await? {
                self.restore_transaction(key, row);
            }
        }
        for (key, _) in self.rows_of(Kind::Garbage).await? {
            if let Key::Garbage(inode) = key {
                self.state.borrow_mut().garbage.add(inode);
            }
        }
        for (key, _) in self.rows_of(Kind::Orphan).await? {
            if let Key::Orphan(inode) = key {
                self.state.borrow_mut().orphans.insert(inode);
            }
        }
        tokio::task::spawn_local(reap_leftovers(Rc::downgrade(self)));
        Ok(())
    }

    /// All rows of a kind that has few rows.
    pub(super) async fn rows_of(&self, kind: Kind) -> Result<Vec<(Key, Row)>, ShardError> {
        let range = codec::keys_of(kind);
        let mut cursor = self.table.scan(range.start.into(), range.end.into()).await?;
        let mut rows = Vec::new();
        while let Some((key, row)) = cursor.next().await? {
            rows.push(codec::decode(&key, &row).map_err(|error| ShardError::Damaged(self.id, error.to_string()))?);
        }
        Ok(rows)
    }

    /// Writes all decided changes, fsyncs, and closes the table. Later requests fail.
    pub async fn close(self: Rc<Self>) -> Result<(), ShardError> {
        self.collect_last_garbage().await;
        let batch = self.state.borrow().open.number;
        let written = match self.appended(batch).await {
            Ok(()) => self.sync().await,
            Err(refusal) => Err(refusal),
        };
        self.end();
        // A failed table is closed too, or its tasks would outlive it.
        let closed = self.table.close().await;
        written?;
        Ok(closed?)
    }

    /// Ends all requests that wait, and refuses later ones.
    pub(super) fn end(&self) {
        let mut state = self.state.borrow_mut();
        state.closing = true;
        state.failed.get_or_insert_with(|| format!("shard {} is closed", self.id).into());
        drop(state);
        self.work.notify_one();
        self.changed.notify_waiters();
    }

    /// The epoch of this ownership; in a read-only view, of the last one.
    pub fn epoch(&self) -> Epoch {
        self.table.epoch()
    }

    /// Closes a shard that was opened read-only. Reads in progress fail.
    pub async fn close_read_only(&self) {
        if let Err(error) = self.table.close().await {
            tracing::debug!("the read-only view of shard {} was not closed cleanly: {error}", self.id);
        }
    }

    /// Drops what is registered of a session that has ended.
    pub fn end_session(self: &Rc<Self>, session: SessionId) {
        self.state.borrow_mut().replies.end_session(session);
        let closed = self.open_files.end_session(session);
        if !self.is_read_only() {
            closed.into_iter().for_each(|inode| self.reap_if_orphan(inode));
        }
    }

    /// The reply already given to a change, for a retry.
    pub fn find_reply(&self, session: SessionId, slot: u32, number: u64) -> Option<Replied> {
        self.state.borrow().replies.find(session, slot, number)
    }

    /// Whether a transaction that may be the latest change of this slot is being recovered. A retry of that change must
    /// not be decided anew before the recovery has ended.
    pub fn is_recovering(&self, session: SessionId, slot: u32) -> bool {
        self.state.borrow().transactions.is_recovering(session, slot)
    }

    /// The reply for a retry, once it may be sent: if the store hangs, the first attempt ends before its change is in
    /// the log.
    pub async fn reply_again(&self, replied: Replied) -> Result<bytes::Bytes, ShardRefusal> {
        self.appended(replied.batch).await?;
        Ok(replied.body)
    }

    /// Reads of rows since the last call: found in memory, and fetched.
    pub fn take_row_uses(&self) -> (u64, u64) {
        self.state.borrow().resident.take_uses()
    }

    /// The shard's figures in `varve status`.
    pub fn status(&self) -> ShardFigures {
        let state = self.state.borrow();
        ShardFigures {
            epoch: self.table.epoch(),
            partitions_loaded: state.partitions.len() as u64,
            names_loaded: state.partitions.names() as u64,
            cache_bytes: state.resident.bytes() as u64,
            open_files: self.open_files.len() as u64,
            leases: self.leases.held() as u64,
            log_bytes_unsynced: self.table.unsynced_bytes(),
            transactions_open: state.transactions.open() as u64,
            backing_files_to_remove: state.garbage.len() as u64,
        }
    }
}

/// Figures of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardFigures {
    pub epoch: Epoch,
    pub partitions_loaded: u64,
    pub names_loaded: u64,
    pub cache_bytes: u64,
    /// Of the inodes that the shard created.
    pub open_files: u64,
    /// Leases that were granted and not yet forgotten; some may have ended.
    pub leases: u64,
    pub log_bytes_unsynced: u64,
    pub transactions_open: u64,
    pub backing_files_to_remove: u64,
}
