//! The record of every change below a directory, in order, for [`crate::power_loss`].
//!
//! A journal is attached to a directory like a mounted device. Every change below it that is made through [`super`] is
//! executed and recorded under one lock, so that the record has the order of the changes. An fsync below it is recorded
//! as begun and as ended, but not executed on the device: the record defines what is durable. While no journal is
//! attached, all this costs one load of a flag.

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

static ATTACHED: AtomicUsize = AtomicUsize::new(0);
static JOURNALS: RwLock<Vec<(PathBuf, Arc<DiskJournal>)>> = RwLock::new(Vec::new());

/// A file or directory, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) usize);

/// The directory to which the journal is attached.
pub(crate) const ROOT: NodeId = NodeId(0);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    File { mode: u32 },
    Directory,
    Symlink { target: PathBuf },
}

/// A name in a directory.
pub(crate) type DirectoryName = (NodeId, OsString);

#[derive(Clone, Debug)]
pub(crate) enum DiskChange {
    /// `place` refers to `node` from now on, whatever it referred to before.
    Enter {
        place: DirectoryName,
        node: NodeId,
    },
    Remove {
        place: DirectoryName,
    },
    /// Atomic: `to` refers to the node of `from`, and `from` no longer exists.
    Rename {
        from: DirectoryName,
        to: DirectoryName,
    },
    Write {
        node: NodeId,
        offset: u64,
        bytes: Bytes,
    },
    Resize {
        node: NodeId,
        length: u64,
    },
    /// The length is at least this.
    Extend {
        node: NodeId,
        length: u64,
    },
    /// The bytes of the range within the file are zero.
    Zero {
        node: NodeId,
        offset: u64,
        length: u64,
    },
    SyncBegin {
        target: SyncTarget,
    },
    /// Changes of the target before the change at `begin` are durable.
    SyncEnd {
        begin: usize,
    },
    /// A mark of the test, with a meaning of its own.
    Mark(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncTarget {
    Node(NodeId),
    Everything,
}

/// The present state, as processes see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskRecord {
    root: PathBuf,
    pub(crate) nodes: Vec<NodeKind>,
    entries: BTreeMap<DirectoryName, NodeId>,
    pub(crate) changes: Vec<DiskChange>,
}

#[derive(Debug)]
pub(crate) struct DiskJournal {
    record: Mutex<DiskRecord>,
}

/// The journal attached above `path`.
pub(crate) fn of(path: &Path) -> Option<Arc<DiskJournal>> {
    if ATTACHED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let journals = JOURNALS.read();
    journals.iter().find(|(root, _)| path.starts_with(root)).map(|(_, journal)| journal.clone())
}

/// Runs `work`, and records it if a journal is attached above `path`.
pub(crate) fn changing<T>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T>,
    note: impl FnOnce(&mut DiskRecord),
) -> io::Result<T> {
    match of(path) {
        None => work(),
        Some(journal) => journal.change(|record| {
            let done = work()?;
            note(record);
            Ok(done)
        }),
    }
}

impl DiskJournal {
    pub(crate) fn attach(root: &Path, record: DiskRecord) -> Arc<DiskJournal> {
        let journal = Arc::new(DiskJournal { record: Mutex::new(DiskRecord { root: root.to_owned(), ..record }) });
        JOURNALS.write().push((root.to_owned(), journal.clone()));
        ATTACHED.fetch_add(1, Ordering::Relaxed);
        journal
    }

    pub(crate) fn detach(&self) {
        let mut journals = JOURNALS.write();
        let before = journals.len();
        journals.retain(|(_, journal)| !std::ptr::eq(journal.as_ref(), self));
        ATTACHED.fetch_sub(before - journals.len(), Ordering::Relaxed);
    }

    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut DiskRecord) -> T) -> T {
        work(&mut self.record.lock())
    }

    pub(crate) fn sync(&self, target: SyncTarget) {
        let begin = self.change(|record| {
            record.push(DiskChange::SyncBegin { target });
            record.changes.len() - 1
        });
        // Other threads may change files while a device is working.
        std::thread::yield_now();
        self.change(|record| record.push(DiskChange::SyncEnd { begin }));
    }
}

impl DiskRecord {
    pub(crate) fn push(&mut self, change: DiskChange) {
        match &change {
            DiskChange::Enter { place, node } => drop(self.entries.insert(place.clone(), *node)),
            DiskChange::Remove { place } => drop(self.entries.remove(place)),
            DiskChange::Rename { from, to } => {
                if let Some(node) = self.entries.remove(from) {
                    self.entries.insert(to.clone(), node);
                }
            }
            _ => {}
        }
        self.changes.push(change);
    }

    pub(crate) fn new_node(&mut self, kind: NodeKind) -> NodeId {
        self.nodes.push(kind);
        NodeId(self.nodes.len() - 1)
    }

    pub(crate) fn create_file(&mut self, path: &Path, mode: u32) -> NodeId {
        let node = self.new_node(NodeKind::File { mode });
        self.enter(path, node);
        node
    }

    pub(crate) fn create(&mut self, path: &Path, kind: NodeKind) {
        let node = self.new_node(kind);
        self.enter(path, node);
    }

    fn enter(&mut self, path: &Path, node: NodeId) {
        let place = self.place(path);
        self.push(DiskChange::Enter { place, node });
    }

    pub(crate) fn link(&mut self, from: &Path, to: &Path) {
        if let Some(node) = self.entry(from) {
            self.enter(to, node);
        }
    }

    pub(crate) fn remove(&mut self, path: &Path) {
        let place = self.place(path);
        self.push(DiskChange::Remove { place });
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) {
        let (from, to) = (self.place(from), self.place(to));
        self.push(DiskChange::Rename { from, to });
    }

    /// A path that leads to the node now, for messages.
    pub(crate) fn name_of(&self, node: NodeId) -> Option<PathBuf> {
        if node == ROOT {
            return Some(PathBuf::new());
        }
        let ((directory, name), _) = self.entries.iter().find(|(_, found)| **found == node)?;
        Some(self.name_of(*directory)?.join(name))
    }

    /// The node at `path`; links are not followed.
    pub(crate) fn node_at(&self, path: &Path) -> Option<NodeId> {
        self.entry(path)
    }

    fn entry(&self, path: &Path) -> Option<NodeId> {
        let below = path.strip_prefix(&self.root).ok()?;
        below.components().try_fold(ROOT, |directory, part| match part {
            Component::Normal(name) => self.entries.get(&(directory, name.to_owned())).copied(),
            _ => Some(directory),
        })
    }

    /// # Panics
    /// If the creation of the directory of `path` was not recorded: the record would be useless from there on.
    fn place(&self, path: &Path) -> DirectoryName {
        let name = path.file_name().unwrap_or(OsStr::new("")).to_owned();
        let directory = self.entry(super::parent(path));
        (directory.unwrap_or_else(|| panic!("the directory of {} was made unrecorded", path.display())), name)
    }
}
