//! A cache of directories: attributes that the client fetched once and then kept current through its own changes; and,
//! for directories that it made itself, the hashes of all names that can be in them.
//!
//! The kernel requests a directory's attributes after every change in it, to check permissions, and looks every name up
//! before it creates it. The cache answers both, so that the only client of a volume creates or removes a file with one
//! call.
//!
//! The last attributes of a directory are kept longer, for frontends that still have a removed directory open.
//!
//! Cached attributes are valid for as long as the kernel may cache them, which is the directory's lease. Cached names
//! are used only by a client that has the volume for itself. Invariants:
//! - Attributes are kept only if no change of the directory was in progress at any time between the request and the
//!   reply. So every change that ends later is included once its delta has been applied.
//! - A name's hash is added before the change that may create the name is sent, and is never removed. So a hash that is
//!   not in the set belongs to no name.

use crate::NodeInfo;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_types::{Attributes, InodeId, NameHash, Timestamp};

/// Enough stripes that the threads of a mount rarely contend for one lock.
const STRIPES: usize = 16;

/// Directories per stripe. When there are more, all without a change in progress are forgotten. All stripes together,
/// without names, take some 4 MiB.
const DIRECTORIES_PER_STRIPE_MAX: usize = 1024;

/// Names of all directories: some 32 MiB. For a directory that would exceed it, names are no longer cached.
const NAMES_MAX: usize = 2 * 1024 * 1024;

/// Never later than the present time of any clock.
const NOT_BELIEVED: Instant = Instant(Duration::ZERO);

#[derive(Default)]
struct CachedDirectory {
    /// The last known attributes, and the time until which they are valid.
    attributes: Option<(NodeInfo, Instant)>,
    /// The hashes of all names that the directory ever had; `None` if they are not known.
    names: Option<HashSet<NameHash, KeyHashing>>,
    /// Changes that have begun and not ended.
    changing: usize,
    /// The number of the last change that began, or of the event that created this entry; numbers count over all
    /// directories. So an entry that was forgotten after a request is not mistaken for the one at the time of the
    /// request.
    changes: u64,
}

/// Taken before a directory's attributes are requested: the number of its last change that began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeTicket(u64);

/// The effect of a change on its directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta {
    pub entries: i64,
    pub subdirectories: i64,
    /// mtime and ctime become at least this.
    pub at: Timestamp,
}

#[derive(Default)]
pub(crate) struct DirectoryCache {
    stripes: [Mutex<HashMap<InodeId, CachedDirectory, KeyHashing>>; STRIPES],
    names: AtomicUsize,
    /// Changes that have begun, in all directories.
    begun: AtomicU64,
}

/// A change of a directory, from before its request is sent until its reply. If it is dropped without
/// [`PendingChange::done`], the change may have done anything, except create names other than the one it began with.
pub(crate) struct PendingChange<'a> {
    known: &'a DirectoryCache,
    directory: InodeId,
}

impl DirectoryCache {
    /// Records that this client has just made `directory`, which has no names.
    pub fn made(&self, directory: InodeId) {
        self.with(directory, |known| known.names = Some(HashSet::default()));
    }

    /// Whether no name with `hash` can be in `directory`.
    pub fn is_absent(&self, directory: InodeId, hash: NameHash) -> bool {
        let stripe = self.stripe(directory).lock();
        let names = stripe.get(&directory).and_then(|known| known.names.as_ref());
        names.is_some_and(|names| !names.contains(&hash))
    }

    /// The attributes as known at `now`, with the remaining lifetime.
    pub fn attributes(&self, directory: InodeId, now: Instant) -> Option<NodeInfo> {
        let (node, until) = self.stripe(directory).lock().get(&directory)?.attributes?;
        let left = until.since(now);
        (!left.is_zero()).then_some(NodeInfo { attributes_ttl: left, ..node })
    }

    /// Called before the attributes of `directory` are requested. `None`: a change is in progress, so the reply must
    /// not be kept.
    pub fn ask(&self, directory: InodeId) -> Option<AttributeTicket> {
        self.with(directory, |known| (known.changing == 0).then_some(AttributeTicket(known.changes)))
    }

    /// Stores the reply to the request that `ticket` was taken for, received at `now`. `false`: it was not stored,
    /// because a change has begun since.
    pub fn keep(&self, directory: InodeId, ticket: AttributeTicket, node: NodeInfo, now: Instant) -> bool {
        self.with(directory, |known| {
            let unchanged = known.changes == ticket.0;
            if unchanged {
                known.attributes = Some((node, now.after(node.attributes_ttl)));
            }
            unchanged
        })
    }

