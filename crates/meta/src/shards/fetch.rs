//! Makes rows of this shard resident and fetches those of other shards.

use super::execution::RequestAddress;
use super::foreign::Foreign;
use super::names::{NameSet, PartitionNames};
use super::partitions::Partition;
use super::peers::{PeerCall, PeerReply, SplitState, unexpected};
use super::refusal::{Cause, ShardRefusal};
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use super::transaction_parts::PreparedRemoval;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use varve_posix::KeyState;
use varve_schema::codec;
use varve_schema::{Key, PartitionRow, PartitionState, Row};
use varve_store::{Cursor, TableError};
use varve_types::{Errno, InodeId, NameHash, PartitionIndex, PartitionMap, ShardId};

/// The names of a partition with at most this many entries are read before it serves requests, which takes some
/// milliseconds. The names of a larger partition are read while it serves requests; until then, creates read the table
/// to check that a name is free. The value is small in unit tests, so that they cover both.
const NAMES_AT_ONCE: u64 = if cfg!(test) { 16 } else { 8 * 1024 };

/// Names read before other tasks of the worker get their turn, measured at 0.7 ms for a partition of a million names,
/// and the length of their turn while names are read: a create takes several turns.
const NAMES_A_TURN: usize = if cfg!(test) { 16 } else { 256 };
const TURN_OF_OTHERS: Duration = Duration::from_millis(1);

impl Shard {
    /// Refuses requests that were routed to the wrong shard.
    pub(super) async fn check_address(self: &Rc<Self>, address: RequestAddress) -> Result<(), ShardRefusal> {
        match address {
            RequestAddress::Name(directory, hash) => self.check_name_is_here(directory, hash).await,
            RequestAddress::Inode(inode) if inode.shard() == self.id => Ok(()),
            RequestAddress::Inode(_) => Err(Errno::ESTALE.into()),
        }
    }

    /// Loads the partition that should hold `hash` here. `Moved` if another shard holds it, `ENOENT` if there is no
    /// such directory.
    async fn check_name_is_here(self: &Rc<Self>, directory: InodeId, hash: NameHash) -> Result<(), ShardRefusal> {
        if self.state.borrow().partitions.get(directory).is_some_and(|partition| partition.serves(hash)) {
            return Ok(());
        }
        Box::pin(self.find_name(directory, hash)).await
    }

    async fn find_name(self: &Rc<Self>, directory: InodeId, hash: NameHash) -> Result<(), ShardRefusal> {
        if !self.is_loaded(directory) {
            self.load_partition(directory).await?;
            // A cross-shard change that is decided but not yet carried out here may be creating the partition: a client
            // whose call recreated a directory (`varve_posix::ReviveDirectory`) asks for its entries immediately.
            let key = Key::Partition(directory, self.index_here(directory));
            let locked = |state: &ShardState| state.locks.holder(&key);
            if !self.is_loaded(directory) && self.wait_while_locked(locked).await? {
                self.load_partition(directory).await?;
            }
        }
        let newer_map = {
            let state = self.state.borrow();
            match self.partition_here(&state, directory) {
                Some(row) if row.index.range(row.depth).contains(hash) => return Ok(()),
                Some(row) => {
                    let mut map = row.map.clone();
                    state.maps.get(&directory).inspect(|known| map.merge(known));
                    Some(map)
                }
                None => None,
            }
        };
        match newer_map {
            Some(map) => Err(ShardRefusal::Moved { directory, map }),
            None if self.id == directory.shard() => Err(Errno::ENOENT.into()),
            None => {
                let map = self.map_from_home(directory).await?;
                match map.shard_of(directory.shard(), hash) {
                    shard if shard == self.id => Err(ShardRefusal::Busy),
                    _ => Err(ShardRefusal::Moved { directory, map }),
                }
            }
        }
    }

