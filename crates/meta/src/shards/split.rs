//! Splits a partition: moves its upper half to the shard that the map computes for it.
//!
//! Order of what becomes durable, so that a crash at any point leaves either the old or the new state:
//!
//! 1. The target drops the rows that an aborted import left, and from then on accepts only rows of this attempt.
//! 2. The source copies the upper half in the background, one slice of hashes after another, while changes continue. It
//!    records changes to slices already copied and copies them again, until few are left.
//! 3. The home's map learns that the new partition may exist. (Maps only grow. A map that lists too much sends a
//!    request to a shard that asks the source, which then splits. Such requests wait from here on.)
//! 4. Changes to the upper half wait, once no intent is left in this partition. The source copies the last changes,
//!    with the replies kept for retries.
//! 5. The target writes the partition row, not live, and fsyncs.
//! 6. The source writes its row with the new depth, and fsyncs: this is the commit. From here on the source refuses
//!    requests for the upper half with `Moved`.
//! 7. The target asks the source, learns that the split is committed, and makes its partition live.
//! 8. The source deletes the moved rows. If it dies before that, its next owner deletes them when it loads the
//!    partition.
//!
//! A split starts only from a partition row, never from a map.

use super::partitions::Split;
use super::peers::{self, PeerCall, PeerReply, SplitAttempt, SplitState, unexpected};
use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use varve_posix::KeyState;
use varve_schema::codec;
use varve_schema::{Change, Key, PartitionRow, PartitionState, ReplyRecord, Row};
use varve_types::{Errno, HashRange, InodeId, Name, NameHash, PartitionIndex, PartitionMap, ShardId};

/// Rows copied or deleted in one step. `STEP_BYTES` is reached first if the rows have inline content of 64 KiB.
const STEP_ROWS: usize = 256;
const STEP_BYTES: usize = 1024 * 1024;

/// When at most this many changes are left, the half is blocked and the last ones are copied.
const LEFT_MAX: usize = 16;

/// Rows of one slice, if hashes are spread evenly, and the limit on recorded changes before they are copied again. Both
/// are in memory. The values are small in unit tests, so that small directories have many of both.
const SLICE_ROWS: u64 = if cfg!(test) { 100 } else { 16 * 1024 };
const CHANGED_MAX: usize = if cfg!(test) { 20 } else { 16 * 1024 };

/// Limit on rounds of copying changes before the half is blocked anyway, if changes arrive as fast as they are copied.
const CATCH_UPS_MAX: usize = 16;

/// Attempts at a split before the shard gives up until the next name above the threshold: with the pause, half a
/// minute.
const TRIES_MAX: usize = 300;
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// How often the home of the directory is asked to record that there may be one more partition.
const HOME_ASKED_MAX: usize = 50;

/// The half is collected from the rows in memory if there are at most this many times as many of them as entries in the
/// partition. Above that, a scan of the table costs less.
const LOOKED_THROUGH_TIMES: u64 = 8;

/// Limit on names kept until their rows are deleted here. Above it the table is scanned once more.
const MOVED_KEPT_MAX: usize = 64 * 1024;

/// The directory, range and target of one attempt at a split.
struct PartitionImport {
    directory: InodeId,
    /// The half that moves.
    range: HashRange,
    target: ShardId,
    attempt: SplitAttempt,
}

/// The names of moved rows, to be deleted here; `None`: too many to keep.
struct MovedNames(Option<Vec<Name>>);

impl MovedNames {
    fn add(&mut self, names: impl IntoIterator<Item = Name>) {
        if let Some(moved) = &mut self.0 {
            moved.extend(names);
            if moved.len() > MOVED_KEPT_MAX {
                self.0 = None;
            }
        }
    }
}

impl PartitionImport {
    fn rows(&self, changes: Vec<Change>, replies: Vec<ReplyRecord>) -> PeerCall {
        PeerCall::ImportRows { directory: self.directory, attempt: self.attempt, changes, replies }
    }
}

/// Cuts `range` into about `count` slices of equal length, in order.
pub(super) fn slices(range: HashRange, count: u64) -> Vec<HashRange> {
    let step = (range.last.0 - range.first.0) / count.max(1);
    let mut slices = Vec::new();
    let mut first = range.first;
    loop {
        let last = NameHash(first.0.saturating_add(step)).min(range.last);
        slices.push(HashRange { first, last });
        if last == range.last {
            return slices;
        }
        first = NameHash(last.0 + 1);
    }
}

