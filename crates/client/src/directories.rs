//! Listings: a stream of batches in hash order, each from the shard that has that part of the directory. An open
//! directory keeps one batch, whatever the directory's size.

mod batch;
mod cookies;
mod kernel_listings;

pub use kernel_listings::KernelListing;

use crate::config::CookieWidth;
use crate::files::FetchTicket;
use crate::inodes::ObservedInode;
use crate::locate::unexpected;
use crate::{Failure, FileSystem, NodeInfo, Operation, Result};
use batch::{BatchEntry, ListingBatch, ended, show_batch};
use cookies::{AFTER_DOT, AFTER_DOT_DOT, Cookies, ListingPosition};
use kernel_listings::{KernelListings, Parts};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve_proto::{Call, EntryReply, ListedPartition, ListingEntry, NameEntry, Reply};
use varve_types::{Credentials, Errno, FileKind, InodeId, Name, NameHash};

/// Size of the first batch of a plain listing: some hundreds of names, so that the first arrive soon.
const BATCH_BYTES_MIN: u32 = 32 * 1024;

/// Size of later batches: a large directory takes few requests.
const BATCH_BYTES: u32 = 64 * 1024;

/// Sizes of a batch of a listing with attributes. Attributes must be newer than the reader's request, so entries that do
/// not fit the kernel's buffer are fetched again. The kernel's buffer often is one page.
const PLUS_BATCH_BYTES_MIN: u32 = 8 * 1024;
const PLUS_BATCH_BYTES: u32 = 64 * 1024;

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

struct ListingState {
    batch: Option<ListingBatch<NameEntry>>,
    /// The batch is the one that opening fetched, and no entry of it was returned yet.
    unread: bool,
    cookies: Cookies,
    plus_batch_bytes: u32,
}

struct OpenDirectory {
    inode: InodeId,
    kernel: KernelListing,
    /// Names were returned to a kernel that may cache them.
    fills_kernel: AtomicBool,
    listing: futures::lock::Mutex<ListingState>,
}

#[derive(Default)]
pub(crate) struct Directories {
    open: Mutex<HashMap<u64, Arc<OpenDirectory>>>,
    made: AtomicU64,
    kernel: KernelListings,
    width: CookieWidth,
}

impl Directories {
    pub fn new(width: CookieWidth) -> Directories {
        Directories { width, ..Directories::default() }
    }

    /// Called before names of `batch` are returned for `open`.
    fn note<E: BatchEntry>(&self, open: &OpenDirectory, batch: &ListingBatch<E>) {
        if open.kernel != KernelListing::Bypass {
            if !open.fills_kernel.swap(true, Relaxed) {
                self.kernel.begin(open.inode);
            }
            let unknown = ListedPartition { first: 0, last: 0, version: None };
            let repeatable = batch.has_plain_cookies(self.width);
            self.kernel.note(open.inode, batch.partition.as_ref().unwrap_or(&unknown), repeatable);
        }
    }
}

type EntryVisitor<'a> = dyn FnMut(DirectoryEntry<'_>) -> bool + 'a;

impl FileSystem {
    /// `EACCES` unless `caller` may read the directory.
    pub async fn open_directory(&self, caller: &Credentials, inode: InodeId) -> Result<DirectoryHandle> {
        self.count(Operation::ReadDirectory, async {
            Ok(self.opened(inode, KernelListing::Bypass, Some(self.first_batch(caller, inode).await?)))
        })
        .await
    }

    /// [`FileSystem::open_directory`] for a kernel that caches listings.
    pub async fn open_directory_cached(
        &self,
        caller: &Credentials,
        inode: InodeId,
    ) -> Result<(DirectoryHandle, KernelListing)> {
        self.count(Operation::ReadDirectory, async {
            let current = self.current_parts(caller, inode).await?;
            let batch = match current {
                Some(_) => None,
                None => Some(self.first_batch(caller, inode).await?),
            };
            let kernel = self.directories.kernel.open(inode, current.as_ref());
            Ok((self.opened(inode, kernel, batch), kernel))
        })
        .await
    }

    /// The first batch, fetched with the caller's credentials; later ones rely on the permission checked here. Nothing for
    /// a directory that does not exist at the server, if the frontend still has it.
    async fn first_batch(&self, caller: &Credentials, directory: InodeId) -> Result<ListingBatch<NameEntry>> {
        match self.fetch_names(caller, directory, 0, BATCH_BYTES_MIN).await {
            Err(failure) if failure.errno == Errno::ENOENT && self.core.inodes.is_directory(directory) => {
                match Box::pin(self.as_removed(directory, failure)).await?.attributes.nlink {
                    0 => Ok(ListingBatch::empty(0)),
                    // Its rows were lost in a power failure, and are restored now.
                    _ => self.fetch_names(caller, directory, 0, BATCH_BYTES_MIN).await,
                }
            }
            fetched => fetched,
        }
    }

