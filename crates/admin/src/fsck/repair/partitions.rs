//! Repairs of the partitions of each directory, and of the copies in their rows.

use super::super::FsckError;
use super::super::census::PartitionRecord;
use super::session::{EditStep, RepairSession};
use varve_schema::{EntryBody, Key, PartitionRow, PartitionState, Row, codec};
use varve_types::{HashRange, InodeId, Mode, PartitionIndex};

const ROOT_MODE: Mode = Mode(0o755);

impl RepairSession<'_> {
    pub async fn make_root(&mut self) -> Result<(), FsckError> {
        let mut row = self.new_directory_row(InodeId::ROOT);
        row.mode = ROOT_MODE;
        row.map = self.map_of(InodeId::ROOT);
        if let Some(partition) = self.partition_row(InodeId::ROOT, PartitionIndex::FIRST).await? {
            (row.mode, row.uid, row.gid) = (partition.mode, partition.uid, partition.gid);
            self.put_home(EditStep::Rows, &Key::Directory(InodeId::ROOT), Row::Directory(row));
        } else {
            let depth = self.map_of(InodeId::ROOT).depth(PartitionIndex::FIRST);
            self.put_home(EditStep::Rows, &Key::Directory(InodeId::ROOT), Row::Directory(row));
            self.make_partition(InodeId::ROOT, PartitionIndex::FIRST, depth).await?;
        }
        self.note("recreated the row of the root directory");
        Ok(())
    }

    pub async fn make_partition(
        &mut self,
        directory: InodeId,
        index: PartitionIndex,
        depth: u8,
    ) -> Result<(), FsckError> {
        let key = Key::Partition(directory, index);
        let home = match self.directory_row(directory).await? {
            Some(row) => row,
            None => self.new_directory_row(directory),
        };
        let mut map = self.map_of(directory);
        if map.has(index.cut_from()) {
            map.add(index);
        }
        // Names that are already in the table belong to the partition.
        let entries = self.scan(self.shard_of(&key), codec::entries_of(directory, index.range(depth))).await?;
        let is_directory =
            |row: &Row| matches!(row, Row::Entry(entry) if matches!(entry.body, EntryBody::Directory(_)));
        let row = PartitionRow {
            index,
            depth,
            state: PartitionState::Live,
            mode: home.mode,
            uid: home.uid,
            gid: home.gid,
            entries: entries.len() as u64,
            subdirectories: entries.iter().filter(|(_, row)| is_directory(row)).count() as u64,
            mtime: self.now,
            map,
        };
        let live =
            PartitionRecord { row: row.clone(), live: true, entries: row.entries, subdirectories: row.subdirectories };
        self.census.partitions.insert((directory, index), live);
        self.note(format!("recreated partition {} of directory {directory}, with {} names", index.0, row.entries));
        self.put_home(EditStep::Rows, &key, Row::Partition(row));
        Ok(())
    }

    /// Moves its names to the partitions that hold their hashes. A name that such a partition already has for another
    /// file goes to lost+found.
    pub async fn dissolve_partition(&mut self, directory: InodeId, index: PartitionIndex) -> Result<(), FsckError> {
        let key = Key::Partition(directory, index);
        let shard = self.shard_of(&key);
        for (entry, row) in self.scan(shard, codec::entries_of(directory, HashRange::ALL)).await? {
            let (Key::Entry(_, name), Row::Entry(row)) = (&entry, row) else { continue };
            match self.entry(directory, name).await? {
                None => self.set_entry(directory, name, row).await?,
                Some(there) if there.inode == row.inode => {}
                Some(_) => {
                    let (_, path) = self.find_place(row).await?;
                    self.note(format!("{name} of directory {directory} existed twice: one is now {path}"));
                }
            }
            self.remove(shard, codec::encode_key(&entry));
            self.flush_if_full().await?;
        }
        self.remove(shard, codec::encode_key(&key));
        self.note(format!("dissolved partition {} of directory {directory}, which overlapped others", index.0));
        Ok(())
    }

    pub async fn drop_partition(&mut self, directory: InodeId, index: PartitionIndex) -> Result<(), FsckError> {
        let key = Key::Partition(directory, index);
        let shard = self.shard_of(&key);
        for (entry, _) in self.scan(shard, codec::entries_of(directory, HashRange::ALL)).await? {
            self.remove(shard, codec::encode_key(&entry));
        }
        self.remove(shard, codec::encode_key(&key));
        self.note(format!("removed partition {} of directory {directory}, left by an interrupted split", index.0));
        Ok(())
    }

    pub async fn set_live(&mut self, directory: InodeId, index: PartitionIndex) -> Result<(), FsckError> {
        let Some(mut row) = self.partition_row(directory, index).await? else { return Ok(()) };
        row.state = PartitionState::Live;
        self.put_home(EditStep::Rows, &Key::Partition(directory, index), Row::Partition(row));
        self.note(format!("partition {} of directory {directory} takes names again", index.0));
        Ok(())
    }

    pub async fn set_counts(
        &mut self,
        directory: InodeId,
        index: PartitionIndex,
        entries: u64,
        subdirectories: u64,
    ) -> Result<(), FsckError> {
        let Some(mut row) = self.partition_row(directory, index).await? else { return Ok(()) };
        (row.entries, row.subdirectories) = (entries, subdirectories);
        self.put_home(EditStep::Rows, &Key::Partition(directory, index), Row::Partition(row));
        self.note(format!(
            "partition {} of directory {directory} now counts {entries} names, {subdirectories} of them directories",
            index.0
        ));
        Ok(())
    }

    pub async fn copy_mode(&mut self, directory: InodeId, index: PartitionIndex) -> Result<(), FsckError> {
        let (Some(mut row), Some(home)) =
            (self.partition_row(directory, index).await?, self.directory_row(directory).await?)
        else {
            return Ok(());
        };
        (row.mode, row.uid, row.gid) = (home.mode, home.uid, home.gid);
        self.put_home(EditStep::Rows, &Key::Partition(directory, index), Row::Partition(row));
        self.note(format!("partition {} of directory {directory} now has the directory's mode and owner", index.0));
        Ok(())
    }
}
