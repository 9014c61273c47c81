//! The tables under repair, and pending edits.

use super::super::FsckError;
use super::super::census::{Census, PartitionRecord};
use super::super::fix::Fix;
use super::Repaired;
use crate::snapshot::{Unreadable, offline};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use tokio::runtime::Handle;
use varve_env::clock::{Clock, RealClock};
use varve_env::disk;
use varve_env::posix_store::PosixStore;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_schema::{
    CounterRow, DirectoryRow, EntryBody, EntryRow, Key, Kind, NodeRow, PartitionRow, PartitionState, Row, codec,
};
use varve_store::{Table, TableBatch, TableConfig};
use varve_types::{
    Attributes, FileKind, InodeId, LayoutGeneration, Mode, Name, PartitionIndex, PartitionMap, ShardId, Timestamp,
    VolumeSettings,
};

/// The step in which an edit is written: each step is fsynced before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EditStep {
    Rows,
    Names,
    Removals,
    /// Rows that show an interrupted repair, until all its other edits are done.
    Ends,
}

const STEPS: [EditStep; 4] = [EditStep::Rows, EditStep::Names, EditStep::Removals, EditStep::Ends];

/// Maximum size of pending edits, in bytes: they are in memory, and a step is one batch per shard.
const EDITS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Only the owner of the volume may access files in lost+found.
const FOUND_DIRECTORY_MODE: Mode = Mode(0o700);
const FOUND_FILE_MODE: Mode = Mode(0o600);
const LOST_AND_FOUND: &str = "lost+found";
/// Names tried for the directory, and for each file in it. More are taken only if a user took them on purpose.
const NAMES_MAX: u32 = 1000;

struct Edit {
    step: EditStep,
    row: Option<Row>,
}

/// An entry that refers to an inode.
#[derive(Clone)]
pub struct NamedEntry {
    pub directory: InodeId,
    pub name: Name,
    pub row: EntryRow,
}

pub struct RepairSession<'a> {
    pub volume: &'a VolumeDir,
    pub settings: &'a VolumeSettings,
    pub census: Census,
    pub now: Timestamp,
    repaired: &'a mut Repaired,
    config: TableConfig,
    tables: BTreeMap<ShardId, Table>,
    edits: BTreeMap<(ShardId, Vec<u8>), Edit>,
    edits_bytes: usize,
    /// Numbers of names that partitions gain and lose, in the step that writes their entries.
    tallies: BTreeMap<(EditStep, InodeId, PartitionIndex), (i64, i64)>,
    /// Files to remove after all rows are written.
    files: Vec<StorePath>,
    lost_and_found: Option<InodeId>,
    names: HashMap<InodeId, Vec<NamedEntry>>,
    /// Names of directories that were looked up.
    pub directory_names: HashMap<InodeId, (InodeId, Name)>,
    /// Lines on truncated files, to be written before all edits.
    pub cut_files: Vec<String>,
}

