//! Finds an inode by its number alone, after the kernel has dropped it: for file handles (open_by_handle_at(2)) and NFS
//! servers, which keep numbers for as long as they like.
//!
//! - A directory, and a file with an inode row, are found at the shard of their number.
//! - Any other file's attributes are in its entry, so its name is needed. The client remembers names of inodes that the
//!   kernel dropped ([`crate::inodes`]). If that is of no use, it searches all entries in a consistent snapshot, the
//!   shard that made the number first: renames between shards cannot hide the file. The search remembers the names of all
//!   files with numbers near by, because they are often needed next.
//!
//! Only the kernel asks for a number, for callers with CAP_DAC_READ_SEARCH. They get attributes here; the server checks
//! the permissions of every later call, as after a lookup by name.

use crate::calls::{BUSY_WAIT, CallRefusal};
use crate::locate::unexpected;
use crate::{Failure, FileSystem, NodeInfo, Operation, Result};
use futures::lock::Mutex as TurnMutex;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::random;
use varve_proto::{Call, Locator, Reply};
use varve_types::{Credentials, Errno, FileKind, InodeId, Name, ShardId};

/// Searches for one file: it can be renamed after each of them.
const ROUNDS_MAX: usize = 4;

/// Time limit of a search. A million rows with small content take seconds.
const SEARCH_MAX: Duration = Duration::from_secs(300);

/// How long a number that no row has is answered without another search. Numbers are not reused, so this only bounds
/// the error for a number that was asked for before its file was made.
const GONE_LIFETIME: Duration = Duration::from_secs(60);
/// When there are more, all are forgotten.
const GONE_MAX: usize = 16 * 1024;

/// Callers that search or wait for their turn to. Each occupies a thread of its own.
const SEARCHERS_MAX: usize = 128;

#[derive(Default)]
pub(crate) struct Searches {
    /// One search at a time.
    turn: TurnMutex<()>,
    /// Numbers that were searched for and not found, and when.
    gone: Mutex<HashMap<InodeId, Instant>>,
    searchers: AtomicUsize,
}

impl Searches {
    fn is_gone(&self, inode: InodeId, now: Instant) -> bool {
        self.gone.lock().get(&inode).is_some_and(|since| now.since(*since) < GONE_LIFETIME)
    }

    fn add_gone(&self, inode: InodeId, now: Instant) {
        let mut gone = self.gone.lock();
        if gone.len() >= GONE_MAX {
            gone.clear();
        }
        gone.insert(inode, now);
    }
}

/// A place among the callers that search.
pub struct Searcher<'a>(&'a AtomicUsize);

impl Drop for Searcher<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl FileSystem {
    /// Finds `inode` without a search, and counts one lookup. `None`: only a search can tell
    /// ([`FileSystem::search_by_number`]).
    pub async fn find_by_number(&self, inode: InodeId) -> Result<Option<NodeInfo>> {
        self.count(Operation::Lookup, self.find_without_search(inode)).await
    }

    async fn find_without_search(&self, inode: InodeId) -> Result<Option<NodeInfo>> {
        if inode.shard().0 >= self.core.settings.shards.get() {
            return Err(Errno::ESTALE.into());
        }
        if inode == InodeId::ROOT {
            return self.attributes_of(&Credentials::root(), inode).await.map(Some);
        }
        if let Some(node) = self.find_by_hint(inode).await? {
            return Ok(Some(node));
        }
        match self.find_by_row(inode).await? {
            None if self.searches.is_gone(inode, self.core.clock.monotonic()) => Err(Errno::ESTALE.into()),
            found => Ok(found),
        }
    }