impl Shard {
    /// Splits the partition of `directory` here, at least once, until it is no longer too large. A partition has one
    /// split at a time. A failed split leaves the old state and is retried after a pause.
    pub(super) async fn split(self: Rc<Self>, directory: InodeId) {
        for _ in 0..TRIES_MAX {
            if self.stopping() {
                return;
            }
            let Some((row, attempt)) = self.begin_split(directory) else { return };
            let (upper, entries) = (row.index.upper_half(row.depth), row.entries);
            let result = self.split_off(directory, row, attempt).await;
            if let Err(refusal) = &result
                && let Some(partition) = self.state.borrow_mut().partitions.get_mut(directory)
            {
                tracing::debug!("shard {}: split of directory {directory} postponed: {refusal}", self.id);
                partition.split = None;
            }
            self.changed.notify_waiters();
            let Ok(moved) = result else {
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            };
            let (live, target) =
                (PeerCall::ImportLive { directory, index: upper }, self.shard_of_partition(directory, upper));
            let id = self.id;
            metrics::counter!("varve_splits_total").increment(1);
            tracing::info!("shard {id}: split directory {directory}, half of {entries} names moved to shard {target}");
            self.peers.call(target, live).await;
            let (range, again) = match self.partition_here(&self.state.borrow(), directory) {
                Some(row) => (row.index.range(row.depth), self.is_too_large(row)),
                None => return,
            };
            match moved {
                MovedNames(Some(names)) => self.purge_names(directory, range, names),
                MovedNames(None) => self.purge_moved_rows(directory, range),
            }
            if !again {
                return;
            }
        }
    }

    /// Whether a partition should be split. This depends on the volume alone, not on the owners of its shards: the layout
    /// on disk is the volume's.
    pub(super) fn is_too_large(&self, row: &PartitionRow) -> bool {
        row.entries > self.settings.split_threshold && row.depth < self.settings.shards.depth_max()
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
        partition.split = Some(Split::of(range));
        state.splits_begun += 1;
        let attempt = SplitAttempt { epoch: self.table.epoch(), number: state.splits_begun };
        Some((row, attempt))
    }

    async fn split_off(
        self: &Rc<Self>,
        directory: InodeId,
        row: PartitionRow,
        attempt: SplitAttempt,
    ) -> Result<MovedNames, ShardRefusal> {
        let upper = row.index.upper_half(row.depth);
        let range = upper.range(row.depth + 1);
        let target = self.shard_of_partition(directory, upper);
        let mut map = row.map.clone();
        map.add(upper);
        let import = PartitionImport { directory, range, target, attempt };
        self.ask(target, PeerCall::ImportBegin { directory, attempt }).await?;
        let mut moved = self.copy_half(&import).await?;
        self.catch_up(&import, &mut moved).await?;
        self.notify_home(directory, &map).await?;
        self.catch_up(&import, &mut moved).await?;
        self.hold_half(directory, range).await?;
        moved.add(self.copy_changed(&import).await?);
        self.send_replies(&import).await?;

        // The row as it is now: a change of its mode or owner may have been in progress when the split began, and none
        // has begun since.
        let Some(now) = self.partition_here(&self.state.borrow(), directory).cloned() else {
            return Err(Errno::ENOENT.into());
        };
        let incoming = PartitionRow {
            index: upper,
            depth: now.depth + 1,
            state: PartitionState::Incoming,
            entries: 0,
            subdirectories: 0,
            map: map.clone(),
            ..now
        };
        let end = PeerCall::ImportEnd { directory, attempt, partition: Row::Partition(incoming) };
        match self.ask(target, end).await? {
            PeerReply::Imported { entries, subdirectories } => {
                self.commit_split(directory, map, entries, subdirectories).await?;
                Ok(moved)
            }
            other => Err(unexpected(other, format_args!("shard {target} did not end the split"))),
        }
    }

    /// Step 3. The home may be busy with the directory for a moment; so much is copied already that it is asked again.
    async fn notify_home(&self, directory: InodeId, map: &PartitionMap) -> Result<(), ShardRefusal> {
        for _ in 0..HOME_ASKED_MAX {
            match self.ask(directory.shard(), PeerCall::LearnMap { directory, map: map.clone() }).await {
                Err(ShardRefusal::Busy) => tokio::time::sleep(TRY_AGAIN).await,
                reported => return reported.map(drop),
            }
        }
        Err(ShardRefusal::Busy)
    }