impl<'a> RepairSession<'a> {
    pub fn new(
        volume: &'a VolumeDir,
        settings: &'a VolumeSettings,
        census: Census,
        repaired: &'a mut Repaired,
        background: Handle,
    ) -> Result<RepairSession<'a>, FsckError> {
        let store = PosixStore::of_volume(volume).map_err(|source| FsckError::Io {
            doing: format!("cannot use the tables in {}", volume.shards().display()),
            source,
        })?;
        Ok(RepairSession {
            volume,
            settings,
            census,
            now: RealClock::new().now(),
            repaired,
            config: offline::table_config(volume, settings, store, background),
            tables: BTreeMap::new(),
            edits: BTreeMap::new(),
            edits_bytes: 0,
            tallies: BTreeMap::new(),
            files: Vec::new(),
            lost_and_found: None,
            names: HashMap::new(),
            directory_names: HashMap::new(),
            cut_files: Vec::new(),
        })
    }

    /// Records a repair for the report.
    pub fn note(&mut self, what: impl Into<String>) {
        self.repaired.note(what.into());
    }

    /// Configuration for opening tables, without the shard.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    pub async fn table(&mut self, shard: ShardId) -> Result<&Table, FsckError> {
        if !self.tables.contains_key(&shard) {
            let config = TableConfig { shard, ..self.config.clone() };
            let table = Table::open(config).await.map_err(|error| Unreadable::new(shard, error))?;
            self.tables.insert(shard, table);
        }
        Ok(&self.tables[&shard])
    }

    /// The shard of a row that is not an entry.
    pub fn shard_of(&self, key: &Key) -> ShardId {
        match key {
            Key::Partition(directory, index) => self.census.shard_of(*directory, *index),
            Key::Directory(inode) | Key::Inode(inode) | Key::Orphan(inode) | Key::Xattr(inode, _) => inode.shard(),
            other => unreachable!("{other:?} does not say where it lies"),
        }
    }

    pub fn is_shard(&self, shard: ShardId) -> bool {
        shard.0 < self.settings.shards.get()
    }

    /// The row as it will be after all edits; also `None` if its bytes cannot be decoded.
    pub async fn row_in(&mut self, shard: ShardId, key: &Key) -> Result<Option<Row>, FsckError> {
        let bytes = codec::encode_key(key);
        if let Some(edit) = self.edits.get(&(shard, bytes.clone())) {
            return Ok(edit.row.clone());
        }
        if !self.is_shard(shard) {
            return Ok(None);
        }
        let found = self.raw(shard, &bytes).await?;
        Ok(found.and_then(|row| codec::decode_row(key.kind(), &row).ok()))
    }

    pub async fn raw(&mut self, shard: ShardId, key: &[u8]) -> Result<Option<Bytes>, FsckError> {
        let got = self.table(shard).await?.get(key).await;
        Ok(got.map_err(|error| Unreadable::new(shard, error))?)
    }

    pub async fn inode_row(&mut self, inode: InodeId) -> Result<Option<NodeRow>, FsckError> {
        Ok(match self.row_in(inode.shard(), &Key::Inode(inode)).await? {
            Some(Row::Inode(row)) => Some(row),
            _ => None,
        })
    }

    pub async fn directory_row(&mut self, inode: InodeId) -> Result<Option<DirectoryRow>, FsckError> {
        Ok(match self.row_in(inode.shard(), &Key::Directory(inode)).await? {
            Some(Row::Directory(row)) => Some(row),
            _ => None,
        })
    }

    pub async fn partition_row(
        &mut self,
        directory: InodeId,
        index: PartitionIndex,
    ) -> Result<Option<PartitionRow>, FsckError> {
        let key = Key::Partition(directory, index);
        Ok(match self.row_in(self.shard_of(&key), &key).await? {
            Some(Row::Partition(row)) => Some(row),
            _ => None,
        })
    }

    /// The entry in the shard where lookups find it.
    pub async fn entry(&mut self, directory: InodeId, name: &Name) -> Result<Option<EntryRow>, FsckError> {
        let Some((shard, _)) = self.census.place(directory, name.hash()) else { return Ok(None) };
        self.entry_in(shard, directory, name).await
    }

    pub async fn entry_in(
        &mut self,
        shard: ShardId,
        directory: InodeId,
        name: &Name,
    ) -> Result<Option<EntryRow>, FsckError> {
        Ok(match self.row_in(shard, &Key::Entry(directory, name.clone())).await? {
            Some(Row::Entry(row)) => Some(row),
            _ => None,
        })
    }

    pub fn put(&mut self, step: EditStep, shard: ShardId, key: &Key, row: Row) {
        self.edit(step, shard, codec::encode_key(key), Some(row));
    }

    pub fn put_home(&mut self, step: EditStep, key: &Key, row: Row) {
        self.put(step, self.shard_of(key), key, row);
    }

    pub fn remove(&mut self, shard: ShardId, key: Vec<u8>) {
        self.remove_in(EditStep::Removals, shard, key);
    }

    pub fn remove_in(&mut self, step: EditStep, shard: ShardId, key: Vec<u8>) {
        self.edit(step, shard, key, None);
    }

    /// A row that is edited twice is written once, with its last content, in the later step.
    fn edit(&mut self, step: EditStep, shard: ShardId, key: Vec<u8>, row: Option<Row>) {
        // Only rows with content are large.
        self.edits_bytes += 256 + key.len();
        if let Some(Row::Entry(EntryRow { body: EntryBody::Node(node), .. }) | Row::Inode(node)) = &row {
            self.edits_bytes += usize::try_from(node.attributes.size).unwrap_or(0).min(EDITS_BYTES_MAX);
        }
        let edit = self.edits.entry((shard, key)).or_insert(Edit { step, row: None });
        *edit = Edit { step: edit.step.max(step), row };
    }

    fn tally(&mut self, step: EditStep, directory: InodeId, index: PartitionIndex, entry: &EntryRow, sign: i64) {
        let subdirectories = i64::from(matches!(entry.body, EntryBody::Directory(_)));
        let sum = self.tallies.entry((step, directory, index)).or_default();
        sum.0 += sign;
        sum.1 += sign * subdirectories;
    }

    /// Sets the entry `name` to `row`, and counts it if the name is new.
    pub async fn set_entry(&mut self, directory: InodeId, name: &Name, row: EntryRow) -> Result<(), FsckError> {
        let Some((shard, index)) = self.census.place(directory, name.hash()) else { return Ok(()) };
        if let Some(before) = self.entry_in(shard, directory, name).await? {
            self.tally(EditStep::Names, directory, index, &before, -1);
        }
        self.tally(EditStep::Names, directory, index, &row, 1);
        self.put(EditStep::Names, shard, &Key::Entry(directory, name.clone()), Row::Entry(row));
        Ok(())
    }

    pub async fn drop_name(&mut self, directory: InodeId, name: &Name) -> Result<(), FsckError> {
        let Some((shard, index)) = self.census.place(directory, name.hash()) else { return Ok(()) };
        if let Some(row) = self.entry_in(shard, directory, name).await? {
            self.tally(EditStep::Removals, directory, index, &row, -1);
            self.remove(shard, codec::encode_key(&Key::Entry(directory, name.clone())));
        }
        Ok(())
    }

    /// Removes `path` after all rows are written.
    pub fn remove_file(&mut self, path: StorePath) {
        self.files.push(path);
    }

    pub async fn flush_if_full(&mut self) -> Result<(), FsckError> {
        if self.edits_bytes < EDITS_BYTES_MAX {
            return Ok(());
        }
        self.flush().await
    }

    /// Writes all edits, step by step.
    pub async fn flush(&mut self) -> Result<(), FsckError> {
        self.edits_bytes = 0;
        self.write_cut_files()?;
        for step in STEPS {
            self.tally_partitions(step).await?;
            let mut batches: BTreeMap<ShardId, TableBatch> = BTreeMap::new();
            let edits = std::mem::take(&mut self.edits);
            let (due, later) = edits.into_iter().partition::<BTreeMap<_, _>, _>(|(_, edit)| edit.step <= step);
            self.edits = later;
            for ((shard, key), edit) in due {
                let batch = batches.entry(shard).or_default();
                match edit.row {
                    Some(row) => batch.put(key, codec::encode_row(&row)),
                    None => batch.delete(key),
                }
            }
            let shards: Vec<ShardId> = batches.keys().copied().collect();
            for (shard, batch) in batches {
                #[cfg(test)]
                super::kill_point::check()?;
                let written = self.table(shard).await?.write(&batch).await;
                written.map_err(|error| Unreadable::new(shard, error))?;
            }
            for shard in shards {
                let synced = self.table(shard).await?.sync().await;
                synced.map_err(|error| Unreadable::new(shard, error))?;
            }
        }
        for path in std::mem::take(&mut self.files) {
            absent_is_fine(disk::remove_file(&path)).map_err(|source| self.io("remove", &path, source))?;
        }
        Ok(())
    }

    async fn tally_partitions(&mut self, step: EditStep) -> Result<(), FsckError> {
        let tallies = std::mem::take(&mut self.tallies);
        let (due, later) = tallies.into_iter().partition::<BTreeMap<_, _>, _>(|((when, ..), _)| *when <= step);
        self.tallies = later;
        for ((_, directory, index), (entries, subdirectories)) in due {
            let Some(mut row) = self.partition_row(directory, index).await? else { continue };
            row.entries = row.entries.saturating_add_signed(entries);
            row.subdirectories = row.subdirectories.saturating_add_signed(subdirectories);
            row.mtime = row.mtime.max(self.now);
            self.put_home(step, &Key::Partition(directory, index), Row::Partition(row));
        }
        Ok(())
    }

    pub async fn close(mut self) -> Result<(), FsckError> {
        let mut result = Ok(());
        while let Some((shard, table)) = self.tables.pop_first() {
            let closed = table.close().await.map_err(|error| FsckError::from(Unreadable::new(shard, error)));
            result = result.and(closed);
        }
        result
    }

    /// All rows of `shard` in `range` that can be decoded, as they are in the table without pending edits.
    pub async fn scan(&mut self, shard: ShardId, range: Range<Vec<u8>>) -> Result<Vec<(Key, Row)>, FsckError> {
        let scan = self.table(shard).await?.scan(range.start.into(), range.end.into()).await;
        let mut cursor = scan.map_err(|error| Unreadable::new(shard, error))?;
        let mut rows = Vec::new();
        while let Some((key, row)) = cursor.next().await.map_err(|error| Unreadable::new(shard, error))? {
            rows.extend(codec::decode(&key, &row).ok());
        }
        Ok(rows)
    }

    /// Finds, in one pass over all entries, the names of the inodes that `fixes` need.
    pub async fn find_names(&mut self, fixes: &[Fix]) -> Result<(), FsckError> {
        let wanted: HashSet<InodeId> = fixes.iter().filter_map(inode_to_find).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        for shard in self.settings.shards.all() {
            let range = codec::keys_of(Kind::Entry);
            let scan = self.table(shard).await?.scan(range.start.into(), range.end.into()).await;
            let mut cursor = scan.map_err(|error| Unreadable::new(shard, error))?;
            while let Some((key, row)) = cursor.next().await.map_err(|error| Unreadable::new(shard, error))? {
                let Ok((Key::Entry(directory, name), Row::Entry(row))) = codec::decode(&key, &row) else { continue };
                let here = self.census.place(directory, name.hash()).is_some_and(|(place, _)| place == shard);
                if here && wanted.contains(&row.inode) {
                    self.names.entry(row.inode).or_default().push(NamedEntry { directory, name, row });
                }
            }
        }
        Ok(())
    }

    pub fn names_of(&self, inode: InodeId) -> Vec<NamedEntry> {
        self.names.get(&inode).cloned().unwrap_or_default()
    }

    /// A free inode id.
    pub async fn new_inode(&mut self, shard: ShardId) -> Result<InodeId, FsckError> {
        let shard = if self.is_shard(shard) { shard } else { InodeId::ROOT.shard() };
        loop {
            let end = match self.row_in(shard, &Key::Counter).await? {
                Some(Row::Counter(counter)) => counter.inodes_end,
                _ => self.census.inodes_end[usize::from(shard.0)],
            };
            self.put(EditStep::Rows, shard, &Key::Counter, Row::Counter(CounterRow { inodes_end: end + 1 }));
            let inode = InodeId::new(shard, end);
            if !self.volume.backing_file(inode).exists() {
                return Ok(inode);
            }
        }
    }

    /// The map of the live partitions of `directory`.
    pub fn map_of(&self, directory: InodeId) -> PartitionMap {
        let mut map = PartitionMap::whole(self.settings.shards);
        // In order of index, so that a partition comes after the one that it was split from.
        for index in (1..self.settings.shards.get()).map(PartitionIndex) {
            let live = self.census.partitions.get(&(directory, index)).is_some_and(|found| found.live);
            if live && map.has(index.cut_from()) {
                map.add(index);
            }
        }
        map
    }

    /// Creates the rows of an empty directory below `parent`.
    pub fn make_directory(&mut self, directory: InodeId, row: DirectoryRow) {
        let partition = PartitionRow {
            index: PartitionIndex::FIRST,
            depth: 0,
            state: PartitionState::Live,
            mode: row.mode,
            uid: row.uid,
            gid: row.gid,
            entries: 0,
            subdirectories: 0,
            mtime: self.now,
            map: row.map.clone(),
        };
        let live = PartitionRecord { row: partition.clone(), live: true, entries: 0, subdirectories: 0 };
        self.census.partitions.insert((directory, PartitionIndex::FIRST), live);
        self.put_home(EditStep::Rows, &Key::Directory(directory), Row::Directory(row));
        let key = Key::Partition(directory, PartitionIndex::FIRST);
        self.put_home(EditStep::Rows, &key, Row::Partition(partition));
    }

    pub fn new_directory_row(&self, parent: InodeId) -> DirectoryRow {
        DirectoryRow {
            parent,
            mode: FOUND_DIRECTORY_MODE,
            uid: self.settings.owner_uid,
            gid: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            map: PartitionMap::whole(self.settings.shards),
            xattrs: Vec::new(),
        }
    }

    /// Default attributes for a file whose attributes are lost.
    pub fn new_attributes(&self, kind: FileKind) -> Attributes {
        Attributes {
            kind,
            mode: FOUND_FILE_MODE,
            uid: self.settings.owner_uid,
            gid: 0,
            nlink: 1,
            size: 0,
            rdev: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
        }
    }

    /// The directory `lost+found` of the root; created if missing.
    async fn lost_and_found(&mut self) -> Result<InodeId, FsckError> {
        if let Some(directory) = self.lost_and_found {
            return Ok(directory);
        }
        for attempt in 0..NAMES_MAX {
            let name = numbered(LOST_AND_FOUND, attempt);
            let directory = match self.entry(InodeId::ROOT, &name).await? {
                None => self.make_lost_and_found(&name).await?,
                Some(EntryRow { inode, body: EntryBody::Directory(_) })
                    if self.census.place(inode, name.hash()).is_some() =>
                {
                    inode
                }
                Some(_) => continue,
            };
            self.lost_and_found = Some(directory);
            return Ok(directory);
        }
        Err(FsckError::Table(Unreadable::new(InodeId::ROOT.shard(), "every name for lost+found is taken")))
    }

    async fn make_lost_and_found(&mut self, name: &Name) -> Result<InodeId, FsckError> {
        let directory = self.new_inode(InodeId::ROOT.shard()).await?;
        let row = self.new_directory_row(InodeId::ROOT);
        let attributes = Attributes { mode: row.mode, nlink: 2, ..self.new_attributes(FileKind::Directory) };
        self.make_directory(directory, row);
        let entry = EntryRow { inode: directory, body: EntryBody::Directory(attributes) };
        self.set_entry(InodeId::ROOT, name, entry).await?;
        Ok(directory)
    }

    /// The name that `inode` already has in lost+found, for example from an interrupted repair.
    pub async fn found_before(&mut self, inode: InodeId) -> Result<Option<NamedEntry>, FsckError> {
        let names = self.names_of(inode);
        if names.is_empty() {
            return Ok(None);
        }
        let (directory, id) = (self.lost_and_found().await?, inode.to_string());
        let found =
            |named: &NamedEntry| named.directory == directory && named.name.as_bytes().starts_with(id.as_bytes());
        Ok(names.into_iter().find(found))
    }

    /// Gives `row` a name in lost+found: its inode id. Returns the directory and the path.
    pub async fn find_place(&mut self, row: EntryRow) -> Result<(InodeId, String), FsckError> {
        let directory = self.lost_and_found().await?;
        for attempt in 0..NAMES_MAX {
            let name = numbered(&row.inode.to_string(), attempt);
            if self.entry(directory, &name).await?.is_none() {
                self.set_entry(directory, &name, row).await?;
                return Ok((directory, found_path(&name)));
            }
        }
        let reason = format!("every name for inode {} in lost+found is taken", row.inode);
        Err(FsckError::Table(Unreadable::new(directory.shard(), reason)))
    }

    pub fn io(&self, action: &str, path: &StorePath, source: io::Error) -> FsckError {
        FsckError::Io { doing: format!("cannot {action} {}", path.display()), source }
    }

    /// Gives the backing file of `from` the name of `to` too, durably.
    pub fn link_backing(&self, from: InodeId, to: InodeId) -> Result<(), FsckError> {
        let (old, new) = (self.volume.backing_file(from), self.volume.backing_file(to));
        let linked = disk::link(&old, &new).and_then(|()| disk::sync_directory(&new.parent()));
        linked.map_err(|source| self.io("link", &new, source))
    }
}

