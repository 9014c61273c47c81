//! What a client knows of directories without asking: attributes that it asked for once and has followed through its own
//! changes since, and, of directories that it made, which names cannot be there.
//!
//! The kernel asks for a directory's attributes after every change in it, to check permissions against them, and looks
//! every name up before it makes it. Both are answered from here, so that a client that is alone makes or removes a file
//! by one call.
//!
//! What a directory was last is remembered beyond that, for frontends that still have open one that is gone.
//!
//! Attributes are believed for as long as the kernel could believe them, which is as long as the directory is leased.
//! Names are only for a client that is alone with its volume. Invariants:
//! - Attributes are kept only if no change of the directory was under way at any time between the question and the
//!   answer; so every change that ends later is in them once it has been added.
//! - A name's hash is added before the change that may make it is asked for, and never taken away. So a hash that is not
//!   there belongs to no name.

use crate::NodeInfo;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_types::{Attributes, InodeId, NameHash, Timestamp};

/// Enough that the threads of a mount seldom meet at one lock.
const STRIPES: usize = 16;

/// Directories known of one stripe; when there are more, all in which nothing is under way are forgotten. Together, without
/// names, some 4 MiB.
const DIRECTORIES_PER_STRIPE_MAX: usize = 1024;

/// Names known of all directories: some 32 MiB. A directory that would go beyond is asked for its names from then on.
const NAMES_MAX: usize = 2 * 1024 * 1024;

/// In no clock's future.
const NOT_BELIEVED: Instant = Instant(Duration::ZERO);

#[derive(Default)]
struct CachedDirectory {
    /// As they were known last, and until when they may be believed.
    attributes: Option<(NodeInfo, Instant)>,
    /// Of every name that it ever had.
    names: Option<HashSet<NameHash, KeyHashing>>,
    /// Changes that have begun and not ended.
    changing: usize,
    /// The number of the change that has begun last, among those of all directories, or of what made this be remembered anew: what was
    /// forgotten since a question is not taken for what was there then.
    changes: u64,
}

/// Taken before a directory is asked for its attributes: the change of it that had begun last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeTicket(u64);

/// What a change did to the directory that it was in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta {
    pub entries: i64,
    pub subdirectories: i64,
    /// mtime and ctime are not before.
    pub at: Timestamp,
}

#[derive(Default)]
pub(crate) struct DirectoryCache {
    stripes: [Mutex<HashMap<InodeId, CachedDirectory, KeyHashing>>; STRIPES],
    names: AtomicUsize,
    /// Changes that have begun, of any directory.
    begun: AtomicU64,
}

/// A change of a directory, from before it is asked for until its answer. Dropped without [`PendingChange::done`], it
/// may have done anything but make names other than those it began with.
pub(crate) struct PendingChange<'a> {
    known: &'a DirectoryCache,
    directory: InodeId,
}

impl DirectoryCache {
    /// This client has just made `directory`: it has no names.
    pub fn made(&self, directory: InodeId) {
        self.with(directory, |known| known.names = Some(HashSet::default()));
    }

    /// Whether no name of `hash` can be in `directory`.
    pub fn is_absent(&self, directory: InodeId, hash: NameHash) -> bool {
        let stripe = self.stripe(directory).lock();
        let names = stripe.get(&directory).and_then(|known| known.names.as_ref());
        names.is_some_and(|names| !names.contains(&hash))
    }

    /// The attributes as they are known at `now`, to be believed for as long as is left.
    pub fn attributes(&self, directory: InodeId, now: Instant) -> Option<NodeInfo> {
        let (node, until) = self.stripe(directory).lock().get(&directory)?.attributes?;
        let left = until.since(now);
        (!left.is_zero()).then_some(NodeInfo { attributes_ttl: left, ..node })
    }

    /// The attributes of `directory` are about to be asked for. `None`: a change is under way, so the answer is not to be
    /// kept.
    pub fn ask(&self, directory: InodeId) -> Option<AttributeTicket> {
        self.with(directory, |known| (known.changing == 0).then_some(AttributeTicket(known.changes)))
    }

    /// The answer to what was asked with `ticket`, received at `now`. `false`: it is not to be believed, for a change has begun since.
    pub fn keep(&self, directory: InodeId, ticket: AttributeTicket, node: NodeInfo, now: Instant) -> bool {
        self.with(directory, |known| {
            let unchanged = known.changes == ticket.0;
            if unchanged {
                known.attributes = Some((node, now.after(node.attributes_ttl)));
            }
            unchanged
        })
    }

    /// A change of `directory` is about to be asked for, which may make a name of hash `adds`.
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

    /// The directory is gone. What it was stays, not to be believed any more.
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

    /// The attributes of `directory` were these a moment ago.
    pub fn saw(&self, directory: InodeId, node: NodeInfo) {
        self.with(directory, |known| {
            known.attributes.get_or_insert((node, NOT_BELIEVED));
        });
    }

    /// The attributes as they were known last, however long ago.
    pub fn last_attributes(&self, directory: InodeId) -> Option<NodeInfo> {
        self.stripe(directory).lock().get(&directory)?.attributes.map(|(node, _)| node)
    }

    fn with<T>(&self, directory: InodeId, change: impl FnOnce(&mut CachedDirectory) -> T) -> T {
        let mut stripe = self.stripe(directory).lock();
        if stripe.len() >= DIRECTORIES_PER_STRIPE_MAX && !stripe.contains_key(&directory) {
            // First those of which nothing is known that would be believed, such as removed ones.
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
        // It is there unless the directory itself was removed.
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
        // One beyond the ctime is no change's: it was set, until now.
        let set_ahead = attributes.mtime > attributes.ctime;
        attributes.mtime = if set_ahead { self.at } else { attributes.mtime.max(self.at) };
        attributes.ctime = attributes.ctime.max(self.at);
        node
    }
}

impl PendingChange<'_> {
    /// The change was made, and did this.
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