    /// Refuses once this shard has ended: its next owner may have begun or ended the same split, and the target would
    /// take the rows of this attempt for the other's.
    async fn ask(&self, shard: ShardId, call: PeerCall) -> Result<PeerReply, ShardRefusal> {
        if self.stopping() {
            return Err(ShardRefusal::Failed(format!("shard {} has ended", self.id).into()));
        }
        match self.peers.call(shard, call).await {
            PeerReply::Busy => Err(ShardRefusal::Busy),
            PeerReply::Absent => Err(Errno::ENOENT.into()),
            PeerReply::Failed(cause) => Err(peers::refusal(cause, None::<&str>)),
            reply => Ok(reply),
        }
    }

    fn shard_of_partition(&self, directory: InodeId, index: PartitionIndex) -> ShardId {
        index.shard(directory.shard(), self.settings.shards)
    }

    /// Step 2.
    async fn copy_half(self: &Rc<Self>, import: &PartitionImport) -> Result<MovedNames, ShardRefusal> {
        match self.resident_half(import.directory, import.range) {
            Some(names) => self.copy_resident(import, names).await,
            None => self.copy_scanned(import).await,
        }
    }

    /// Returns the names of the half if all their rows are in memory. From here on, changes to them are recorded.
    fn resident_half(&self, directory: InodeId, range: HashRange) -> Option<Vec<Name>> {
        let mut state = self.state.borrow_mut();
        let entries = self.partition_here(&state, directory)?.entries;
        let all = state.partitions.get(directory)?.names.count(range)?;
        if state.resident.len() as u64 > LOOKED_THROUGH_TIMES * entries {
            return None;
        }
        let names: Vec<Name> = state.resident.entries_of(directory, range).cloned().collect();
        if names.len() != all {
            return None;
        }
        state.partitions.get_mut(directory)?.split.as_mut()?.copied_to = Some(range.last);
        Some(names)
    }

    async fn copy_resident(
        self: &Rc<Self>,
        import: &PartitionImport,
        names: Vec<Name>,
    ) -> Result<MovedNames, ShardRefusal> {
        let (mut changes, mut size) = (Vec::new(), 0);
        for name in &names {
            let key = Key::Entry(import.directory, name.clone());
            // A removal in the meantime was recorded.
            let Some(row) = self.decided_row(&key).await? else { continue };
            size += row.content_bytes();
            changes.push(Change::put(key, row));
            if changes.len() >= STEP_ROWS || size >= STEP_BYTES {
                size = 0;
                let changes = std::mem::take(&mut changes);
                self.ask(import.target, import.rows(changes, Vec::new())).await?;
            }
        }
        self.ask(import.target, import.rows(changes, Vec::new())).await?;
        let mut moved = MovedNames(Some(Vec::new()));
        moved.add(names);
        Ok(moved)
    }

    async fn copy_scanned(self: &Rc<Self>, import: &PartitionImport) -> Result<MovedNames, ShardRefusal> {
        let mut moved = MovedNames(Some(Vec::new()));
        for slice in self.slices(import)? {
            match self.state.borrow_mut().partitions.get_mut(import.directory).and_then(|p| p.split.as_mut()) {
                Some(split) => split.copied_to = Some(slice.last),
                None => return Err(Errno::ENOENT.into()),
            }
            self.copy_slice(import, slice, &mut moved).await?;
            if self.changed(import.directory) > CHANGED_MAX {
                moved.add(self.copy_changed(import).await?);
            }
        }
        Ok(moved)
    }

    fn slices(&self, import: &PartitionImport) -> Result<Vec<HashRange>, ShardRefusal> {
        let state = self.state.borrow();
        let Some(row) = self.partition_here(&state, import.directory) else { return Err(Errno::ENOENT.into()) };
        Ok(slices(import.range, (row.entries / 2).div_ceil(SLICE_ROWS)))
    }

