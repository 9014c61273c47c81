//! Splitting a partition: its upper half moves to the shard that the map computes for it.
//!
//! Order of what is made durable, so that a crash at any point leaves the old or the new state:
//!
//! 1. The home's map learns that the new partition may exist. (Maps only gain: one that says too much sends a request to
//!    a shard that asks the source, which then splits.)
//! 2. The target drops what an aborted adoption left, and takes rows of this attempt alone from here on.
//! 3. The upper half is copied in the background, while changes to it go on and are noted.
//! 4. Changes of that half wait, once no intent is left in this partition; what was changed is copied again, with the
//!    answers given to retries.
//! 5. The target writes the partition row, not live, and fsyncs.
//! 6. The source writes its row with the new depth, and fsyncs: this is the commit. Requests for the upper half are
//!    answered `Moved` from here on.
//! 7. The target asks the source, hears that it is committed, and is live.
//! 8. The source deletes the rows that moved; should it die before, its next owner does when it loads the partition.
//!
//! A split starts only from a partition row, never from a map.

use super::partitions::Split;
use super::peers::{PeerCall, PeerReply, SplitAttempt, SplitState};
use super::refusal::{Cause, Refusal};
use super::shard::{Shard, State};
use crate::namespace::Seen;
use crate::tables::codec;
use crate::tables::{Change, EntryBody, Key, PartitionRow, PartitionState, ReplyRecord, Row};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use varve_types::{Errno, HashRange, InodeId, NameHash, PartitionIndex, PartitionMap, ShardId};

/// Rows copied or deleted in one step. With inline content of 64 KiB a step is bounded by `STEP_BYTES` first.
const STEP_ROWS: usize = 512;
const STEP_BYTES: usize = 1024 * 1024;

/// Attempts at a split before it is left to the next name above the threshold: with the pause, half a minute.
const TRIES_MAX: usize = 300;
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// Adoptions that a target knows of. Above it all are forgotten, and begun anew by their sources.
const ADOPTIONS_MAX: usize = 10_000;

/// What goes where in an attempt at a split.
struct Adoption {
    directory: InodeId,
    /// The half that goes.
    range: HashRange,
    target: ShardId,
    attempt: SplitAttempt,
}

impl Adoption {
    fn rows(&self, changes: Vec<Change>, replies: Vec<ReplyRecord>) -> PeerCall {
        PeerCall::AdoptRows { directory: self.directory, attempt: self.attempt, changes, replies }
    }
}

