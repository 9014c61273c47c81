//! Listings: a stream of batches in hash order, each from the shard that has that part of the directory. An open
//! directory keeps one batch, whatever the directory's size.

mod cookies;

use crate::files::FetchTicket;
use crate::inodes::ObservedInode;
use crate::locate::unexpected;
use crate::{Failure, FileSystem, NodeInfo, Operation, Result};
use cookies::{AFTER_DOT, AFTER_DOT_DOT, Cookies, ListingPosition};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve_env::random;
use varve_proto::{Call, EntryReply, ListingEntry, Reply};
use varve_types::{Credentials, Errno, FileKind, InodeId, Name, NameHash};

/// Size of a batch of a plain listing: some hundreds of names, so that the first arrive soon and a large directory
/// takes few requests.
const BATCH_BYTES: u32 = 64 * 1024;

/// Size of the first batch of a listing with attributes. Attributes must be newer than the reader's request, so entries
/// that do not fit the kernel's buffer are fetched again. The kernel's buffer often is one page.
const PLUS_BATCH_BYTES_MIN: u32 = 8 * 1024;

/// An open directory of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectoryHandle(pub u64);

/// One name of a listing.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// The position after this entry: `d_off`.
    pub cookie: u64,
    pub name: &'a [u8],
    pub inode: InodeId,
    pub kind: FileKind,
    /// Attributes, if they were requested and came with the listing. A node that is handed out counts as one lookup, if
    /// the visitor took it.
    pub node: Option<NodeInfo>,
}

/// The last batch: all names with hashes from `from` to before `next`.
struct ListingBatch {
    from: u64,
    /// Ordered by hash, then by name.
    children: Vec<ListingEntry>,
    /// `None`: up to the end of the directory.
    next: Option<u64>,
}

impl ListingBatch {
    fn nothing_from(from: u64) -> ListingBatch {
        ListingBatch { from, children: Vec::new(), next: None }
    }

    fn covers(&self, position: &ListingPosition) -> bool {
        self.from <= position.hash() && self.next.is_none_or(|next| position.hash() < next)
    }

    /// The index of the first name at or after the position.
    fn find(&self, position: &ListingPosition) -> usize {
        self.children.partition_point(|child| !position.precedes(child.hash, &child.name))
    }
}

struct ListingState {
    batch: Option<ListingBatch>,
    /// The batch is the one that opening fetched, and no entry of it was returned yet.
    unread: bool,
    cookies: Cookies,
    plus_batch_bytes: u32,
}

struct OpenDirectory {
    inode: InodeId,
    listing: futures::lock::Mutex<ListingState>,
}

#[derive(Default)]
pub(crate) struct Directories {
    open: Mutex<HashMap<u64, Arc<OpenDirectory>>>,
    made: AtomicU64,
}

type EntryVisitor<'a> = dyn FnMut(DirectoryEntry<'_>) -> bool + 'a;

impl FileSystem {
    /// `EACCES` unless `caller` may read the directory.
    pub async fn open_directory(&self, caller: &Credentials, inode: InodeId) -> Result<DirectoryHandle> {
        self.count(Operation::ReadDirectory, async {
            // The first batch is fetched with the caller's credentials; later ones rely on the permission checked here.
            let batch = match self.fetch(caller, inode, 0, BATCH_BYTES).await {
                Err(failure) if failure.errno == Errno::ENOENT && self.core.inodes.is_directory(inode) => {
                    self.first_batch_of_removed(caller, inode, failure).await?
                }
                fetched => fetched?,
            };
            let listing = ListingState {
                batch: Some(batch),
                unread: true,
                cookies: Cookies::default(),
                plus_batch_bytes: PLUS_BATCH_BYTES_MIN,
            };
            let open = OpenDirectory { inode, listing: futures::lock::Mutex::new(listing) };
            let number = self.directories.made.fetch_add(1, Relaxed) + 1;
            self.directories.open.lock().insert(number, Arc::new(open));
            Ok(DirectoryHandle(number))
        })
        .await
    }