    /// A place for a call of [`FileSystem::search_by_number`]; `None` if too many search.
    pub fn searcher(&self) -> Option<Searcher<'_>> {
        let place = Searcher(&self.searches.searchers);
        (place.0.fetch_add(1, Relaxed) < SEARCHERS_MAX).then_some(place)
    }

    /// [`FileSystem::find_by_number`] with a search of the volume's entries. `ESTALE`: there is no such inode. May take
    /// minutes in a large volume.
    pub async fn search_by_number(&self, _place: &Searcher<'_>, inode: InodeId) -> Result<NodeInfo> {
        self.count(Operation::Lookup, async {
            let _turn = self.searches.turn.lock().await;
            let end = self.core.clock.monotonic().after(SEARCH_MAX);
            for _ in 0..ROUNDS_MAX {
                // An earlier search may have found it.
                if let Some(node) = self.find_without_search(inode).await? {
                    return Ok(node);
                }
                let began = self.core.clock.monotonic();
                if !self.search(inode, end).await? {
                    // It may have got an inode row in the meantime.
                    return match self.find_by_row(inode).await? {
                        Some(node) => Ok(node),
                        None => {
                            self.searches.add_gone(inode, began);
                            Err(Errno::ESTALE.into())
                        }
                    };
                }
            }
            Err(Failure::new(Errno::EAGAIN, format!("inode {inode} is renamed again and again")))
        })
        .await
    }

    async fn find_by_hint(&self, inode: InodeId) -> Result<Option<NodeInfo>> {
        let Some((parent, name)) = self.core.inodes.name_hint(inode) else { return Ok(None) };
        match self.lookup_counting(&Credentials::root(), parent, &name, 1).await {
            Ok(node) if node.inode == inode => Ok(Some(node)),
            Ok(other) => {
                self.forget(other.inode, 1);
                Ok(None)
            }
            Err(failure) if matches!(failure.errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The inode, if it has a row of its own and a name.
    async fn find_by_row(&self, inode: InodeId) -> Result<Option<NodeInfo>> {
        let root = Credentials::root();
        let at = Locator::Inode { inode: inode.0 };
        let asked = self.core.begin(&root).ask(inode.shard(), Call::GetAttributes { at }).await;
        let row = match asked {
            Ok(Reply::Node(row)) => row,
            Ok(other) => return Err(unexpected("GetAttributes", &other)),
            Err(CallRefusal::NotHere | CallRefusal::Moved { .. }) => return Ok(None),
            Err(refusal) => return Err(refusal.into()),
        };
        let kind = FileKind::from(row.attributes.kind);
        if kind != FileKind::Directory && row.attributes.nlink == 0 {
            return Err(Errno::ESTALE.into());
        }
        self.core.inodes.found(inode, kind);
        match self.attributes_of(&root, inode).await {
            Ok(node) => Ok(Some(node)),
            Err(failure) => {
                self.forget(inode, 1);
                Err(failure)
            }
        }
    }

    /// Remembers the names of `inode` and of the files near it as of now. Whether there is one of `inode`.
    async fn search(&self, inode: InodeId, end: Instant) -> Result<bool> {
        let mut wait = BUSY_WAIT;
        loop {
            let number = random::number();
            self.take_snapshot(number).await?;
            let searched = self.search_snapshot(number, inode, end).await;
            let released = self.release_snapshot(number).await;
            match searched {
                // Another server, or this one for want of memory, does not have the snapshot.
                Err(failure) if failure.errno == Errno::ESTALE && self.core.clock.monotonic() < end => {
                    self.core.pause(wait.next()).await;
                }
                searched => return searched.and_then(|found| released.map(|()| found)),
            }
        }
    }

    async fn search_snapshot(&self, number: u64, inode: InodeId, end: Instant) -> Result<bool> {
        let home = inode.shard();
        let others = self.core.settings.shards.all().filter(|shard| *shard != home);
        for shard in std::iter::once(home).chain(others) {
            if self.search_shard(number, shard, inode, end).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the whole shard even if the name is found early, for the names of the other files.
    async fn search_shard(&self, number: u64, shard: ShardId, inode: InodeId, end: Instant) -> Result<bool> {
        let (mut from, mut any) = (Vec::new(), false);
        loop {
            let (names, next) = self.find_names(number, shard, inode, from).await?;
            for found in names {
                let Ok(name) = Name::new(&found.name) else { continue };
                any |= found.inode == inode.0;
                self.core.inodes.add_name_hint(InodeId(found.inode), InodeId(found.parent), name);
            }
            if next.is_empty() {
                return Ok(any);
            }
            if self.core.clock.monotonic() >= end {
                let why = format!("inode {inode} was not found within {} s", SEARCH_MAX.as_secs());
                return Err(Failure::new(Errno::ETIMEDOUT, why));
            }
            from = next;
        }
    }
}
