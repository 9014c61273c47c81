//! Repairs of backing files.

use super::super::FsckError;
use super::super::fix::Cut;
use super::session::{EditStep, NamedEntry, RepairSession, empty_node, found_path};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use varve_env::disk::{self, File};
use varve_schema::codec;
use varve_schema::{BackingSize, Content, EntryBody, EntryRow, Key, NodeRow, Row};
use varve_types::{Attributes, FileKind, InodeId, LayoutGeneration, ShardId, Timestamp};

impl RepairSession<'_> {
    pub async fn record_sizes(&mut self, inode: InodeId, cut: Option<Cut>) -> Result<(), FsckError> {
        if let Some(Cut { expected, found }) = cut {
            self.note_cut(inode, expected, found).await?;
        }
        if let Some(row) = self.inode_row(inode).await?
            && let Some(row) = self.recorded(inode, row)?
        {
            self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
        }
        for named in self.names_of(inode) {
            let Some((shard, _)) = self.census.place(named.directory, named.name.hash()) else { continue };
            let EntryBody::Node(node) = named.row.body else { continue };
            if let Some(node) = self.recorded(inode, node)? {
                let row = EntryRow { inode, body: EntryBody::Node(node) };
                self.put(EditStep::Rows, shard, &Key::Entry(named.directory, named.name), Row::Entry(row));
            }
        }
        Ok(())
    }

    /// Updates the row from the backing file. If a truncation of that file is pending, it is completed first.
    fn recorded(&mut self, inode: InodeId, mut row: NodeRow) -> Result<Option<NodeRow>, FsckError> {
        let Content::Backing(state) = row.content else { return Ok(None) };
        let path = self.volume.backing_file(inode);
        if let BackingSize::Truncating(size) = state {
            let cut = File::open_to_write(&path).and_then(|file| file.set_len(size));
            cut.map_err(|source| self.io("truncate", &path, source))?;
        }
        // A power loss must not destroy data that a row with an authoritative size describes.
        File::open(&path).and_then(|file| file.sync_all()).map_err(|source| self.io("sync", &path, source))?;
        let found = path.symlink_metadata().map_err(|source| self.io("look at", &path, source))?;
        if let BackingSize::Stale { .. } = state {
            row.attributes.mtime = row.attributes.mtime.max(modified(&found));
        }
        row.attributes.size = found.len();
        row.content = Content::Backing(BackingSize::Authoritative);
        self.note(format!("inode {inode} now has the size of its backing file: {} bytes", found.len()));
        Ok(Some(row))
    }

    /// As long as the file has an old name, a row still shows that its content is missing: its inode row, which is
    /// emptied last, or else its old entry. So the next repair continues an interrupted one.
    pub async fn bereaved(&mut self, inode: InodeId) -> Result<(), FsckError> {
        let names = self.names_of(inode);
        let body = if let Some(row) = self.inode_row(inode).await? {
            let row = NodeRow { xattrs: row.xattrs, ..empty_node(row.attributes) };
            self.put_home(EditStep::Ends, &Key::Inode(inode), Row::Inode(row));
            EntryBody::Reference(FileKind::Regular)
        } else {
            let Some(EntryBody::Node(node)) = names.first().map(|named| named.row.body.clone()) else { return Ok(()) };
            EntryBody::Node(empty_node(node.attributes))
        };
        let entry = EntryRow { inode, body };
        let found = self.found_before(inode).await?;
        let path = match &found {
            Some(NamedEntry { directory, name, .. }) => {
                self.set_entry(*directory, name, entry).await?;
                found_path(name)
            }
            None => self.find_place(entry).await?.1,
        };
        self.drop_bereaved(&names, found.as_ref(), &path).await
    }

    /// Removes the old names of a file without content, except its present one: `found`, at `path`.
    pub async fn drop_bereaved(
        &mut self,
        names: &[NamedEntry],
        found: Option<&NamedEntry>,
        path: &str,
    ) -> Result<(), FsckError> {
        let is_found = |named: &NamedEntry| {
            found.is_some_and(|found| (found.directory, &found.name) == (named.directory, &named.name))
        };
        let is_directory = |named: &NamedEntry| matches!(named.row.body, EntryBody::Directory(_));
        for named in names.iter().filter(|named| !is_directory(named) && !is_found(named)) {
            self.drop_name(named.directory, &named.name).await?;
            let (name, directory) = (&named.name, named.directory);
            self.note(format!("{name} of directory {directory}, whose content is gone, is now {path}, and empty"));
        }
        Ok(())
    }

    /// Removes the file first, because only the row refers to it.
    pub fn drop_garbage(&mut self, shard: ShardId, inode: InodeId) -> Result<(), FsckError> {
        let path = self.volume.backing_file(inode);
        match disk::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(self.io("remove", &path, source)),
            Ok(()) => {
                let directory = path.parent();
                disk::sync_directory(&directory).map_err(|source| self.io("sync", &directory, source))?;
            }
        }
        self.remove(shard, codec::encode_key(&Key::Garbage(inode)));
        self.note(format!("removed the content of inode {inode}, a file that was removed"));
        Ok(())
    }

    pub async fn attach_data(&mut self, inode: InodeId) -> Result<(), FsckError> {
        let path = self.volume.backing_file(inode);
        let found = path.symlink_metadata().map_err(|source| self.io("look at", &path, source))?;
        if found.len() == 0 {
            return self.remove_empty(inode);
        }
        File::open(&path).and_then(|file| file.sync_all()).map_err(|source| self.io("sync", &path, source))?;
        let free = self.census.ids.binary_search(&inode).is_err();
        let id = if free && self.is_shard(inode.shard()) && inode.0 & InodeId::COUNTER_MAX > 1 {
            let shard = inode.shard();
            let above = inode.0 & InodeId::COUNTER_MAX;
            let end = match self.row_in(shard, &Key::Counter).await? {
                Some(Row::Counter(counter)) => counter.inodes_end,
                _ => 0,
            };
            if end <= above {
                self.raise_counter(shard, above);
            }
            inode
        } else {
            let new = self.new_inode(inode.shard()).await?;
            self.link_backing(inode, new)?;
            self.remove_file(path);
            new
        };
        let at = modified(&found);
        let attributes =
            Attributes { size: found.len(), mtime: at, ctime: at, ..self.new_attributes(FileKind::Regular) };
        let content = Content::Backing(BackingSize::Authoritative);
        let node = NodeRow { attributes, content, generation: LayoutGeneration::default(), xattrs: Vec::new() };
        let row = EntryRow { inode: id, body: EntryBody::Node(node) };
        let (_, path) = self.find_place(row).await?;
        self.note(format!("the content of inode {inode}, which had no row, is now {path}: {} bytes", found.len()));
        Ok(())
    }
}

fn modified(found: &Metadata) -> Timestamp {
    Timestamp { seconds: found.mtime(), nanoseconds: found.mtime_nsec() as u32 }
}
