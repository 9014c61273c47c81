//! The client's knowledge of the inodes that its frontend references: the name under which each was last seen, and
//! whether its attributes are in that entry or in an inode row.
//!
//! An inode is kept for as long as the frontend counts lookups of it or has it open. All of it is a hint: the server
//! answers a wrong locator with `NotHere`, and the client corrects it ([`crate::locate`]). Of dropped inodes it remembers
//! some names for file handles ([`crate::by_number`]).

mod hints;

use crate::files::Version;
use hints::NameHints;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use varve_env::key_hash::KeyHashing;
use varve_proto::Locator;
use varve_types::{FileKind, InodeId, Name};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Enough stripes that the threads of a mount rarely contend for one lock.
const STRIPES: usize = 16;

/// One inode.
#[derive(Clone, Debug)]
struct CachedInode {
    parent: InodeId,
    /// `None` for the root, after the last known name was removed, and until a name is known if the inode was found by
    /// its number.
    name: Option<Name>,
    /// Found by its number: it has names, and none of them is known.
    name_unknown: bool,
    kind: FileKind,
    /// The attributes are in an inode row (or directory row).
    by_inode: bool,
    lookups: u64,
    /// Handles of this client.
    opens: u32,
    /// For a directory: its row and entry, and those of all its ancestors, are known to be on disk. The value is the
    /// number of directory moves ([`Inodes::moves`]) at that time, because its ancestors may have changed since.
    durable: Option<u64>,
    /// For a file: the version of the pages that the frontend's kernel may have.
    pages: Pages,
}

/// The version of a kernel's cached pages of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pages {
    #[default]
    Unknown,
    /// The version of the file when the kernel last dropped its pages.
    Of(Version),
    /// The pages contain bytes that were written and then lost.
    Lost,
}

#[derive(Default)]
pub(crate) struct Inodes {
    stripes: [Mutex<HashMap<InodeId, CachedInode, KeyHashing>>; STRIPES],
    /// The inode last seen under a name, by a hash of directory and name. A collision only makes a hint wrong.
    names: [Mutex<HashMap<u64, InodeId, KeyHashing>>; STRIPES],
    /// Names of files that are not in `stripes`.
    hints: Mutex<NameHints>,
    /// Number of times that a directory was seen under another name than before.
    moves: AtomicU64,
}

/// An inode as a frontend found it.
pub(crate) struct ObservedInode<'a> {
    pub inode: InodeId,
    pub parent: InodeId,
    pub name: &'a Name,
    pub kind: FileKind,
    pub by_inode: bool,
}

impl CachedInode {
    fn unnamed(kind: FileKind, by_inode: bool) -> CachedInode {
        CachedInode {
            parent: InodeId::ROOT,
            name: None,
            name_unknown: false,
            kind,
            by_inode,
            lookups: 0,
            opens: 0,
            durable: None,
            pages: Pages::Unknown,
        }
    }
}

impl Inodes {
    /// Records that the inode was seen, and counts `lookups` more references by the frontend.
    pub fn saw(&self, seen: ObservedInode<'_>, lookups: u64) {
        let by_inode = seen.by_inode || seen.kind == FileKind::Directory;
        let old = {
            let mut stripe = self.stripe(seen.inode).lock();
            match stripe.get_mut(&seen.inode) {
                Some(known) => {
                    known.lookups += lookups;
                    known.by_inode = by_inode;
                    if known.parent == seen.parent && known.name.as_ref() == Some(seen.name) {
                        return;
                    }
                    known.durable = None;
                    known.name_unknown = false;
                    if known.kind == FileKind::Directory {
                        self.moves.fetch_add(1, SeqCst);
                    }
                    let old = known.name.replace(seen.name.clone()).map(|name| (known.parent, name));
                    known.parent = seen.parent;
                    old
                }
                None if lookups == 0 => return,
                None => {
                    let known = CachedInode {
                        parent: seen.parent,
                        name: Some(seen.name.clone()),
                        lookups,
                        ..CachedInode::unnamed(seen.kind, by_inode)
                    };
                    stripe.insert(seen.inode, known);
                    None
                }
            }
        };
        if let Some((parent, name)) = old {
            self.drop_name(parent, &name, seen.inode);
        }
        let key = name_key(seen.parent, seen.name);
        self.name_stripe(key).lock().insert(key, seen.inode);
    }