    /// The versions of the names that the kernel has cached, if the server still has all of them.
    async fn current_parts(&self, caller: &Credentials, inode: InodeId) -> Result<Option<Parts>> {
        let Some(parts) = self.directories.kernel.cached(inode) else { return Ok(None) };
        for (first, (last, version)) in &parts {
            let found = ended(self.fetch_names(caller, inode, *first, 0).await, *first)?.partition;
            if found != Some(ListedPartition { first: *first, last: *last, version: Some(*version) }) {
                return Ok(None);
            }
        }
        Ok(Some(parts))
    }

    fn opened(&self, inode: InodeId, kernel: KernelListing, batch: Option<ListingBatch<NameEntry>>) -> DirectoryHandle {
        let listing = ListingState {
            unread: batch.is_some(),
            batch,
            cookies: Cookies::new(self.directories.width),
            plus_batch_bytes: PLUS_BATCH_BYTES_MIN,
        };
        let (fills_kernel, listing) = (AtomicBool::new(false), futures::lock::Mutex::new(listing));
        let open = OpenDirectory { inode, kernel, fills_kernel, listing };
        let number = self.directories.made.fetch_add(1, Relaxed) + 1;
        self.directories.open.lock().insert(number, Arc::new(open));
        DirectoryHandle(number)
    }

    /// Whether a handle of the inode is open in this client.
    pub fn is_open(&self, inode: InodeId) -> bool {
        self.files.find(inode).is_some()
    }

    pub fn close_directory(&self, handle: DirectoryHandle) {
        let closed = self.directories.open.lock().remove(&handle.0);
        if let Some(open) = closed.filter(|open| open.fills_kernel.load(Relaxed)) {
            self.directories.kernel.end(open.inode);
        }
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
                self.show_with_attributes(&open, &mut listing, position, visit).await
            } else {
                self.show(&open, &mut listing, position, cookie == cookies::START, visit).await
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
        open: &OpenDirectory,
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
                _ => {
                    let bytes_max = if position.hash() == 0 { BATCH_BYTES_MIN } else { BATCH_BYTES };
                    batch.insert(self.further(open.inode, position.hash(), bytes_max).await?)
                }
            };
            self.directories.note(open, batch);
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
        open: &OpenDirectory,
        listing: &mut ListingState,
        mut position: ListingPosition,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<()> {
        (listing.batch, listing.unread) = (None, false);
        loop {
            let asked = self.files.asking();
            let batch = self.further_plus(open.inode, position.hash(), listing.plus_batch_bytes).await?;
            self.directories.note(open, &batch);
            let mut shown = 0;
            let all = show_batch(&batch, &mut listing.cookies, &position, &mut |child, entry| {
                let node = self.listed_node(open.inode, child, asked);
                let taken = visit(DirectoryEntry { node, ..entry });
                if taken && node.is_some() {
                    self.saw_listed(open.inode, child);
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
            listing.plus_batch_bytes = (listing.plus_batch_bytes * 2).min(PLUS_BATCH_BYTES);
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
    async fn further(&self, directory: InodeId, from: u64, bytes_max: u32) -> Result<ListingBatch<NameEntry>> {
        if from > NameHash::LAST.0 {
            return Ok(ListingBatch::empty(from));
        }
        ended(self.fetch_names(&Credentials::root(), directory, from, bytes_max).await, from)
    }

    /// As [`FileSystem::further`], with attributes.
    async fn further_plus(&self, directory: InodeId, from: u64, bytes_max: u32) -> Result<ListingBatch<ListingEntry>> {
        if from > NameHash::LAST.0 {
            return Ok(ListingBatch::empty(from));
        }
        let call = || Call::List { directory: directory.0, from, bytes_max };
        let listed = match self.core.ask_hash(&Credentials::root(), directory, NameHash(from), call).await {
            Ok(Reply::Listing(listing)) => {
                self.core.routing.learn(directory, &listing.map);
                ListingBatch::of(from, listing.children, listing.next, listing.partition)
            }
            Ok(other) => Err(unexpected("List", &other)),
            Err(failure) => Err(failure),
        };
        ended(listed, from)
    }

    /// With a `bytes_max` of 0 only the partition.
    async fn fetch_names(
        &self,
        caller: &Credentials,
        directory: InodeId,
        from: u64,
        bytes_max: u32,
    ) -> Result<ListingBatch<NameEntry>> {
        let call = || Call::ListNames { directory: directory.0, from, bytes_max };
        let listing = match self.core.ask_hash(caller, directory, NameHash(from), call).await? {
            Reply::Names(listing) => listing,
            other => return Err(unexpected("ListNames", &other)),
        };
        self.core.routing.learn(directory, &listing.map);
        let next = listing.next.filter(|_| bytes_max > 0);
        ListingBatch::of(from, listing.names, next, listing.partition)
    }
}

#[cfg(test)]
mod tests;