    async fn map_from_home(&self, directory: InodeId) -> Result<PartitionMap, ShardRefusal> {
        match self.peers.call(directory.shard(), PeerCall::Map(directory)).await {
            PeerReply::Map(map) => {
                self.learn_map(&mut self.state.borrow_mut(), directory, &map);
                Ok(map)
            }
            PeerReply::Absent => Err(Errno::ENOENT.into()),
            PeerReply::Busy => Err(ShardRefusal::Busy),
            other => Err(unexpected(other, format_args!("home of directory {directory} did not answer its map"))),
        }
    }

    fn is_loaded(&self, directory: InodeId) -> bool {
        let state = self.state.borrow();
        self.partition_here(&state, directory).is_some()
    }

    /// Gets rows that a verb must see. For the removal of a directory, its rows are prepared for removal if possible.
    pub(super) async fn fetch(
        self: &Rc<Self>,
        keys: Vec<Key>,
        foreign: &mut Foreign,
        mut removal: Option<&mut Option<PreparedRemoval>>,
    ) -> Result<(), ShardRefusal> {
        let mut elsewhere: BTreeMap<ShardId, Vec<Key>> = BTreeMap::new();
        for key in keys {
            let shard = self.place(&self.state.borrow(), &key);
            if shard == self.id {
                self.fetch_here(&key).await?;
            } else {
                elsewhere.entry(shard).or_default().push(key);
            }
        }
        for (shard, keys) in elsewhere {
            let reply = match &mut removal {
                Some(held) if held.is_none() => self.fetch_to_remove(shard, keys.clone(), held).await,
                _ => self.peers.call(shard, PeerCall::Fetch(keys.clone())).await,
            };
            match reply {
                PeerReply::Rows(rows) => keys.into_iter().zip(rows).for_each(|(key, row)| foreign.insert(key, row)),
                PeerReply::Moved(directory, map) => {
                    self.learn_map(&mut self.state.borrow_mut(), directory, &map);
                    foreign.forget_names(directory);
                }
                PeerReply::Busy => return Err(ShardRefusal::Busy),
                PeerReply::Absent => return Err(Errno::ENOENT.into()),
                other => return Err(unexpected(other, format_args!("shard {shard} did not answer"))),
            }
        }
        Ok(())
    }

    /// Makes a row of this shard resident, after any change or split that hides it has ended.
    pub(super) async fn fetch_here(self: &Rc<Self>, key: &Key) -> Result<(), ShardRefusal> {
        self.wait_while_locked(|state| state.locks.holder(key)).await?;
        match key {
            Key::Partition(directory, _) => self.load_partition(*directory).await,
            Key::Entry(directory, name) => {
                self.check_name_is_here(*directory, name.hash()).await?;
                let held = |state: &ShardState| state.partitions.get(*directory).is_some_and(|p| p.holds_name(name));
                if held(&self.state.borrow()) {
                    self.wait_until(|state| !held(state)).await?;
                    return Ok(());
                }
                self.read_row(key).await
            }
            _ => self.read_row(key).await,
        }
    }

    /// Reads a row from the table into memory, unless it is there, together with the rows that a listing reads next
    /// ([`super::readahead`]).
    pub(super) async fn read_row(&self, key: &Key) -> Result<(), ShardRefusal> {
        if !self.state.borrow_mut().resident.begin_fetch(key) {
            return self.wait_until(|state| !state.resident.is_fetching(key)).await;
        }
        let readahead = self.begin_readahead(&mut self.state.borrow_mut(), key);
        let read = match readahead {
            Some(readahead) => Box::pin(self.run_readahead(key, readahead)).await,
            None => self.read_table(key).await,
        };
        let mut state = self.state.borrow_mut();
        let result = match read {
            Ok(row) => {
                state.resident.end_fetch(key, row);
                self.shrink_after_fetch(&mut state);
                Ok(())
            }
            Err(refusal) => {
                state.resident.abandon_fetch(key);
                Err(refusal)
            }
        };
        drop(state);
        self.changed.notify_waiters();
        result
    }

