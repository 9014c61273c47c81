//! One reply's names, in order, with or without attributes.

use super::DirectoryEntry;
use super::cookies::{Cookies, ListingPosition};
use crate::config::CookieWidth;
use crate::{Failure, Result};
use varve_env::random;
use varve_proto::{EntryReply, ListedPartition, ListingEntry, NameEntry};
use varve_types::{Errno, FileKind, InodeId, Name};

/// Names of a batch, with or without attributes.
pub(super) trait BatchEntry {
    fn hash(&self) -> u64;
    fn name(&self) -> &[u8];
    fn target(&self) -> (InodeId, FileKind);
}

impl BatchEntry for NameEntry {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn target(&self) -> (InodeId, FileKind) {
        (InodeId(self.inode), self.kind.into())
    }
}

impl BatchEntry for ListingEntry {
    fn hash(&self) -> u64 {
        self.hash
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn target(&self) -> (InodeId, FileKind) {
        match &self.entry {
            EntryReply::Node(reply) => (InodeId(reply.inode), reply.attributes.kind.into()),
            EntryReply::Elsewhere { inode, kind } => (InodeId(*inode), (*kind).into()),
        }
    }
}

/// All names with hashes from `from` to before `next`.
pub(super) struct ListingBatch<E> {
    pub from: u64,
    /// Ordered by hash, then by name.
    pub children: Vec<E>,
    /// `None`: up to the end of the directory.
    pub next: Option<u64>,
    /// `None`: the directory was removed, or has no such hashes.
    pub partition: Option<ListedPartition>,
}

impl<E: BatchEntry> ListingBatch<E> {
    pub fn empty(from: u64) -> ListingBatch<E> {
        ListingBatch { from, children: Vec::new(), next: None, partition: None }
    }

    /// Checks and sorts the names of a reply.
    pub fn of(
        from: u64,
        mut children: Vec<E>,
        next: Option<u64>,
        partition: ListedPartition,
    ) -> Result<ListingBatch<E>> {
        let in_range = |child: &E| {
            let hash = child.hash();
            hash >= from && next.is_none_or(|next| hash < next) && Name::new(child.name()).is_ok()
        };
        if next.is_some_and(|next| next <= from) || !children.iter().all(in_range) {
            return Err(Failure::new(Errno::EIO, "the server listed names that were not requested"));
        }
        let order = |a: &E, b: &E| (a.hash(), a.name()).cmp(&(b.hash(), b.name()));
        if !children.is_sorted_by(|a, b| order(a, b).is_lt()) {
            children.sort_by(order);
        }
        Ok(ListingBatch { from, children, next, partition: Some(partition) })
    }

    pub fn covers(&self, position: &ListingPosition) -> bool {
        self.from <= position.hash() && self.next.is_none_or(|next| position.hash() < next)
    }

    /// The index of the first name at or after the position.
    pub fn find(&self, position: &ListingPosition) -> usize {
        self.children.partition_point(|child| !position.precedes(child.hash(), child.name()))
    }

    /// Whether no two names share a cookie, so that no cookie is a random number.
    pub fn has_plain_cookies(&self, width: CookieWidth) -> bool {
        (0..self.children.len()).all(|at| self.is_last_of_cookie(at, width))
    }

    /// Whether the cookie of the name at `at` is that of no later name. The first hash of the next batch counts as a name.
    fn is_last_of_cookie(&self, at: usize, width: CookieWidth) -> bool {
        let later = self.children.get(at + 1).map(E::hash).or(self.next);
        later.is_none_or(|later| width.of(later) != width.of(self.children[at].hash()))
    }
}

/// A directory that was removed has no more names.
pub(super) fn ended<E: BatchEntry>(listed: Result<ListingBatch<E>>, from: u64) -> Result<ListingBatch<E>> {
    match listed {
        Err(failure) if failure.errno == Errno::ENOENT => Ok(ListingBatch::empty(from)),
        listed => listed,
    }
}

/// Passes the names of `batch` after `position` to `visit`. `false`: the visitor has no more room.
pub(super) fn show_batch<E: BatchEntry>(
    batch: &ListingBatch<E>,
    cookies: &mut Cookies,
    position: &ListingPosition,
    visit: &mut dyn FnMut(&E, DirectoryEntry<'_>) -> bool,
) -> Result<bool> {
    for at in batch.find(position)..batch.children.len() {
        let child = &batch.children[at];
        let last = batch.is_last_of_cookie(at, cookies.width);
        let cookie = cookies.after(child.hash(), child.name(), last, random::number)?;
        let (inode, kind) = child.target();
        if !visit(child, DirectoryEntry { cookie, name: child.name(), inode, kind, node: None }) {
            return Ok(false);
        }
    }
    Ok(true)
}
