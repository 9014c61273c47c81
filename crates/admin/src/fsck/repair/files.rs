//! Repairs of files, their names and extended attributes.

use super::super::FsckError;
use super::super::files::fits;
use super::session::{EditStep, NamedEntry, RepairSession, absent_is_fine, empty_node, found_path};
use bytes::Bytes;
use varve_env::disk;
use varve_schema::{BackingSize, Content, EntryBody, EntryRow, Key, NodeRow, Row, codec};
use varve_types::{FileKind, InodeId, LayoutGeneration, Name, VolumeSettings};

/// Backing files belong to the user who runs the servers.
const BACKING_MODE: u32 = 0o600;

impl RepairSession<'_> {
    /// Separates objects that share an id. Names with one backing file become names of one file; every other object
    /// gets an id of its own.
    pub async fn part_duplicates(&mut self, inode: InodeId) -> Result<(), FsckError> {
        let names = self.names_of(inode);
        let is_directory = self.census.directories.get(&inode).is_some_and(|found| found.row.is_some())
            || names.iter().any(|named| matches!(named.row.body, EntryBody::Directory(_)));
        let nodes = names.into_iter().filter(|named| matches!(named.row.body, EntryBody::Node(_)));
        let (backing, inline): (Vec<_>, Vec<_>) = nodes.partition(|named| has_backing(&named.row));
        if is_directory || !self.is_shard(inode.shard()) {
            for named in backing.iter().chain(&inline) {
                self.renumber(named).await?;
            }
            return Ok(());
        }
        let row = self.inode_row(inode).await?;
        if row.is_none()
            && !backing.is_empty()
            && !self.volume.backing_file(inode).exists()
            && let Some(found) = self.found_before(inode).await?
            && !has_backing(&found.row)
        {
            // An interrupted repair has already moved it to lost+found, empty.
            return self.drop_bereaved(&backing, None, &found_path(&found.name)).await;
        }
        let row_has_backing = row.as_ref().is_some_and(|row| matches!(row.content, Content::Backing(_)));
        let mut keep_first_inline = row.is_none() && backing.is_empty();
        match &backing[..] {
            [] => {}
            [_] if row.is_none() => {}
            all if row.is_none() || row_has_backing => self.join(inode, all, row.is_none()),
            all => {
                for named in all {
                    self.renumber(named).await?;
                }
            }
        }
        for named in &inline {
            if !std::mem::take(&mut keep_first_inline) {
                self.renumber(named).await?;
            }
        }
        Ok(())
    }

    /// Makes `names`, whose rows all refer to the backing file of `inode`, names of one file.
    fn join(&mut self, inode: InodeId, names: &[NamedEntry], make_row: bool) {
        if let (true, Some(NamedEntry { row: EntryRow { body: EntryBody::Node(node), .. }, .. })) =
            (make_row, names.first())
        {
            let mut node = node.clone();
            node.attributes.nlink = names.len() as u32;
            self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(node));
        }
        for named in names {
            let row = EntryRow { inode, body: EntryBody::Reference(FileKind::Regular) };
            let key = Key::Entry(named.directory, named.name.clone());
            if let Some((shard, _)) = self.census.place(named.directory, named.name.hash()) {
                self.put(EditStep::Names, shard, &key, Row::Entry(row));
            }
            let (name, directory) = (&named.name, named.directory);
            self.note(format!("{name} of directory {directory} is now one of the names of inode {inode}"));
        }
    }

    async fn renumber(&mut self, named: &NamedEntry) -> Result<(), FsckError> {
        let old = named.row.inode;
        let new = self.new_inode(old.shard()).await?;
        if has_backing(&named.row) && self.volume.backing_file(old).exists() {
            self.link_backing(old, new)?;
        }
        let Some((shard, _)) = self.census.place(named.directory, named.name.hash()) else { return Ok(()) };
        let key = Key::Entry(named.directory, named.name.clone());
        self.put(EditStep::Names, shard, &key, Row::Entry(EntryRow { inode: new, ..named.row.clone() }));
        let (name, directory) = (&named.name, named.directory);
        self.note(format!("{name} of directory {directory} is now inode {new}: something else is inode {old}"));
        Ok(())
    }

    pub async fn drop_references(&mut self, inode: InodeId) -> Result<(), FsckError> {
        let names = self.names_of(inode);
        let path = self.volume.backing_file(inode);
        if !self.is_shard(inode.shard()) || !path.is_file() {
            return self.remove_names(inode).await;
        }
        let mut attributes = self.new_attributes(FileKind::Regular);
        attributes.nlink = names.len() as u32;
        let mut xattrs = Vec::new();
        for (key, _) in self.scan(inode.shard(), codec::xattrs_of(inode)).await? {
            if let Key::Xattr(_, name) = key {
                xattrs.push(name);
            }
        }
        let content = Content::Backing(BackingSize::Stale { at_least: 0 });
        let row = NodeRow { attributes, content, generation: LayoutGeneration::default(), xattrs };
        self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
        self.note(format!("recreated the row of inode {inode}: its owner and mode are lost, its content is intact"));
        Ok(())
    }

    pub async fn set_links(&mut self, inode: InodeId, links: u32) -> Result<(), FsckError> {
        let Some(mut row) = self.inode_row(inode).await? else { return Ok(()) };
        row.attributes.nlink = links;
        self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
        self.note(format!("inode {inode} now counts {links} links"));
        Ok(())
    }

    pub async fn attach_file(&mut self, inode: InodeId) -> Result<(), FsckError> {
        let Some(mut row) = self.inode_row(inode).await? else { return Ok(()) };
        let entry = EntryRow { inode, body: EntryBody::Reference(row.attributes.kind) };
        let (_, path) = self.find_place(entry).await?;
        row.attributes.nlink = 1;
        self.put_home(EditStep::Names, &Key::Inode(inode), Row::Inode(row));
        self.note(format!("inode {inode}, which had no name, is now {path}"));
        Ok(())
    }

    pub async fn drop_orphan(&mut self, inode: InodeId) -> Result<(), FsckError> {
        for (key, _) in self.scan(inode.shard(), codec::xattrs_of(inode)).await? {
            self.remove(inode.shard(), codec::encode_key(&key));
        }
        for key in [Key::Inode(inode), Key::Orphan(inode)] {
            self.remove(inode.shard(), codec::encode_key(&key));
        }
        // The backing file is removed after its row, even if this repair ends before.
        self.put(EditStep::Rows, inode.shard(), &Key::Garbage(inode), Row::Garbage);
        self.note(format!("removed inode {inode}, which had no name and was open"));
        Ok(())
    }

    pub async fn correct_node(&mut self, inode: InodeId, at: Option<(InodeId, Name)>) -> Result<(), FsckError> {
        let Some((directory, name)) = at else {
            let Some(row) = self.inode_row(inode).await? else { return Ok(()) };
            let row = self.corrected(inode, row)?;
            self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
            self.note(format!("the row of inode {inode} now agrees with itself"));
            return Ok(());
        };
        let Some(mut entry) = self.entry(directory, &name).await? else { return Ok(()) };
        match &mut entry.body {
            EntryBody::Directory(attributes) => attributes.kind = FileKind::Directory,
            EntryBody::Reference(_) => return Ok(()),
            EntryBody::Node(node) => {
                let mut row = self.corrected(inode, node.clone())?;
                row.attributes.nlink = 1;
                if row.xattrs.is_empty() || self.inode_row(inode).await?.is_some() {
                    row.xattrs.clear();
                    *node = row;
                } else {
                    // A file with xattrs must have an inode row.
                    entry.body = EntryBody::Reference(row.attributes.kind);
                    self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
                }
            }
        }
        if let Some((shard, _)) = self.census.place(directory, name.hash()) {
            self.put(EditStep::Names, shard, &Key::Entry(directory, name.clone()), Row::Entry(entry));
        }
        self.note(format!("{name} of directory {directory} now agrees with itself"));
        Ok(())
    }

    /// Derives the kind of a file from its content.
    fn corrected(&mut self, inode: InodeId, mut row: NodeRow) -> Result<NodeRow, FsckError> {
        match &row.content {
            Content::Inline(bytes) => {
                (row.attributes.kind, row.attributes.size) = (FileKind::Regular, bytes.len() as u64);
                if bytes.len() > VolumeSettings::INLINE_LIMIT_MAX as usize {
                    let path = self.volume.backing_file(inode);
                    if !path.exists() {
                        disk::write_synced(&path, bytes, BACKING_MODE)
                            .and_then(|()| disk::sync_directory(&path.parent()))
                            .map_err(|source| self.io("write", &path, source))?;
                        row.content = Content::Backing(BackingSize::Authoritative);
                        row.generation = row.generation.next();
                    }
                }
            }
            Content::Symlink(bytes) => {
                (row.attributes.kind, row.attributes.size) = (FileKind::Symlink, bytes.len() as u64);
            }
            Content::Backing(_) => row.attributes.kind = FileKind::Regular,
            Content::None if !fits(&row) => row = NodeRow { xattrs: row.xattrs, ..empty_node(row.attributes) },
            Content::None => {}
        }
        Ok(row)
    }

    pub async fn correct_reference(&mut self, directory: InodeId, name: Name) -> Result<(), FsckError> {
        let Some(entry) = self.entry(directory, &name).await? else { return Ok(()) };
        let Some(row) = self.inode_row(entry.inode).await? else { return Ok(()) };
        if let Some((shard, _)) = self.census.place(directory, name.hash()) {
            let row = EntryRow { body: EntryBody::Reference(row.attributes.kind), ..entry };
            self.put(EditStep::Names, shard, &Key::Entry(directory, name.clone()), Row::Entry(row));
        }
        self.note(format!("{name} of directory {directory} now has the kind of its inode"));
        Ok(())
    }

    pub async fn unlist(&mut self, inode: InodeId, name: &Bytes) -> Result<(), FsckError> {
        if let Some(mut row) = self.directory_row(inode).await? {
            row.xattrs.retain(|listed| listed != name);
            self.put_home(EditStep::Rows, &Key::Directory(inode), Row::Directory(row));
        }
        if let Some(mut row) = self.inode_row(inode).await? {
            row.xattrs.retain(|listed| listed != name);
            self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
        }
        self.note(format!("inode {inode} no longer lists the xattr {}, whose value is lost", name.escape_ascii()));
        Ok(())
    }

    pub async fn stray_xattr(&mut self, inode: InodeId, name: Bytes) -> Result<(), FsckError> {
        let list = |names: &mut Vec<Bytes>| {
            if let Err(place) = names.binary_search(&name) {
                names.insert(place, name.clone());
            }
        };
        if let Some(mut row) = self.directory_row(inode).await? {
            list(&mut row.xattrs);
            self.put_home(EditStep::Rows, &Key::Directory(inode), Row::Directory(row));
        } else if let Some(mut row) = self.inode_row(inode).await? {
            list(&mut row.xattrs);
            self.put_home(EditStep::Rows, &Key::Inode(inode), Row::Inode(row));
        } else {
            self.remove(inode.shard(), codec::encode_key(&Key::Xattr(inode, name.clone())));
            self.note(format!("removed the xattr {} of inode {inode}, which has none", name.escape_ascii()));
            return Ok(());
        }
        self.note(format!("inode {inode} now lists its xattr {}", name.escape_ascii()));
        Ok(())
    }

    /// Removes an unused, empty backing file.
    pub fn remove_empty(&mut self, inode: InodeId) -> Result<(), FsckError> {
        let path = self.volume.backing_file(inode);
        absent_is_fine(disk::remove_file(&path)).map_err(|source| self.io("remove", &path, source))?;
        self.note(format!("removed the empty backing file of inode {inode}, which has no row"));
        Ok(())
    }
}

fn has_backing(entry: &EntryRow) -> bool {
    matches!(&entry.body, EntryBody::Node(node) if matches!(node.content, Content::Backing(_)))
}