    pub(super) async fn read_table(&self, key: &Key) -> Result<Option<Row>, ShardRefusal> {
        let bytes = self.table.get(&codec::encode_key(key)).await.map_err(|error| self.unreadable(error))?;
        let decoded = bytes.map(|bytes| codec::decode_row(key.kind(), &bytes)).transpose();
        let damaged = |error| format!("shard {}: the row of {key:?} is damaged: {error}", self.id);
        decoded.map_err(|error| ShardRefusal::Failed(damaged(error).into()))
    }

    /// The row as last decided, whether or not it is in the table yet.
    pub(super) async fn decided_row(&self, key: &Key) -> Result<Option<Row>, ShardRefusal> {
        let seen = match self.state.borrow().resident.seen(key).0 {
            KeyState::Present(row) => Some(Some(row.clone())),
            KeyState::Absent => Some(None),
            KeyState::Unknown => None,
        };
        match seen {
            Some(row) => Ok(row),
            None => self.read_table(key).await,
        }
    }

    pub(super) fn unreadable(&self, error: TableError) -> ShardRefusal {
        let next = if error.is_damage() { "; stop the server and run `varve fsck` on the volume" } else { "" };
        ShardRefusal::Failed(Cause {
            errno: error.errno(),
            reason: format!("shard {} cannot read: {error}{next}", self.id),
        })
    }

    /// Loads the partition of `directory` in this shard, with its names, if there is one.
    pub(super) async fn load_partition(self: &Rc<Self>, directory: InodeId) -> Result<(), ShardRefusal> {
        let key = Key::Partition(directory, self.index_here(directory));
        let mine = {
            let mut state = self.state.borrow_mut();
            let known = match state.resident.seen(&key).0 {
                KeyState::Unknown => false,
                KeyState::Absent => key_is_final(&key),
                KeyState::Present(_) => self.partition_here(&state, directory).is_some(),
            };
            if known {
                return Ok(());
            }
            state.loading.insert(directory)
        };
        if !mine {
            return self.wait_until(|state| !state.loading.contains(&directory)).await;
        }
        let loaded = self.load_partition_alone(directory, &key).await;
        self.state.borrow_mut().loading.remove(&directory);
        self.changed.notify_waiters();
        loaded
    }

    async fn load_partition_alone(self: &Rc<Self>, directory: InodeId, key: &Key) -> Result<(), ShardRefusal> {
        let resident = match self.state.borrow().resident.seen(key).0 {
            KeyState::Present(Row::Partition(row)) => Some(row.clone()),
            _ => None,
        };
        let row = match resident {
            Some(row) => Some(row),
            None => match self.read_table(key).await? {
                Some(Row::Partition(row)) => Some(row),
                _ => None,
            },
        };
        let (row, settled_in, arrived) = match row {
            Some(row) if row.state == PartitionState::Incoming => {
                let (row, settled_in) = self.finish_import(directory, row.index).await?;
                (row, settled_in, self.arrived_names(directory))
            }
            Some(row) => (row, BatchNumber(0), None),
            None => {
                if !key_is_final(key) {
                    self.ask_source(directory, self.index_here(directory)).await?;
                }
                self.state.borrow_mut().resident.end_fetch(key, None);
                return Ok(());
            }
        };
        let names = match arrived {
            Some(names) => PartitionNames::Known(names),
            None => {
                if row.depth > 0 && !self.is_read_only() {
                    self.purge_moved_rows(directory, row.index.range(row.depth));
                }
                self.load_names(directory, &row).await?
            }
        };
        let mut state = self.state.borrow_mut();
        if self.is_too_large(&row) {
            // It grew above the threshold just before it arrived here, or its owner ended before the split.
            state.split_wanted.push(directory);
            self.work.notify_one();
        }
        if let PartitionNames::Gathered { number, .. } = &names {
            tokio::task::spawn_local(self.clone().gather_names(directory, row.clone(), *number));
        }
        let mut partition = Partition::new(&row, names);
        partition.pending_tallies = state.transactions.pins_of(directory);
        state.partitions.insert(directory, partition);
        self.learn_map(&mut state, directory, &row.map);
        // The row cannot have changed in the meantime: it was not loaded, and only one request loads it.
        let changed_in = state.resident.seen(key).1.max(settled_in);
        state.resident.set(key.clone(), Some(Box::new(Row::Partition(row))), changed_in);
        Ok(())
    }