    /// Called before a change of `directory` is requested, which may create a name with hash `adds`.
    pub fn change(&self, directory: InodeId, adds: Option<NameHash>) -> PendingChange<'_> {
        self.with(directory, |known| {
            known.changing += 1;
            known.changes = self.next();
            let Some(hash) = adds else { return };
            let Some(names) = &mut known.names else { return };
            if names.insert(hash) && self.names.fetch_add(1, Relaxed) >= NAMES_MAX {
                self.names.fetch_sub(names.len(), Relaxed);
                known.names = None;
            }
        });
        PendingChange { known: self, directory }
    }

    /// Records that the directory was removed. Its last attributes stay, but are no longer valid.
    pub fn removed(&self, directory: InodeId) {
        let mut stripe = self.stripe(directory).lock();
        let Some(known) = stripe.remove(&directory) else { return };
        self.count_out(std::iter::once(&known));
        if let Some((node, _)) = known.attributes {
            let attributes = Some((node, NOT_BELIEVED));
            stripe
                .insert(directory, CachedDirectory { attributes, changes: self.next(), ..CachedDirectory::default() });
        }
    }

    /// Records attributes of `directory` that were current recently, if none are cached.
    pub fn saw(&self, directory: InodeId, node: NodeInfo) {
        self.with(directory, |known| {
            known.attributes.get_or_insert((node, NOT_BELIEVED));
        });
    }

    /// The last known attributes, however old.
    pub fn last_attributes(&self, directory: InodeId) -> Option<NodeInfo> {
        self.stripe(directory).lock().get(&directory)?.attributes.map(|(node, _)| node)
    }

    fn with<T>(&self, directory: InodeId, change: impl FnOnce(&mut CachedDirectory) -> T) -> T {
        let mut stripe = self.stripe(directory).lock();
        if stripe.len() >= DIRECTORIES_PER_STRIPE_MAX && !stripe.contains_key(&directory) {
            // First the entries without valid data, such as removed directories.
            stripe.retain(|_, known| known.changing > 0 || known.is_of_use());
        }
        if stripe.len() >= DIRECTORIES_PER_STRIPE_MAX && !stripe.contains_key(&directory) {
            self.count_out(stripe.values().filter(|known| known.changing == 0));
            stripe.retain(|_, known| known.changing > 0);
        }
        change(
            stripe
                .entry(directory)
                .or_insert_with(|| CachedDirectory { changes: self.next(), ..CachedDirectory::default() }),
        )
    }

    fn next(&self) -> u64 {
        self.begun.fetch_add(1, Relaxed) + 1
    }

    fn count_out<'a>(&self, gone: impl Iterator<Item = &'a CachedDirectory>) {
        let names: usize = gone.filter_map(|known| known.names.as_ref()).map(HashSet::len).sum();
        self.names.fetch_sub(names, Relaxed);
    }

    fn stripe(&self, directory: InodeId) -> &Mutex<HashMap<InodeId, CachedDirectory, KeyHashing>> {
        &self.stripes[(directory.0 ^ (directory.0 >> 48)) as usize % STRIPES]
    }

    fn end(&self, directory: InodeId, delta: Option<Delta>) {
        let mut stripe = self.stripe(directory).lock();
        // The entry exists unless the directory itself was removed.
        let Some(known) = stripe.get_mut(&directory) else { return };
        known.changing = known.changing.saturating_sub(1);
        known.attributes = known.attributes.map(|(node, until)| match delta {
            Some(delta) => (delta.added_to(node), until),
            None => (node, NOT_BELIEVED),
        });
    }
}

impl CachedDirectory {
    fn is_of_use(&self) -> bool {
        self.names.is_some() || self.attributes.is_some_and(|(_, until)| until != NOT_BELIEVED)
    }
}

impl Delta {
    fn added_to(&self, mut node: NodeInfo) -> NodeInfo {
        let attributes = &mut node.attributes;
        attributes.size = attributes.size.saturating_add_signed(self.entries);
        let nlink = i64::from(attributes.nlink).saturating_add(self.subdirectories);
        if attributes.nlink != Attributes::NLINK_UNKNOWN {
            attributes.nlink = u32::try_from(nlink).unwrap_or(attributes.nlink);
        }
        // An mtime after the ctime was set explicitly; this change replaces it.
        let set_ahead = attributes.mtime > attributes.ctime;
        attributes.mtime = if set_ahead { self.at } else { attributes.mtime.max(self.at) };
        attributes.ctime = attributes.ctime.max(self.at);
        node
    }
}

impl PendingChange<'_> {
    /// The change was made, with this effect.
    pub fn done(self, delta: Delta) {
        self.known.end(self.directory, Some(delta));
        std::mem::forget(self);
    }
}

impl Drop for PendingChange<'_> {
    fn drop(&mut self) {
        self.known.end(self.directory, None);
    }
}

#[cfg(test)]
mod tests;