/// A file without content.
pub fn empty_node(attributes: Attributes) -> NodeRow {
    NodeRow {
        attributes: Attributes { kind: FileKind::Regular, size: 0, nlink: 1, ..attributes },
        content: varve_schema::Content::Inline(Bytes::new()),
        generation: LayoutGeneration::default(),
        xattrs: Vec::new(),
    }
}

/// The path of a name in lost+found.
pub fn found_path(name: &Name) -> String {
    format!("/{LOST_AND_FOUND}/{name}")
}

fn numbered(name: &str, attempt: u32) -> Name {
    let text = if attempt == 0 { name.to_owned() } else { format!("{name}.{attempt}") };
    Name::new(text.as_bytes()).expect("a short name without a slash")
}

pub fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Creates a directory that only the owner of the volume may enter, because data of all users is put there.
pub fn make_private(directory: &StorePath) -> Result<(), FsckError> {
    let made = disk::create_directories(directory).and_then(|()| directory.set_directory_mode(0o700));
    made.map_err(|source| FsckError::Io { doing: format!("cannot make {}", directory.display()), source })
}

/// The inode whose names a fix needs.
fn inode_to_find(fix: &Fix) -> Option<InodeId> {
    match fix {
        Fix::MakeDirectoryRow { directory, .. }
        | Fix::AttachDirectory { directory }
        | Fix::OneName { directory, .. } => Some(*directory),
        Fix::Duplicate { inode }
        | Fix::DropReferences { inode }
        | Fix::RecordSize { inode, .. }
        | Fix::Bereaved { inode } => Some(*inode),
        _ => None,
    }
}