impl Shard {
    /// Splits the partition of `directory` here until it is within the threshold, at least once. One split a partition at
    /// a time; one that fails leaves the old state and is tried again after a pause.
    pub(super) async fn split(self: Rc<Self>, directory: InodeId) {
        for _ in 0..TRIES_MAX {
            if self.stopping() {
                return;
            }
            let Some((row, attempt)) = self.begin_split(directory) else { return };
            let upper = row.index.upper_half(row.depth);
            let result = self.split_off(directory, row, attempt).await;
            if let Err(refusal) = &result
                && let Some(partition) = self.state.borrow_mut().partitions.get_mut(directory)
            {
                tracing::debug!("shard {}: split of directory {directory} put off: {refusal}", self.id);
                partition.split = None;
            }
            self.changed.notify_waiters();
            if result.is_err() {
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
            let live = PeerCall::AdoptLive { directory, index: upper };
            self.peers.call(self.shard_of_partition(directory, upper), live).await;
            let (range, entries) = match self.partition_here(&self.state.borrow(), directory) {
                Some(row) => (row.index.range(row.depth), row.entries),
                None => return,
            };
            self.purge_moved_rows(directory, range);
            if entries <= self.settings.split_threshold {
                return;
            }
        }
    }

    fn begin_split(&self, directory: InodeId) -> Option<(PartitionRow, SplitAttempt)> {
        let mut state = self.state.borrow_mut();
        let row = self.partition_here(&state, directory)?.clone();
        let partition = state.partitions.get_mut(directory)?;
        if partition.split.is_some()
            || row.state != PartitionState::Live
            || row.depth >= self.settings.shards.depth_max()
        {
            return None;
        }
        let range = row.index.upper_half(row.depth).range(row.depth + 1);
        partition.split = Some(Split { range, changed: BTreeSet::new(), held: false });
        state.splits_begun += 1;
        let attempt = SplitAttempt { epoch: self.table.epoch(), number: state.splits_begun };
        Some((row, attempt))
    }

    async fn split_off(
        self: &Rc<Self>,
        directory: InodeId,
        row: PartitionRow,
        attempt: SplitAttempt,
    ) -> Result<(), Refusal> {
        let upper = row.index.upper_half(row.depth);
        let range = upper.range(row.depth + 1);
        let target = self.shard_of_partition(directory, upper);
        let mut map = row.map.clone();
        map.add(upper);
        let learn = PeerCall::LearnMap { directory, map: map.clone() };
        self.ask(directory.shard(), learn).await?;
        let adoption = Adoption { directory, range, target, attempt };
        self.ask(target, PeerCall::AdoptBegin { directory, attempt }).await?;
        self.copy_half(&adoption).await?;
        self.hold_half(directory, range).await?;
        self.copy_changed(&adoption).await?;

        let (depth, mtime) = match self.partition_here(&self.state.borrow(), directory) {
            Some(now) => (now.depth + 1, now.mtime),
            None => return Err(Errno::ENOENT.into()),
        };
        let arriving = PartitionRow {
            index: upper,
            depth,
            state: PartitionState::Arriving,
            entries: 0,
            subdirectories: 0,
            mtime,
            map: map.clone(),
            ..row
        };
        let end = PeerCall::AdoptEnd { directory, attempt, partition: Row::Partition(arriving) };
        match self.ask(target, end).await? {
            PeerReply::Adopted { entries, subdirectories } => {
                self.commit_split(directory, map, entries, subdirectories).await
            }
            other => Err(other.unexpected(format_args!("shard {target} does not end a split"))),
        }
    }

    /// Refused once this shard has ended: its next owner may have begun the same split, or ended it, and the target
    /// would take the rows of this one for the other's.
    async fn ask(&self, shard: ShardId, call: PeerCall) -> Result<PeerReply, Refusal> {
        if self.stopping() {
            return Err(Refusal::Failed(format!("shard {} has ended", self.id).into()));
        }
        match self.peers.call(shard, call).await {
            PeerReply::Busy => Err(Refusal::Busy),
            PeerReply::Absent => Err(Errno::ENOENT.into()),
            PeerReply::Failed(cause) => Err(Refusal::Failed(cause)),
            reply => Ok(reply),
        }
    }

    fn shard_of_partition(&self, directory: InodeId, index: PartitionIndex) -> ShardId {
        index.shard(directory.shard(), self.settings.shards)
    }

    /// Step 3.
    async fn copy_half(self: &Rc<Self>, adoption: &Adoption) -> Result<(), Refusal> {
        let batch = self.state.borrow().open.number;
        self.appended_with_work(batch).await?;
        let bytes = codec::entries_of(adoption.directory, adoption.range);
        let mut cursor = self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))?;
        loop {
            let mut changes = Vec::new();
            let mut size = 0;
            while changes.len() < STEP_ROWS && size < STEP_BYTES {
                let Some((key, row)) = cursor.next().await.map_err(|e| self.unreadable(e))? else { break };
                size += key.len() + row.len();
                changes.push(self.decoded(&key, &row).map(|(key, row)| Change::Put(key, row))?);
            }
            if changes.is_empty() {
                return Ok(());
            }
            self.ask(adoption.target, adoption.rows(changes, Vec::new())).await?;
        }
    }

    pub(super) fn decoded(&self, key: &[u8], row: &[u8]) -> Result<(Key, Row), Refusal> {
        let damaged = |error| format!("shard {}: a damaged row: {error}", self.id);
        codec::decode(key, row).map_err(|error| Refusal::Failed(damaged(error).into()))
    }

    /// Step 4: from here on, decisions on names of the half wait.
    async fn hold_half(&self, directory: InodeId, range: HashRange) -> Result<(), Refusal> {
        match self.state.borrow_mut().partitions.get_mut(directory).and_then(|p| p.split.as_mut()) {
            Some(split) => split.held = true,
            None => return Err(Errno::ENOENT.into()),
        }
        let free = |state: &State| {
            let in_half =
                |key: &Key| matches!(key, Key::Entry(id, name) if *id == directory && range.contains(name.hash()));
            state.partitions.get(directory).is_none_or(|p| p.pending_tallies == 0) && !state.locks.keys().any(in_half)
        };
        self.wait_until(free).await?;
        let batch = self.state.borrow().open.number;
        self.appended_with_work(batch).await
    }

    /// The changes since the copy began, as the rows are now.
    async fn copy_changed(self: &Rc<Self>, adoption: &Adoption) -> Result<(), Refusal> {
        let Adoption { directory, range, target, .. } = *adoption;
        let (names, replies) = {
            let mut state = self.state.borrow_mut();
            let replies = state.replies.about(directory, range);
            match state.partitions.get_mut(directory).and_then(|p| p.split.as_mut()) {
                Some(split) => (std::mem::take(&mut split.changed), replies),
                None => return Err(Errno::ENOENT.into()),
            }
        };
        let mut changes = Vec::new();
        for name in names {
            let key = Key::Entry(directory, name);
            // Everything decided is appended, and nothing is decided while the half is held.
            changes.push(match self.read_table(&key).await? {
                Some(row) => Change::Put(key, row),
                None => Change::Delete(key),
            });
            if changes.len() >= STEP_ROWS {
                let changes = std::mem::take(&mut changes);
                self.ask(target, adoption.rows(changes, Vec::new())).await?;
            }
        }
        self.ask(target, adoption.rows(changes, replies)).await.map(|_| ())
    }

    /// Step 6.
    async fn commit_split(
        &self,
        directory: InodeId,
        map: PartitionMap,
        entries: u64,
        subdirectories: u64,
    ) -> Result<(), Refusal> {
        let batch = {
            let mut state = self.state.borrow_mut();
            let Some(mut row) = self.partition_here(&state, directory).cloned() else {
                return Err(Errno::ENOENT.into());
            };
            row.depth += 1;
            row.map.merge(&map);
            row.entries = row.entries.saturating_sub(entries);
            row.subdirectories = row.subdirectories.saturating_sub(subdirectories);
            let range = row.index.range(row.depth);
            let key = Key::Partition(directory, row.index);
            self.apply(&mut state, Change::Put(key, Row::Partition(row)));
            if let Some(partition) = state.partitions.get_mut(directory) {
                partition.split = None;
                if let Some(names) = &mut partition.names {
                    names.keep(range);
                }
            }
            state.open.number
        };
        self.work.notify_one();
        self.appended(batch).await?;
        self.sync().await
    }

    /// Step 8: deletes, in the background, rows of `directory` here whose hashes are outside `range`.
    pub(super) fn purge_moved_rows(self: &Rc<Self>, directory: InodeId, range: HashRange) {
        if range == HashRange::ALL {
            return;
        }
        let shard = self.clone();
        tokio::task::spawn_local(async move {
            let below =
                (range.first.0 > 0).then(|| HashRange { first: NameHash(0), last: NameHash(range.first.0 - 1) });
            let above = (range.last < NameHash::LAST)
                .then(|| HashRange { first: NameHash(range.last.0 + 1), last: NameHash::LAST });
            for stale in [below, above].into_iter().flatten() {
                if let Err(refusal) = shard.delete_entries(directory, stale).await {
                    tracing::warn!(
                        "shard {}: moved rows of directory {directory} stay until it is next loaded: {refusal}",
                        shard.id
                    );
                }
            }
        });
    }

    /// Deletes entry rows that belong to no partition of this shard.
    async fn delete_entries(&self, directory: InodeId, range: HashRange) -> Result<(), Refusal> {
        let outside =
            |key: &Key| !matches!(key, Key::Entry(id, name) if *id == directory && range.contains(name.hash()));
        let bytes = codec::entries_of(directory, range);
        let mut cursor = self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))?;
        loop {
            let mut keys = Vec::new();
            while keys.len() < STEP_ROWS {
                let Some((key, _)) = cursor.next().await.map_err(|e| self.unreadable(e))? else { break };
                keys.push(key);
            }
            if keys.is_empty() {
                self.state.borrow_mut().resident.forget(outside);
                return Ok(());
            }
            let batch = {
                let mut state = self.state.borrow_mut();
                keys.into_iter().for_each(|key| state.open.writes.push((key, None)));
                state.open.number
            };
            self.appended_with_work(batch).await?;
        }
    }

    async fn appended_with_work(&self, batch: super::resident::BatchNumber) -> Result<(), Refusal> {
        self.work.notify_one();
        self.appended(batch).await
    }

    // The other sides.

    /// At the home: the map gains before the partition can be live.
    pub(super) async fn learn_map_at_home(self: &Rc<Self>, directory: InodeId, map: PartitionMap) -> PeerReply {
        let key = Key::Directory(directory);
        if let Err(refusal) = self.fetch_here(&key).await {
            return super::fetch::peer_reply(refusal);
        }
        let batch = {
            let mut state = self.state.borrow_mut();
            let Seen::Present(Row::Directory(row)) = self.seen_here(&state, &key).0 else { return PeerReply::Absent };
            let mut row = row.clone();
            let change = Change::Put(key, {
                row.map.merge(&map);
                Row::Directory(row)
            });
            if self.must_wait(&state, &change) {
                return PeerReply::Busy;
            }
            self.apply(&mut state, change);
            self.learn_map(&mut state, directory, &map);
            state.open.number
        };
        self.work.notify_one();
        self.done_when_durable(batch).await
    }

    /// Step 2. Refused once the partition is live, and while a later attempt is under way: a source that has ended and
    /// does not know it must not touch what its successor has moved.
    pub(super) async fn adopt_begin(self: &Rc<Self>, directory: InodeId, attempt: SplitAttempt) -> Result<(), Refusal> {
        match self.load_partition(directory).await {
            Ok(()) => {
                let live = format!("the partition of directory {directory} in shard {} is live", self.id);
                return Err(Refusal::Failed(live.into()));
            }
            // The source is working on it, and this is the source.
            Err(Refusal::Busy) => {}
            Err(refusal) => return Err(refusal),
        }
        {
            let adoptions = &mut self.state.borrow_mut().adoptions;
            if adoptions.get(&directory).is_some_and(|known| *known > attempt) {
                return Err(self.of_another_attempt(directory));
            }
            if adoptions.len() >= ADOPTIONS_MAX {
                adoptions.clear();
            }
            adoptions.insert(directory, attempt);
        }
        self.delete_entries(directory, HashRange::ALL).await
    }

    /// The adoption is of this attempt, at this moment.
    fn adopts(&self, state: &State, directory: InodeId, attempt: SplitAttempt) -> Result<(), Refusal> {
        match state.adoptions.get(&directory) {
            Some(known) if *known == attempt => Ok(()),
            _ => Err(self.of_another_attempt(directory)),
        }
    }

    fn of_another_attempt(&self, directory: InodeId) -> Refusal {
        Refusal::Failed(format!("shard {} adopts from another attempt to split directory {directory}", self.id).into())
    }

    pub(super) async fn adopt_rows(
        &self,
        directory: InodeId,
        attempt: SplitAttempt,
        changes: Vec<Change>,
        replies: Vec<ReplyRecord>,
    ) -> Result<(), Refusal> {
        let batch = {
            let mut state = self.state.borrow_mut();
            self.adopts(&state, directory, attempt)?;
            for change in &changes {
                match change {
                    Change::Put(key, row) => state.open.write(key, Some(row)),
                    Change::Delete(key) => state.open.write(key, None),
                    Change::Tally { .. } => {
                        return Err(Refusal::Failed(Cause::from("a split sends rows, not tallies")));
                    }
                }
            }
            replies.into_iter().for_each(|record| self.remember(&mut state, record));
            state.open.number
        };
        self.appended_with_work(batch).await
    }

    /// Step 5.
    pub(super) async fn adopt_end(
        self: &Rc<Self>,
        directory: InodeId,
        attempt: SplitAttempt,
        partition: Row,
    ) -> Result<PeerReply, Refusal> {
        let Row::Partition(mut row) = partition else {
            return Err(Refusal::Failed(Cause::from("a split ends with a partition row")));
        };
        let (entries, subdirectories) = self.count_entries(directory, row.index.range(row.depth)).await?;
        (row.entries, row.subdirectories) = (entries, subdirectories);
        let batch = {
            let mut state = self.state.borrow_mut();
            self.adopts(&state, directory, attempt)?;
            state.adoptions.remove(&directory);
            let key = Key::Partition(directory, row.index);
            // Not loaded: whoever asks for a name of it loads it, and so asks the source.
            state.open.write(&key, Some(&Row::Partition(row)));
            state.resident.forget(|resident| *resident != key);
            state.open.number
        };
        self.work.notify_one();
        match self.done_when_durable(batch).await {
            PeerReply::Done => Ok(PeerReply::Adopted { entries, subdirectories }),
            failed => Ok(failed),
        }
    }

    async fn count_entries(&self, directory: InodeId, range: HashRange) -> Result<(u64, u64), Refusal> {
        let bytes = codec::entries_of(directory, range);
        let mut cursor = self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))?;
        let (mut entries, mut subdirectories) = (0, 0);
        while let Some((key, row)) = cursor.next().await.map_err(|e| self.unreadable(e))? {
            entries += 1;
            if let (_, Row::Entry(entry)) = self.decoded(&key, &row)?
                && matches!(entry.body, EntryBody::Directory(_))
            {
                subdirectories += 1;
            }
        }
        Ok((entries, subdirectories))
    }

    async fn done_when_durable(&self, batch: super::resident::BatchNumber) -> PeerReply {
        let durable = match self.appended(batch).await {
            Ok(()) => self.sync().await,
            Err(refusal) => Err(refusal),
        };
        durable.map_or_else(super::fetch::peer_reply, |()| PeerReply::Done)
    }

    /// At the source: has partition `index` been split off? If not, it is now being.
    pub(super) async fn split_outcome(self: &Rc<Self>, directory: InodeId, index: PartitionIndex) -> PeerReply {
        if let Err(refusal) = self.load_partition(directory).await {
            return super::fetch::peer_reply(refusal);
        }
        let depth = self.partition_here(&self.state.borrow(), directory).map(|row| row.depth);
        match depth {
            None => PeerReply::Absent,
            // Partition `index` was cut off at the depth of its highest bit.
            Some(depth) if index.depth_of_cut() < depth && self.is_at_rest() => PeerReply::Split(SplitState::Committed),
            Some(depth) if index.depth_of_cut() < depth => {
                // The commit may be decided and not yet in the log.
                let batch = self.state.borrow().open.number;
                match self.done_when_durable(batch).await {
                    PeerReply::Done => PeerReply::Split(SplitState::Committed),
                    failed => failed,
                }
            }
            Some(_) if self.is_at_rest() => PeerReply::Split(SplitState::Pending),
            Some(_) => {
                tokio::task::spawn_local(self.clone().split(directory));
                PeerReply::Split(SplitState::Pending)
            }
        }
    }
}