    /// Records a new file that has no name, and one reference by the frontend.
    pub fn saw_unnamed(&self, inode: InodeId) {
        self.change(inode, |known| known.lookups += 1);
    }

    /// Records that the inode was found by its number, with its attributes in an inode row or directory row, and counts
    /// one more reference by the frontend.
    pub fn found(&self, inode: InodeId, kind: FileKind) {
        let unnamed = || CachedInode { name_unknown: true, ..CachedInode::unnamed(kind, true) };
        self.stripe(inode).lock().entry(inode).or_insert_with(unnamed).lookups += 1;
    }

    /// Whether the inode has names of which none is known.
    pub fn name_is_unknown(&self, inode: InodeId) -> bool {
        self.stripe(inode).lock().get(&inode).is_some_and(|known| known.name_unknown)
    }

    /// A name that `inode` has, or had when it was last seen.
    pub fn name_hint(&self, inode: InodeId) -> Option<(InodeId, Name)> {
        self.name(inode).or_else(|| self.hints.lock().get(inode))
    }

    pub fn add_name_hint(&self, inode: InodeId, parent: InodeId, name: Name) {
        self.hints.lock().add(inode, parent, name);
    }

    /// The frontend drops `lookups` references.
    pub fn forget(&self, inode: InodeId, lookups: u64) {
        self.change_and_prune(inode, |known| known.lookups = known.lookups.saturating_sub(lookups));
    }

    pub fn opened(&self, inode: InodeId) {
        // A frontend that remembers inodes longer than this table may open one by its number alone.
        self.change(inode, |known| known.opens += 1);
    }

    /// Changes the entry of a file, which is located by its inode row if the table does not have it yet.
    fn change(&self, inode: InodeId, change: impl FnOnce(&mut CachedInode)) {
        let unknown = || CachedInode::unnamed(FileKind::Regular, true);
        change(self.stripe(inode).lock().entry(inode).or_insert_with(unknown));
    }

    pub fn closed(&self, inode: InodeId) {
        self.change_and_prune(inode, |known| known.opens = known.opens.saturating_sub(1));
    }

    /// The locator to request the row of `inode` with.
    pub fn locator(&self, inode: InodeId) -> Locator {
        match self.stripe(inode).lock().get(&inode) {
            Some(CachedInode { parent, name: Some(name), by_inode: false, .. }) => {
                Locator::Entry { parent: parent.0, name: name.as_bytes().to_vec(), inode: inode.0 }
            }
            _ => Locator::Inode { inode: inode.0 },
        }
    }

    pub fn is_directory(&self, inode: InodeId) -> bool {
        self.stripe(inode).lock().get(&inode).is_some_and(|known| known.kind == FileKind::Directory)
    }

    /// The last known name of `inode`, wherever its attributes are.
    pub fn name(&self, inode: InodeId) -> Option<(InodeId, Name)> {
        let stripe = self.stripe(inode).lock();
        let known = stripe.get(&inode)?;
        Some((known.parent, known.name.clone()?))
    }

    pub fn parent(&self, directory: InodeId) -> Option<InodeId> {
        self.name(directory).map(|(parent, _)| parent)
    }

    /// The inode last seen under a name.
    pub fn at(&self, parent: InodeId, name: &Name) -> Option<InodeId> {
        let key = name_key(parent, name);
        let inode = *self.name_stripe(key).lock().get(&key)?;
        (self.name(inode)? == (parent, name.clone())).then_some(inode)
    }

    /// Corrects where the attributes of `inode` are.
    pub fn set_by_inode(&self, inode: InodeId, by_inode: bool) {
        if let Some(known) = self.stripe(inode).lock().get_mut(&inode) {
            known.by_inode = by_inode || known.kind == FileKind::Directory;
        }
    }

