//! Random sequences of verbs, run in parallel on rows and on the reference file system: they must give the same
//! replies, the same errors and the same tree after every step, also while directories split.

use super::steps::{Dir, NAMES, Pick, Step, XATTRS, any_caller, any_step};
use super::table::{ReferenceTable, name};
use crate::reference::{Body, INLINE_LIMIT, Reference};
use crate::{
    At, BackingFile, ChangeAttributes, Create, CreateUnnamed, Decision, Entry, GetAttributes, GetXattr, Granted, Link,
    ListXattrs, Lookup, MakeDirectory, MarkSizeStale, Node, NodeContent, Open, OpenMode, PartitionTotals, Promote,
    RaiseSize, ReadLink, RecordSize, Refusal, RemoveDirectory, RemoveXattr, Rename, SetXattr, SizeState, Unlink, Verb,
    WriteInline,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use varve_schema::{Content, EntryBody, Key, Row};
use varve_types::{Credentials, Errno, FileKind, InodeId, LayoutGeneration, Mode, NameHash};

struct Both {
    table: ReferenceTable,
    reference: Reference,
    directories: Vec<InodeId>,
}

fn word(index: usize) -> (varve_types::Name, Vec<u8>) {
    (name(NAMES[index]), NAMES[index].as_bytes().to_vec())
}

impl Both {
    fn new() -> Both {
        let table = ReferenceTable::new();
        let reference = Reference::new(table.now);
        Both { table, reference, directories: vec![InodeId::ROOT] }
    }

    fn directory(&self, dir: Dir) -> InodeId {
        self.directories[dir % self.directories.len()]
    }

    fn opened(&self, index: usize) -> Option<InodeId> {
        self.table.open.iter().nth(index % self.table.open.len().max(1)).copied()
    }

    /// The chosen file and the location of its row, if there is such a file.
    fn find(&self, pick: &Pick) -> Option<(InodeId, At)> {
        match pick {
            Pick::Named(dir, index) => {
                let (directory, (name, bytes)) = (self.directory(*dir), word(*index));
                let inode = *self.reference.children(directory).ok()?.get(&bytes)?;
                Some((inode, self.table.at(directory, &name).expect("a name of the reference has an entry")))
            }
            Pick::Directory(dir) => {
                let inode = self.directory(*dir);
                self.reference.nodes.contains_key(&inode).then_some((inode, At::Inode(inode)))
            }
            Pick::Opened(index) => {
                let inode = self.opened(*index)?;
                Some((inode, self.place(inode)))
            }
        }
    }

    /// The location of a file's row, whatever its name.
    fn place(&self, inode: InodeId) -> At {
        let entry = self.table.rows.iter().find_map(|(key, row)| match (key, row) {
            (Key::Entry(parent, name), Row::Entry(row))
                if row.inode == inode && matches!(row.body, EntryBody::Node(_)) =>
            {
                Some(At::Entry { parent: *parent, name: name.clone(), inode })
            }
            _ => None,
        });
        entry.unwrap_or(At::Inode(inode))
    }

    fn run<V: Verb>(&mut self, verb: &V, who: &Credentials) -> Result<V::Outcome, Refusal> {
        let answer = self.table.run(verb, who);
        self.reference.now = self.table.now;
        answer
    }

    /// Runs a verb that returns a node, and expects the same error or the same attributes as from the reference.
    fn run_node<V: Verb<Outcome = Node>>(
        &mut self,
        verb: &V,
        who: &Credentials,
        expect: impl FnOnce(&mut Reference) -> Result<InodeId, Refusal>,
    ) -> Result<(), TestCaseError> {
        let answer = self.run(verb, who);
        let expected = expect(&mut self.reference);
        prop_assert_eq!(answer.as_ref().map(|node| node.inode), expected.as_ref().copied());
        if let Ok(node) = answer
            && node.attributes.kind != FileKind::Directory
        {
            let reference = &self.reference.nodes[&node.inode];
            if !matches!(node.content, NodeContent::Backing(SizeState::Stale { .. })) {
                prop_assert_eq!(node.attributes.size, reference.size());
            }
            prop_assert_eq!(node.attributes.mode, Mode(reference.mode));
            prop_assert_eq!(node.attributes.nlink, self.reference.nlink(node.inode));
            prop_assert_eq!(node.by_inode, self.table.inode_row(node.inode).is_some());
            if let (NodeContent::Inline(Some(bytes)), Body::Inline(expected)) = (&node.content, &reference.body) {
                prop_assert_eq!(&bytes[..], &expected[..]);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, who: &Credentials) -> Result<(), TestCaseError> {
        let fresh = self.table.fresh();
        match step {
            Step::Lookup(..)
            | Step::Create(..)
            | Step::CreateUnnamed(..)
            | Step::MakeDirectory(..)
            | Step::Unlink(..)
            | Step::RemoveDirectory(..)
            | Step::Rename(..) => self.name_step(step, who, fresh),
            Step::Split(dir, hash) => {
                let directory = self.directory(*dir);
                if self.reference.nodes.contains_key(&directory) {
                    self.table.split(directory, NameHash(*hash));
                }
                Ok(())
            }
            Step::Release(index) => {
                if let Some(inode) = self.opened(*index) {
                    self.table.release(inode);
                    self.reference.release(inode);
                }
                Ok(())
            }
            Step::Link(pick, ..)
            | Step::GetAttributes(pick)
            | Step::ChangeAttributes(pick, _)
            | Step::Open(pick, ..)
            | Step::Write(pick, _)
            | Step::RecordSize(pick)
            | Step::Promote(pick, _)
            | Step::ReadLink(pick) => match self.find(pick) {
                Some((inode, at)) => self.file_step(step, who, inode, at),
                None => Ok(()),
            },
            Step::GetXattr(pick, _)
            | Step::SetXattr(pick, ..)
            | Step::RemoveXattr(pick, _)
            | Step::ListXattrs(pick) => match self.find(pick) {
                Some((inode, at)) => self.xattr_step(step, who, inode, at),
                None => Ok(()),
            },
        }
    }

    fn name_step(&mut self, step: &Step, who: &Credentials, fresh: InodeId) -> Result<(), TestCaseError> {
        match step {
            Step::Lookup(dir, index) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let answer = self.run(&Lookup { parent, name }, who);
                let inode = answer.map(|entry| match entry {
                    Entry::Node(node) => node.inode,
                    Entry::Elsewhere { inode, .. } => inode,
                });
                prop_assert_eq!(inode, self.reference.lookup(who, parent, &bytes));
            }
            Step::Create(dir, index, node, mode) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let verb = Create { parent, name, node: node.clone(), mode: Mode(*mode) };
                self.run_node(&verb, who, |reference| {
                    reference.create(who, parent, &bytes, fresh, node, *mode).map(|()| fresh)
                })?;
            }
            Step::CreateUnnamed(dir, mode, linkable) => {
                let (parent, linkable) = (self.directory(*dir), *linkable);
                let verb = CreateUnnamed { parent, at: NameHash::FIRST, mode: Mode(*mode), linkable };
                self.run_node(&verb, who, |reference| {
                    reference.create_unnamed(who, parent, fresh, *mode, linkable).map(|()| fresh)
                })?;
                if self.reference.open.contains(&fresh) {
                    self.table.open.insert(fresh);
                }
            }
            Step::MakeDirectory(dir, index, mode) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let verb = MakeDirectory { parent, name, mode: Mode(*mode) };
                self.run_node(&verb, who, |reference| {
                    reference.mkdir(who, parent, &bytes, fresh, *mode).map(|()| fresh)
                })?;
                if self.reference.nodes.contains_key(&fresh) {
                    self.directories.push(fresh);
                }
            }
            Step::Unlink(dir, index) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let answer = self.run(&Unlink { parent, name }, who);
                let expected = self.reference.unlink(who, parent, &bytes);
                prop_assert_eq!(answer.map(|removed| removed.last_name_of), expected);
            }
            Step::RemoveDirectory(dir, index) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let answer = self.run(&RemoveDirectory { parent, name }, who);
                let expected = self.reference.rmdir(who, parent, &bytes);
                prop_assert_eq!(answer.map(|removed| removed.last_name_of), expected);
            }
            Step::Rename(dir, index, new_dir, new_index, flags) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let (new_parent, (new_name, new_bytes)) = (self.directory(*new_dir), word(*new_index));
                let verb = Rename { parent, name, new_parent, new_name, flags: *flags };
                let answer = self.run(&verb, who);
                let expected = self.reference.rename(who, (parent, &bytes), (new_parent, &new_bytes), *flags, fresh);
                prop_assert_eq!(answer.map(|removed| removed.last_name_of), expected);
            }
            _ => unreachable!("a step about names"),
        }
        Ok(())
    }

    fn file_step(&mut self, step: &Step, who: &Credentials, inode: InodeId, at: At) -> Result<(), TestCaseError> {
        match step {
            Step::Link(_, dir, index) => {
                let (parent, (name, bytes)) = (self.directory(*dir), word(*index));
                let answer = self.run(&Link { source: at, parent, name }, who).map(|_| ());
                prop_assert_eq!(answer, self.reference.link(who, inode, parent, &bytes));
            }
            Step::GetAttributes(_) => self.run_node(&GetAttributes { at }, who, |_| Ok(inode))?,
            Step::ChangeAttributes(_, set) => {
                self.run_node(&ChangeAttributes { at, set: *set }, who, |reference| {
                    reference.set_attributes(who, inode, set).map(|()| inode)
                })?;
            }
            Step::Open(_, mode, truncate, hold) => {
                let bits = match mode {
                    OpenMode::Read => 4,
                    OpenMode::Write => 2,
                    OpenMode::ReadWrite => 6,
                    OpenMode::Execute => 1,
                };
                self.run_node(
                    &Open { at, mode: *mode, truncate: *truncate, granted: Granted::Nothing },
                    who,
                    |reference| reference.open(who, inode, bits, *truncate).map(|()| inode),
                )?;
                if *hold && self.reference.nodes[&inode].kind == FileKind::Regular {
                    self.table.open.insert(inode);
                    self.reference.open.insert(inode);
                }
            }
            Step::Write(_, size) => self.write(who, inode, at, *size)?,
            Step::RecordSize(_) => {
                if let (Body::Backing(_), Some((size, mtime))) =
                    (&self.reference.nodes[&inode].body, self.table.backing.get(&inode).copied())
                {
                    let generation = self.generation(&at);
                    let file = BackingFile { at, generation };
                    let answer = self.run(&RecordSize { file, size, mtime }, who);
                    prop_assert!(answer.is_ok(), "{:?}", answer);
                    // If this call records the size, the ctime is at least the time of the last write.
                    let node = self.reference.nodes.get_mut(&inode).unwrap();
                    node.ctime_or = Some(node.ctime.max(mtime));
                }
            }
            Step::Promote(_, size) => {
                if let Body::Inline(_) = self.reference.nodes[&inode].body {
                    let generation = self.generation(&at);
                    let answer = self.run(&Promote { at, generation, size: *size }, who);
                    prop_assert_eq!(answer.map(|node| node.generation), Ok(generation.next()));
                    self.table.backing.insert(inode, (*size, self.table.now));
                    self.reference.write(who, inode, Body::Backing(*size));
                }
            }
            Step::ReadLink(_) => {
                let answer = self.run(&ReadLink { at }, who).map(|target| target.to_vec());
                let expected = match &self.reference.nodes[&inode].body {
                    Body::Symlink(target) => Ok(target.clone()),
                    _ => Err(Refusal::Errno(Errno::EINVAL)),
                };
                prop_assert_eq!(answer, expected);
            }
            _ => unreachable!("a step about a file"),
        }
        Ok(())
    }

    /// The generation that a client knows right after it has opened the file; a directory has none.
    fn generation(&self, at: &At) -> LayoutGeneration {
        match self.table.decide(&GetAttributes { at: at.clone() }, &Credentials::root()) {
            Decision::Answer(node) => node.generation,
            _ => LayoutGeneration::default(),
        }
    }

    fn write(&mut self, who: &Credentials, inode: InodeId, at: At, size: usize) -> Result<(), TestCaseError> {
        let body = self.reference.nodes[&inode].body.clone();
        let generation = self.generation(&at);
        match body {
            Body::Backing(_) => {
                let (file, at_least) = (BackingFile { at, generation }, size as u64);
                let answer = self.run(&MarkSizeStale { file: file.clone(), at_least }, who);
                prop_assert!(answer.is_ok(), "{:?}", answer);
                let raised = self.run(&RaiseSize { file, at_least }, who);
                prop_assert!(raised.is_ok(), "{:?}", raised);
                self.table.backing.insert(inode, (size as u64, self.table.now));
                self.reference.write(who, inode, Body::Backing(size as u64));
            }
            Body::Inline(_) => {
                let data = vec![7; size];
                let verb = WriteInline { at, generation, data: Bytes::from(data.clone()), mtime: None };
                let answer = self.run(&verb, who).map(|node| node.attributes.size);
                if size > INLINE_LIMIT as usize {
                    prop_assert_eq!(answer, Err(Refusal::Errno(Errno::EFBIG)));
                } else {
                    prop_assert_eq!(answer, Ok(size as u64));
                    self.reference.write(who, inode, Body::Inline(data));
                }
            }
            _ => {
                let data = Bytes::new();
                let answer = self.run(&WriteInline { at, generation, data, mtime: None }, who);
                prop_assert!(answer.is_err());
            }
        }
        Ok(())
    }

    fn xattr_step(&mut self, step: &Step, who: &Credentials, inode: InodeId, at: At) -> Result<(), TestCaseError> {
        let named = |index: &usize| (Bytes::from(XATTRS[*index]), XATTRS[*index].as_bytes().to_vec());
        match step {
            Step::GetXattr(_, index) => {
                let (name, bytes) = named(index);
                let answer = self.run(&GetXattr { at, name }, who).map(|value| value.to_vec());
                prop_assert_eq!(answer, self.reference.get_xattr(who, inode, &bytes));
            }
            Step::SetXattr(_, index, value, mode) => {
                let (name, bytes) = named(index);
                let verb = SetXattr { at, name, value: Bytes::from(vec![*value]), mode: *mode };
                let answer = self.run(&verb, who);
                prop_assert_eq!(answer, self.reference.set_xattr(who, inode, &bytes, &[*value], *mode));
            }
            Step::RemoveXattr(_, index) => {
                let (name, bytes) = named(index);
                let answer = self.run(&RemoveXattr { at, name }, who);
                prop_assert_eq!(answer, self.reference.remove_xattr(who, inode, &bytes));
            }
            Step::ListXattrs(_) => {
                let answer = self.run(&ListXattrs { at }, who).map(|names| names.iter().map(|n| n.to_vec()).collect());
                prop_assert_eq!(answer, Ok(self.reference.list_xattrs(who, inode)));
            }
            _ => unreachable!("a step about xattrs"),
        }
        Ok(())
    }

    /// Checks that the rows form the tree of the reference, and that no other rows are stored.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let inodes: Vec<InodeId> = self.reference.nodes.keys().copied().collect();
        for inode in &inodes {
            match self.reference.nodes[inode].kind {
                FileKind::Directory => self.compare_directory(*inode)?,
                _ => self.compare_file(*inode)?,
            }
        }
        for key in self.table.rows.keys() {
            let justified = match key {
                Key::Partition(directory, _) | Key::Directory(directory) | Key::Entry(directory, _) => {
                    self.reference.children(*directory).is_ok()
                }
                Key::Inode(inode) => self.reference.nodes.contains_key(inode),
                Key::Orphan(inode) => self.reference.nodes.contains_key(inode) && self.reference.nlink(*inode) == 0,
                Key::Xattr(inode, name) => {
                    self.reference.nodes.get(inode).is_some_and(|node| node.xattrs.contains_key(&name[..]))
                }
                _ => false,
            };
            prop_assert!(justified, "debris: {:?}", key);
        }
        let backing: BTreeSet<InodeId> = self.table.backing.keys().copied().collect();
        let expected: BTreeSet<InodeId> =
            inodes.into_iter().filter(|inode| matches!(self.reference.nodes[inode].body, Body::Backing(_))).collect();
        prop_assert_eq!(backing, expected);
        Ok(())
    }

    fn compare_directory(&mut self, inode: InodeId) -> Result<(), TestCaseError> {
        let node = self.reference.nodes[&inode].clone();
        let row = self.table.directory_row(inode).expect("a directory has a row").clone();
        if inode != InodeId::ROOT {
            prop_assert_eq!(Some(row.parent), self.reference.parent(inode));
        }
        let entries: Vec<(Vec<u8>, InodeId)> =
            self.table.entries(inode).iter().map(|(name, row)| (name.as_bytes().to_vec(), row.inode)).collect();
        let expected: Vec<(Vec<u8>, InodeId)> =
            self.reference.children(inode).unwrap().iter().map(|(name, child)| (name.clone(), *child)).collect();
        prop_assert_eq!(entries, expected);
        let partitions = self.table.partitions(inode);
        prop_assert!(!partitions.is_empty());
        for partition in &partitions {
            let counted = self.table.count(inode, partition.index.range(partition.depth));
            prop_assert_eq!((partition.entries, partition.subdirectories), counted);
            prop_assert_eq!((partition.mode, partition.uid, partition.gid), (row.mode, row.uid, row.gid));
        }
        let mut counts = PartitionTotals::default();
        partitions.iter().for_each(|partition| counts.add(partition));
        let (mtime, ctime) = (counts.changed.unwrap_or(row.mtime), row.ctime.max(counts.changed.unwrap_or(row.ctime)));
        prop_assert_eq!((row.mode, row.uid, row.gid), (Mode(node.mode), node.uid, node.gid));
        prop_assert_eq!((row.atime, mtime), (node.atime, node.mtime), "times of {}", inode);
        self.compare_ctime(inode, ctime)?;
        let names: Vec<Vec<u8>> = row.xattrs.iter().map(|name| name.to_vec()).collect();
        prop_assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>());
        Ok(())
    }

    fn compare_file(&mut self, inode: InodeId) -> Result<(), TestCaseError> {
        let node = self.reference.nodes[&inode].clone();
        let nlink = self.reference.nlink(inode);
        let row = match self.place(inode) {
            At::Entry { parent, name, .. } => match &self.table.entry(parent, &name).unwrap().body {
                EntryBody::Node(row) => row.clone(),
                body => unreachable!("{body:?}"),
            },
            At::Inode(inode) => self.table.inode_row(inode).expect("a file has a row").clone(),
        };
        let shown = self.table.stat(inode, &row);
        prop_assert_eq!(shown.kind, node.kind);
        prop_assert_eq!((shown.mode, shown.uid, shown.gid), (Mode(node.mode), node.uid, node.gid));
        prop_assert_eq!((shown.size, shown.nlink, shown.rdev), (node.size(), nlink, node.rdev));
        prop_assert_eq!((shown.atime, shown.mtime), (node.atime, node.mtime), "times of {}", inode);
        self.compare_ctime(inode, shown.ctime)?;
        match (&row.content, &node.body) {
            (Content::Inline(bytes), Body::Inline(expected)) => prop_assert_eq!(&bytes[..], &expected[..]),
            (Content::Symlink(target), Body::Symlink(expected)) => prop_assert_eq!(&target[..], &expected[..]),
            (Content::Backing(_), Body::Backing(_)) | (Content::None, Body::Special) => {}
            (content, body) => prop_assert!(false, "{:?} where {:?} is expected", content, body),
        }
        for (name, value) in &node.xattrs {
            let key = Key::Xattr(inode, Bytes::from(name.clone()));
            prop_assert_eq!(self.table.rows.get(&key), Some(&Row::Xattr(Bytes::from(value.clone()))));
        }
        prop_assert_eq!(self.table.rows.contains_key(&Key::Orphan(inode)), nlink == 0);
        Ok(())
    }

    fn compare_ctime(&mut self, inode: InodeId, ctime: varve_types::Timestamp) -> Result<(), TestCaseError> {
        let node = self.reference.nodes.get_mut(&inode).unwrap();
        if node.ctime_or != Some(ctime) {
            prop_assert_eq!(ctime, node.ctime, "ctime of {}", inode);
        }
        (node.ctime, node.ctime_or) = (ctime, None);
        Ok(())
    }
}

/// CI runs 5,000 new random sequences each time; VARVE_SOAK=1 runs 200,000.
fn cases() -> u32 {
    if std::env::var_os("VARVE_SOAK").is_some_and(|soak| soak == "1") { 200_000 } else { 5_000 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn rows_behave_like_the_reference_file_system(steps in vec((any_step(), any_caller()), 1..80)) {
        let mut both = Both::new();
        for (step, who) in &steps {
            both.step(step, who)?;
            both.compare()?;
        }
    }
}