    /// The names of a partition that serves no requests yet. For a large one the set is empty: see
    /// [`Shard::gather_names`].
    async fn load_names(&self, directory: InodeId, row: &PartitionRow) -> Result<PartitionNames, ShardRefusal> {
        if row.entries > NAMES_AT_ONCE {
            let mut state = self.state.borrow_mut();
            if !state.partitions.has_room_for(row.entries) {
                return Ok(PartitionNames::Unknown);
            }
            state.readings += 1;
            return Ok(PartitionNames::Gathered { number: state.readings, so_far: NameSet::default() });
        }
        let mut cursor = self.cursor_of_names(directory, row).await?;
        let mut names = NameSet::default();
        loop {
            let read = self.read_names(&mut cursor).await?;
            if read.is_empty() {
                return Ok(PartitionNames::Known(names));
            }
            read.into_iter().for_each(|hash| names.insert(hash));
            tokio::task::yield_now().await;
        }
    }

    /// Reads the names of a partition while it serves requests. The partition records changes from here on, and earlier
    /// changes are in the table when the read begins, so each name is counted at least once.
    async fn gather_names(self: Rc<Self>, directory: InodeId, row: PartitionRow, reading: u64) {
        let gathered = self.gather_names_in_turns(directory, &row, reading).await;
        let mut state = self.state.borrow_mut();
        // If the partition was unloaded or removed in the meantime, its names are not needed.
        let Some(partition) = state.partitions.get_mut(directory) else { return };
        let Some(so_far) = partition.names.gathered(reading) else { return };
        partition.names = match gathered {
            Ok(true) => PartitionNames::Known(std::mem::take(so_far)),
            Ok(false) => return,
            Err(refusal) => {
                tracing::warn!(
                    "shard {}: the names of directory {directory} are not kept in memory: {refusal}",
                    self.id
                );
                PartitionNames::Unknown
            }
        };
    }

    /// Returns whether all names were read.
    async fn gather_names_in_turns(
        &self,
        directory: InodeId,
        row: &PartitionRow,
        reading: u64,
    ) -> Result<bool, ShardRefusal> {
        if !self.is_read_only() {
            let batch = self.state.borrow().open.number;
            self.appended_with_work(batch).await?;
        }
        let mut cursor = self.cursor_of_names(directory, row).await?;
        loop {
            let mut read = self.read_names(&mut cursor).await?;
            if read.is_empty() {
                return Ok(true);
            }
            {
                let mut state = self.state.borrow_mut();
                let Some(partition) = state.partitions.get_mut(directory) else { return Ok(false) };
                // Names that a split has moved in the meantime belong to another shard.
                read.retain(|hash| partition.serves(*hash));
                let Some(so_far) = partition.names.gathered(reading) else { return Ok(false) };
                read.into_iter().for_each(|hash| so_far.insert(hash));
            }
            if self.stopping() {
                return Ok(false);
            }
            tokio::time::sleep(TURN_OF_OTHERS).await;
        }
    }

