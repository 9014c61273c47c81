//! Repairs of directories and their names.

use super::super::FsckError;
use super::session::{EditStep, RepairSession};
use varve_schema::{DirectoryRow, EntryBody, EntryRow, Key, Row, codec};
use varve_types::{Attributes, FileKind, InodeId, Name, PartitionIndex, ShardId};

impl RepairSession<'_> {
    /// `known`: another object in the volume has this inode id.
    pub async fn stray(
        &mut self,
        shard: ShardId,
        directory: InodeId,
        name: Name,
        known: bool,
    ) -> Result<(), FsckError> {
        let Some(row) = self.entry_in(shard, directory, &name).await? else { return Ok(()) };
        let elsewhere = self.entry(directory, &name).await?.is_some();
        let leads_somewhere = matches!(row.body, EntryBody::Node(_));
        if known || elsewhere || !leads_somewhere {
            self.note(format!("shard {shard}: removed {name} of directory {directory}, which no lookup finds"));
        } else {
            let (_, path) = self.find_place(row).await?;
            self.note(format!("shard {shard}: {name} of directory {directory}, which no lookup finds, is now {path}"));
        }
        self.remove(shard, codec::encode_key(&Key::Entry(directory, name)));
        Ok(())
    }

    pub async fn make_directory_row(&mut self, directory: InodeId, parent: InodeId) -> Result<(), FsckError> {
        if !self.is_shard(directory.shard()) {
            return self.remove_names(directory).await;
        }
        let names = self.names_of(directory);
        let attributes = names.iter().find_map(|named| match &named.row.body {
            EntryBody::Directory(attributes) => Some(*attributes),
            _ => None,
        });
        let row = self.remade_row(directory, parent, attributes).await?;
        if self.census.has_live(directory) {
            self.put_home(EditStep::Rows, &Key::Directory(directory), Row::Directory(row));
        } else {
            self.make_directory(directory, row);
        }
        self.note(format!("recreated the row of directory {directory}"));
        Ok(())
    }

    /// Rebuilds a directory's row from other sources: the copies in its partitions, and the attributes in its entry.
    async fn remade_row(
        &mut self,
        directory: InodeId,
        parent: InodeId,
        attributes: Option<Attributes>,
    ) -> Result<DirectoryRow, FsckError> {
        let mut row = self.new_directory_row(parent);
        if let Some(a) = attributes {
            (row.mode, row.uid, row.gid) = (a.mode, a.uid, a.gid);
            (row.atime, row.mtime, row.ctime, row.btime) = (a.atime, a.mtime, a.ctime, a.btime);
        }
        if let Some(partition) = self.partition_row(directory, PartitionIndex::FIRST).await? {
            (row.mode, row.uid, row.gid) = (partition.mode, partition.uid, partition.gid);
        }
        row.map = self.map_of(directory);
        for (key, _) in self.scan(directory.shard(), codec::xattrs_of(directory)).await? {
            if let Key::Xattr(_, name) = key {
                row.xattrs.push(name);
            }
        }
        Ok(row)
    }

    pub async fn drop_directory(&mut self, directory: InodeId) -> Result<(), FsckError> {
        for index in (0..self.settings.shards.get()).map(PartitionIndex) {
            if self.census.partitions.contains_key(&(directory, index)) {
                let key = Key::Partition(directory, index);
                self.remove(self.shard_of(&key), codec::encode_key(&key));
            }
        }
        if self.is_shard(directory.shard()) {
            for (key, _) in self.scan(directory.shard(), codec::xattrs_of(directory)).await? {
                self.remove(directory.shard(), codec::encode_key(&key));
            }
            self.remove(directory.shard(), codec::encode_key(&Key::Directory(directory)));
        }
        self.note(format!("removed the rows of directory {directory}, which was empty and had no name"));
        Ok(())
    }

    pub async fn attach_directory(&mut self, directory: InodeId) -> Result<(), FsckError> {
        let row = match self.directory_row(directory).await? {
            Some(row) => row,
            None => self.remade_row(directory, InodeId::ROOT, None).await?,
        };
        let attributes = Attributes {
            mode: row.mode,
            uid: row.uid,
            gid: row.gid,
            nlink: 2,
            ..self.new_attributes(FileKind::Directory)
        };
        let entry = EntryRow { inode: directory, body: EntryBody::Directory(attributes) };
        let (parent, path) = self.find_place(entry).await?;
        self.put_home(EditStep::Names, &Key::Directory(directory), Row::Directory(DirectoryRow { parent, ..row }));
        for named in self.names_of(directory) {
            self.drop_name(named.directory, &named.name).await?;
        }
        self.note(format!("directory {directory}, to which no path led, is now {path}"));
        Ok(())
    }

    pub async fn one_name(&mut self, directory: InodeId, keep: InodeId) -> Result<(), FsckError> {
        let names = self.names_of(directory);
        let kept = names.iter().position(|named| named.directory == keep).unwrap_or(0);
        for (place, named) in names.iter().enumerate() {
            if place == kept && directory != InodeId::ROOT {
                continue;
            }
            self.drop_name(named.directory, &named.name).await?;
            let (name, parent) = (&named.name, named.directory);
            self.note(format!("removed {name} of directory {parent}: directory {directory} has another name"));
        }
        Ok(())
    }

    /// Removes names that cannot have a target.
    pub async fn remove_names(&mut self, inode: InodeId) -> Result<(), FsckError> {
        for named in self.names_of(inode) {
            self.drop_name(named.directory, &named.name).await?;
            let (name, directory) = (&named.name, named.directory);
            self.note(format!("removed {name} of directory {directory}, which referred to missing inode {inode}"));
        }
        Ok(())
    }

    pub async fn set_parent(&mut self, directory: InodeId, parent: InodeId) -> Result<(), FsckError> {
        let Some(row) = self.directory_row(directory).await? else { return Ok(()) };
        self.put_home(EditStep::Rows, &Key::Directory(directory), Row::Directory(DirectoryRow { parent, ..row }));
        self.note(format!("'..' of directory {directory} now leads to directory {parent}, where its name is"));
        Ok(())
    }

    pub async fn set_map(&mut self, directory: InodeId) -> Result<(), FsckError> {
        let Some(mut row) = self.directory_row(directory).await? else { return Ok(()) };
        row.map = self.map_of(directory);
        self.put_home(EditStep::Rows, &Key::Directory(directory), Row::Directory(row));
        self.note(format!("the map of directory {directory} now knows its partitions"));
        Ok(())
    }
}