    /// Records a new name of `inode`. A file that is open in this client got an inode row with the rename.
    pub fn renamed(&self, inode: InodeId, parent: InodeId, name: &Name) {
        let seen = {
            let stripe = self.stripe(inode).lock();
            let Some(known) = stripe.get(&inode) else { return };
            (known.kind, known.by_inode || known.opens > 0)
        };
        self.saw(ObservedInode { inode, parent, name, kind: seen.0, by_inode: seen.1 }, 0);
    }

    /// Records that the name no longer refers to `inode`. From now on the inode is located by its inode row, if it has
    /// one. Another inode that was seen under the name since stays.
    pub fn unlinked(&self, parent: InodeId, name: &Name, inode: InodeId) {
        if let Some(known) = self.stripe(inode).lock().get_mut(&inode)
            && known.parent == parent
            && known.name.as_ref() == Some(name)
        {
            known.name = None;
            known.by_inode = true;
        }
        self.drop_name(parent, name, inode);
    }

    pub fn moves(&self) -> u64 {
        self.moves.load(SeqCst)
    }

    /// Whether the row and the entry of `directory`, and those of all its ancestors, are known to be on disk.
    pub fn is_durable(&self, directory: InodeId) -> bool {
        self.stripe(directory).lock().get(&directory).is_some_and(|known| known.durable == Some(self.moves()))
    }

    /// Records that the row and the entry of `directory`, under the name that it had when the sync was requested, are
    /// on disk, as are those of all its ancestors as of `moves`.
    pub fn set_durable(&self, directory: InodeId, under: &(InodeId, Name), moves: u64) {
        if let Some(known) = self.stripe(directory).lock().get_mut(&directory)
            && known.parent == under.0
            && known.name.as_ref() == Some(&under.1)
        {
            known.durable = known.durable.max(Some(moves));
        }
    }

    /// The frontend opens a file, whose version is `now`, for I/O through its kernel's page cache. Returns whether the
    /// cached pages are still valid: they are if the client is `alone`, unless bytes written through them were lost.
    /// The frontend drops them if not.
    pub fn pages_are_right(&self, file: InodeId, now: Option<Version>, alone: bool) -> bool {
        let mut stripe = self.stripe(file).lock();
        let Some(known) = stripe.get_mut(&file) else { return false };
        let now = now.map_or(Pages::Unknown, Pages::Of);
        let before = std::mem::replace(&mut known.pages, now);
        before != Pages::Lost && (alone || now != Pages::Unknown && before == now)
    }

    /// Records that bytes written to a file were lost, and that the kernel may have pages with them.
    pub fn pages_are_lost(&self, file: InodeId) {
        if let Some(known) = self.stripe(file).lock().get_mut(&file) {
            known.pages = Pages::Lost;
        }
    }

    fn change_and_prune(&self, inode: InodeId, change: impl FnOnce(&mut CachedInode)) {
        let removed = {
            let mut stripe = self.stripe(inode).lock();
            let Some(known) = stripe.get_mut(&inode) else { return };
            change(known);
            if known.lookups > 0 || known.opens > 0 {
                return;
            }
            stripe.remove(&inode)
        };
        if let Some(CachedInode { parent, name: Some(name), by_inode, .. }) = removed {
            self.drop_name(parent, &name, inode);
            if !by_inode {
                self.add_name_hint(inode, parent, name);
            }
        }
    }

    fn drop_name(&self, parent: InodeId, name: &Name, inode: InodeId) {
        let key = name_key(parent, name);
        let mut names = self.name_stripe(key).lock();
        if names.get(&key) == Some(&inode) {
            names.remove(&key);
        }
    }

    fn stripe(&self, inode: InodeId) -> &Mutex<HashMap<InodeId, CachedInode, KeyHashing>> {
        &self.stripes[(inode.0 ^ (inode.0 >> 48)) as usize % STRIPES]
    }

    fn name_stripe(&self, key: u64) -> &Mutex<HashMap<u64, InodeId, KeyHashing>> {
        &self.names[key as usize % STRIPES]
    }
}

fn name_key(parent: InodeId, name: &Name) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), parent.0)
}

#[cfg(test)]
mod tests;