    async fn cursor_of_names(&self, directory: InodeId, row: &PartitionRow) -> Result<Cursor, ShardRefusal> {
        let bytes = codec::entries_of(directory, row.index.range(row.depth));
        self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))
    }

    /// The hashes of the names in the next turn; empty at the end.
    async fn read_names(&self, cursor: &mut Cursor) -> Result<Vec<NameHash>, ShardRefusal> {
        let mut read = Vec::with_capacity(NAMES_A_TURN);
        while read.len() < NAMES_A_TURN {
            let Some((key, _)) = cursor.next().await.map_err(|e| self.unreadable(e))? else { break };
            match codec::decode_key(&key) {
                Ok(Key::Entry(_, name)) => read.push(name.hash()),
                _ => {
                    let damaged = format!("shard {}: a damaged key among names: {key:?}", self.id);
                    return Err(ShardRefusal::Failed(damaged.into()));
                }
            }
        }
        Ok(read)
    }

    /// Called by a split's target that found its partition not live: asks the source whether it is. The row is read
    /// after the source has replied, because an earlier row may be an earlier attempt's; this attempt's row was durable
    /// before the source committed.
    async fn finish_import(
        self: &Rc<Self>,
        directory: InodeId,
        index: PartitionIndex,
    ) -> Result<(PartitionRow, BatchNumber), ShardRefusal> {
        self.ask_source(directory, index).await?;
        let arrived = self.read_table(&Key::Partition(directory, index)).await?;
        let Some(Row::Partition(mut row)) = arrived else { return Err(ShardRefusal::Busy) };
        row.state = PartitionState::Live;
        self.leases.inherit(self.clock.monotonic());
        let batch = {
            let mut state = self.state.borrow_mut();
            let key = Key::Partition(directory, row.index);
            state.open.write(&key, Some(&Row::Partition(row.clone())));
            state.open.number
        };
        self.appended(batch).await?;
        Ok((row, batch))
    }

    /// Asks the shard from which partition `index` was split off. `Ok`: the partition is this shard's. `Busy`: the
    /// source is working on it.
    async fn ask_source(self: &Rc<Self>, directory: InodeId, index: PartitionIndex) -> Result<(), ShardRefusal> {
        let source = index.cut_from().shard(directory.shard(), self.settings.shards);
        match self.peers.call(source, PeerCall::SplitOutcome { directory, index }).await {
            PeerReply::Split(SplitState::Committed) => Ok(()),
            PeerReply::Split(SplitState::Pending) | PeerReply::Busy => Err(ShardRefusal::Busy),
            PeerReply::Absent => Err(Errno::ENOENT.into()),
            other => Err(unexpected(other, format_args!("the source of partition {index:?} did not answer"))),
        }
    }

    /// Handles `Fetch` from another shard.
    pub(super) async fn rows_for_peer(self: &Rc<Self>, keys: Vec<Key>) -> PeerReply {
        let mut newest = BatchNumber(0);
        let mut rows = Vec::with_capacity(keys.len());
        for key in &keys {
            // A row may be dropped while a later one is fetched, so each is copied as soon as it is resident.
            loop {
                if let Err(refusal) = self.fetch_here(key).await {
                    return peer_reply(refusal);
                }
                let state = self.state.borrow();
                let (seen, batch) = self.seen_here(&state, key);
                let row = match seen {
                    KeyState::Unknown => continue,
                    KeyState::Absent => None,
                    KeyState::Present(row) => Some(row.clone()),
                };
                newest = newest.max(batch);
                rows.push(row);
                break;
            }
        }
        match self.appended(newest).await {
            Ok(()) => PeerReply::Rows(rows),
            Err(refusal) => peer_reply(refusal),
        }
    }
}

/// Whether the absence of a partition row is final: only the first partition of a directory is made with it, the others
/// may arrive by a split.
fn key_is_final(key: &Key) -> bool {
    matches!(key, Key::Partition(_, PartitionIndex::FIRST))
}

pub(super) fn peer_reply(refusal: ShardRefusal) -> PeerReply {
    match refusal {
        ShardRefusal::Moved { directory, map } => PeerReply::Moved(directory, map),
        ShardRefusal::Busy => PeerReply::Busy,
        refusal if refusal == Errno::ENOENT.into() => PeerReply::Absent,
        ShardRefusal::Rule(rule) => PeerReply::Failed(format!("{rule:?}").into()),
        ShardRefusal::Failed(cause) => PeerReply::Failed(cause),
    }
}