    /// The first batch of a directory that does not exist at the server: nothing, if the frontend still has the
    /// directory. `missing`: the failure of the request for it.
    async fn first_batch_of_removed(
        &self,
        caller: &Credentials,
        directory: InodeId,
        missing: Failure,
    ) -> Result<ListingBatch> {
        match Box::pin(self.as_removed(directory, missing)).await?.attributes.nlink {
            0 => Ok(ListingBatch::nothing_from(0)),
            // Its rows were lost in a power failure, and are restored now.
            _ => self.fetch(caller, directory, 0, BATCH_BYTES).await,
        }
    }

    /// Whether a handle of the inode is open in this client.
    pub fn is_open(&self, inode: InodeId) -> bool {
        self.files.find(inode).is_some()
    }

    pub fn close_directory(&self, handle: DirectoryHandle) {
        self.directories.open.lock().remove(&handle.0);
    }

    /// Passes the entries after `cookie` (0: from the start) to `visit`, until that returns `false` (the entry did not
    /// fit, and is passed again next time) or the directory ends. `.` and `..` come first.
    pub async fn read_directory(
        &self,
        handle: DirectoryHandle,
        cookie: u64,
        plus: bool,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.count(Operation::ReadDirectory, async {
            let open = self.directories.open.lock().get(&handle.0).cloned();
            let open = open.ok_or_else(|| Failure::new(Errno::EBADF, "there is no such open directory"))?;
            let mut listing = open.listing.lock().await;
            let position = listing.cookies.position(cookie);
            let Some(position) = self.show_dots(open.inode, position, visit).await? else { return Ok(()) };
            if plus {
                self.show_with_attributes(open.inode, &mut listing, position, visit).await
            } else {
                self.show(open.inode, &mut listing, position, cookie == cookies::START, visit).await
            }
        })
        .await
    }