    async fn copy_slice(
        &self,
        import: &PartitionImport,
        slice: HashRange,
        moved: &mut MovedNames,
    ) -> Result<(), ShardRefusal> {
        let batch = self.state.borrow().open.number;
        self.appended_with_work(batch).await?;
        let bytes = codec::entries_of(import.directory, slice);
        let mut cursor = self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))?;
        loop {
            let mut changes = Vec::new();
            let mut size = 0;
            while changes.len() < STEP_ROWS && size < STEP_BYTES {
                let Some((key, row)) = cursor.next().await.map_err(|e| self.unreadable(e))? else { break };
                size += key.len() + row.len();
                let (key, row) = self.decoded(&key, &row)?;
                if let Key::Entry(_, name) = &key {
                    moved.add([name.clone()]);
                }
                changes.push(Change::put(key, row));
            }
            if changes.is_empty() {
                return Ok(());
            }
            self.ask(import.target, import.rows(changes, Vec::new())).await?;
        }
    }

    pub(super) fn decoded(&self, key: &[u8], row: &[u8]) -> Result<(Key, Row), ShardRefusal> {
        let damaged = |error| format!("shard {}: a damaged row: {error}", self.id);
        codec::decode(key, row).map_err(|error| ShardRefusal::Failed(damaged(error).into()))
    }

    /// Step 4: from here on, decisions on names of the half wait.
    async fn hold_half(&self, directory: InodeId, range: HashRange) -> Result<(), ShardRefusal> {
        match self.state.borrow_mut().partitions.get_mut(directory).and_then(|p| p.split.as_mut()) {
            Some(split) => split.held = true,
            None => return Err(Errno::ENOENT.into()),
        }
        let free = |state: &ShardState| {
            let in_half =
                |key: &Key| matches!(key, Key::Entry(id, name) if *id == directory && range.contains(name.hash()));
            state.partitions.get(directory).is_none_or(|p| p.pending_tallies == 0)
                && !state.locks.iter().any(|(key, _)| in_half(key))
        };
        self.wait_until(free).await?;
        let batch = self.state.borrow().open.number;
        self.appended_with_work(batch).await
    }

    /// The number of names of the half that changed since they were copied.
    fn changed(&self, directory: InodeId) -> usize {
        let state = self.state.borrow();
        state.partitions.get(directory).and_then(|p| p.split.as_ref()).map_or(0, |split| split.changed.len())
    }

    /// Copies changes until few are left.
    async fn catch_up(self: &Rc<Self>, import: &PartitionImport, moved: &mut MovedNames) -> Result<(), ShardRefusal> {
        for _ in 0..CATCH_UPS_MAX {
            if self.changed(import.directory) <= LEFT_MAX {
                break;
            }
            moved.add(self.copy_changed(import).await?);
        }
        Ok(())
    }

    /// Copies the current rows of names that changed since the copy began, or since the last call. Returns these names.
    async fn copy_changed(self: &Rc<Self>, import: &PartitionImport) -> Result<BTreeSet<Name>, ShardRefusal> {
        let PartitionImport { directory, target, .. } = *import;
        let names = match self.state.borrow_mut().partitions.get_mut(directory).and_then(|p| p.split.as_mut()) {
            Some(split) => std::mem::take(&mut split.changed),
            None => return Err(Errno::ENOENT.into()),
        };
        let (mut changes, mut size) = (Vec::new(), 0);
        for name in &names {
            let key = Key::Entry(directory, name.clone());
            changes.push(match self.decided_row(&key).await? {
                Some(row) => {
                    size += row.content_bytes();
                    Change::put(key, row)
                }
                None => Change::Delete(key),
            });
            if changes.len() >= STEP_ROWS || size >= STEP_BYTES {
                size = 0;
                let changes = std::mem::take(&mut changes);
                self.ask(target, import.rows(changes, Vec::new())).await?;
            }
        }
        self.ask(target, import.rows(changes, Vec::new())).await?;
        Ok(names)
    }

    /// Sends the replies to changes of names of the half, for retries.
    async fn send_replies(&self, import: &PartitionImport) -> Result<(), ShardRefusal> {
        let replies = self.state.borrow_mut().replies.about(import.directory, import.range);
        for some in replies.chunks(STEP_ROWS) {
            self.ask(import.target, import.rows(Vec::new(), some.to_vec())).await?;
        }
        Ok(())
    }

    /// Step 6.
    async fn commit_split(
        &self,
        directory: InodeId,
        map: PartitionMap,
        entries: u64,
        subdirectories: u64,
    ) -> Result<(), ShardRefusal> {
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
            self.apply(&mut state, Change::put(key, Row::Partition(row)));
            if let Some(partition) = state.partitions.get_mut(directory) {
                partition.split = None;
                partition.names.keep(range);
            }
            state.open.number
        };
        self.work.notify_one();
        self.appended(batch).await?;
        self.sync().await
    }

    /// Step 8: deletes, in the background, the rows of these names of `directory`. The partition here has `range`.
    fn purge_names(self: &Rc<Self>, directory: InodeId, range: HashRange, names: Vec<Name>) {
        let shard = self.clone();
        tokio::task::spawn_local(async move {
            for names in names.chunks(STEP_ROWS) {
                let batch = {
                    let mut state = shard.state.borrow_mut();
                    for name in names {
                        state.open.write(&Key::Entry(directory, name.clone()), None);
                    }
                    state.open.number
                };
                if let Err(refusal) = shard.appended_with_work(batch).await {
                    return shard.left_moved_rows(directory, &refusal);
                }
            }
            let stays =
                |key: &Key| !matches!(key, Key::Entry(id, name) if *id == directory && !range.contains(name.hash()));
            shard.state.borrow_mut().resident.forget(stays);
        });
    }

    fn left_moved_rows(&self, directory: InodeId, refusal: &ShardRefusal) {
        tracing::warn!(
            "shard {}: moved rows of directory {directory} stay until it is next loaded: {refusal}",
            self.id
        );
    }

    /// Step 8 for all names: deletes rows of `directory` here whose hashes are outside `range`.
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
                if let Err(refusal) = shard.delete_entries(directory, stale, |_| Ok(())).await {
                    shard.left_moved_rows(directory, &refusal);
                }
            }
        });
    }

    /// Deletes entry rows that belong to no partition of this shard, as long as `may` allows it at the time of each
    /// deletion.
    pub(super) async fn delete_entries(
        &self,
        directory: InodeId,
        range: HashRange,
        may: impl Fn(&ShardState) -> Result<(), ShardRefusal>,
    ) -> Result<(), ShardRefusal> {
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
            let batch = {
                let mut state = self.state.borrow_mut();
                may(&state)?;
                if keys.is_empty() {
                    state.resident.forget(outside);
                    return Ok(());
                }
                keys.iter().for_each(|key| state.open.rows.delete(key));
                state.open.number
            };
            self.appended_with_work(batch).await?;
        }
    }

    // The other sides.

    /// At the home: adds to the map before the partition can be live.
    pub(super) async fn learn_map_at_home(self: &Rc<Self>, directory: InodeId, map: PartitionMap) -> PeerReply {
        let key = Key::Directory(directory);
        if let Err(refusal) = self.fetch_here(&key).await {
            return super::fetch::peer_reply(refusal);
        }
        let batch = {
            let mut state = self.state.borrow_mut();
            let KeyState::Present(Row::Directory(row)) = self.seen_here(&state, &key).0 else {
                return PeerReply::Absent;
            };
            let mut row = row.clone();
            row.map.merge(&map);
            let change = Change::put(key, Row::Directory(row));
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

    /// At the source: reports whether partition `index` has been split off. If not, this starts the split.
    pub(super) async fn split_outcome(self: &Rc<Self>, directory: InodeId, index: PartitionIndex) -> PeerReply {
        if let Err(refusal) = self.load_partition(directory).await {
            return super::fetch::peer_reply(refusal);
        }
        let depth = self.partition_here(&self.state.borrow(), directory).map(|row| row.depth);
        match depth {
            None => PeerReply::Absent,
            // Partition `index` was split off at the depth of its highest bit.
            Some(depth) if index.depth_of_cut() < depth && self.is_read_only() => {
                PeerReply::Split(SplitState::Committed)
            }
            Some(depth) if index.depth_of_cut() < depth => {
                // The commit may be decided and not yet in the log.
                let batch = self.state.borrow().open.number;
                match self.done_when_durable(batch).await {
                    PeerReply::Done => PeerReply::Split(SplitState::Committed),
                    failed => failed,
                }
            }
            Some(_) if self.is_read_only() => PeerReply::Split(SplitState::Pending),
            Some(_) => {
                tokio::task::spawn_local(self.clone().split(directory));
                PeerReply::Split(SplitState::Pending)
            }
        }
    }
}