    /// Passes `.` and `..`, unless the position is after them. `None`: no room, or the directory was removed, and the
    /// listing ends.
    async fn show_dots(
        &self,
        inode: InodeId,
        position: ListingPosition,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<Option<ListingPosition>> {
        let kind = FileKind::Directory;
        if matches!(position, ListingPosition::Start | ListingPosition::AfterDot) {
            let parent = match self.parent(inode).await {
                Err(failure) if failure.errno == Errno::ESTALE => return Ok(None),
                parent => parent?,
            };
            if position == ListingPosition::Start
                && !visit(DirectoryEntry { cookie: AFTER_DOT, name: b".", inode, kind, node: None })
            {
                return Ok(None);
            }
            if !visit(DirectoryEntry { cookie: AFTER_DOT_DOT, name: b"..", inode: parent, kind, node: None }) {
                return Ok(None);
            }
            return Ok(Some(ListingPosition::From(0)));
        }
        Ok(Some(position))
    }

    /// Lists names only. A rewind fetches anew; otherwise the present batch is used.
    async fn show(
        &self,
        inode: InodeId,
        listing: &mut ListingState,
        mut position: ListingPosition,
        rewound: bool,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<()> {
        // The batch that opening fetched is recent enough for the first read.
        let unread = std::mem::take(&mut listing.unread);
        if rewound && !unread {
            listing.batch = None;
        }
        loop {
            let ListingState { batch, cookies, .. } = listing;
            let batch = match batch {
                Some(batch) if batch.covers(&position) => batch,
                _ => batch.insert(self.fetch_on(inode, position.hash(), BATCH_BYTES).await?),
            };
            if !show_batch(batch, cookies, &position, &mut |_, entry| visit(entry))? {
                return Ok(());
            }
            match batch.next {
                Some(next) => position = ListingPosition::From(next),
                None => return Ok(()),
            }
        }
    }

    /// Lists with attributes, which the kernel caches: only entries fetched for this call may be returned.
    async fn show_with_attributes(
        &self,
        inode: InodeId,
        listing: &mut ListingState,
        mut position: ListingPosition,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<()> {
        (listing.batch, listing.unread) = (None, false);
        loop {
            let asked = self.files.asking();
            let batch = self.fetch_on(inode, position.hash(), listing.plus_batch_bytes).await?;
            let mut shown = 0;
            let all = show_batch(&batch, &mut listing.cookies, &position, &mut |child, entry| {
                let node = self.listed_node(inode, child, asked);
                let taken = visit(DirectoryEntry { node, ..entry });
                if taken && node.is_some() {
                    self.saw_listed(inode, child);
                }
                shown += usize::from(taken);
                taken
            })?;
            if !all {
                if shown * 2 < batch.children.len() {
                    listing.plus_batch_bytes = (listing.plus_batch_bytes / 2).max(PLUS_BATCH_BYTES_MIN);
                }
                return Ok(());
            }
            listing.plus_batch_bytes = (listing.plus_batch_bytes * 2).min(BATCH_BYTES);
            match batch.next {
                Some(next) => position = ListingPosition::From(next),
                None => return Ok(()),
            }
        }
    }

    /// The attributes that came with a name. `None` for a file that is open in this client, or was open until after the
    /// request: the client's own state is newer than these attributes.
    fn listed_node(&self, parent: InodeId, child: &ListingEntry, asked: FetchTicket) -> Option<NodeInfo> {
        let EntryReply::Node(reply) = &child.entry else { return None };
        let inode = InodeId(reply.inode);
        let known_better = self.files.find(inode).is_some() || self.files.is_outdated(inode, asked);
        (!known_better).then(|| self.under(parent, &child.name, self.node(reply, Duration::ZERO)))
    }

    fn saw_listed(&self, parent: InodeId, child: &ListingEntry) {
        let EntryReply::Node(reply) = &child.entry else { return };
        // Names were checked when the batch was fetched.
        let Ok(name) = Name::new(&child.name) else { return };
        let kind = reply.attributes.kind.into();
        let seen = ObservedInode { inode: InodeId(reply.inode), parent, name: &name, kind, by_inode: reply.by_inode };
        self.core.inodes.saw(seen, 1);
    }

    /// Fetches a further batch on behalf of the user who opened the directory. A directory that was removed meanwhile
    /// has no more names.
    async fn fetch_on(&self, directory: InodeId, from: u64, bytes_max: u32) -> Result<ListingBatch> {
        if from > NameHash::LAST.0 {
            return Ok(ListingBatch::nothing_from(from));
        }
        match self.fetch(&Credentials::root(), directory, from, bytes_max).await {
            Err(failure) if failure.errno == Errno::ENOENT => Ok(ListingBatch::nothing_from(from)),
            fetched => fetched,
        }
    }

    async fn fetch(&self, caller: &Credentials, directory: InodeId, from: u64, bytes_max: u32) -> Result<ListingBatch> {
        let call = || Call::List { directory: directory.0, from, bytes_max };
        let listing = match self.core.ask_hash(caller, directory, NameHash(from), call).await? {
            Reply::Listing(listing) => listing,
            other => return Err(unexpected("List", &other)),
        };
        self.core.routing.learn(directory, &listing.map);
        let mut children = listing.children;
        let in_range = |child: &ListingEntry| {
            child.hash >= from && listing.next.is_none_or(|next| child.hash < next) && Name::new(&child.name).is_ok()
        };
        if listing.next.is_some_and(|next| next <= from) || !children.iter().all(in_range) {
            return Err(Failure::new(Errno::EIO, "the server listed names that were not requested"));
        }
        children.sort_by(|a, b| (a.hash, &a.name).cmp(&(b.hash, &b.name)));
        Ok(ListingBatch { from, children, next: listing.next })
    }
}

/// Passes the names of `batch` after `position` to `visit`. `false`: the visitor has no more room.
fn show_batch(
    batch: &ListingBatch,
    cookies: &mut Cookies,
    position: &ListingPosition,
    visit: &mut dyn FnMut(&ListingEntry, DirectoryEntry<'_>) -> bool,
) -> Result<bool> {
    for at in batch.find(position)..batch.children.len() {
        let child = &batch.children[at];
        let last = batch.children.get(at + 1).is_none_or(|next| next.hash != child.hash);
        let cookie = cookies.after(child.hash, &child.name, last, random::number)?;
        let (inode, kind) = match &child.entry {
            EntryReply::Node(reply) => (InodeId(reply.inode), reply.attributes.kind.into()),
            EntryReply::Elsewhere { inode, kind } => (InodeId(*inode), (*kind).into()),
        };
        if !visit(child, DirectoryEntry { cookie, name: &child.name, inode, kind, node: None }) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
