//! Caches the attributes that came with a lookup, for the getattr request that the kernel sends next.
//!
//! Where the kernel may not cache the attributes of files, stat(2) makes two requests on one thread: it looks the name
//! up, and then requests the attributes that the lookup just returned. The cache answers the second request from the
//! first; that is correct because the call had begun before the first.
//!
//! A request does not identify its system call. So a cached reply is used once, by the thread that looked the name up,
//! within the longest time that a call takes. It is never used for a file that this client has open, or has opened
//! since: stale attributes must not hide this client's own changes, and fstat(2) must not see them. Directories are not
//! cached here: they are leased, and operations that create names in them do not increment the counter of changes.

use crate::{FileSystem, NodeInfo, Operation, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::{Credentials, FileKind, InodeId, Name};

/// Enough stripes that the threads of a mount rarely contend for one lock.
const STRIPES: usize = 16;

/// Threads remembered per stripe. When there are more, all are forgotten, which costs one request each.
const THREADS_PER_STRIPE_MAX: usize = 64;

/// How long a reply is kept for its thread.
const BELIEVED: Duration = Duration::from_millis(10);

/// The attributes returned to a thread.
struct CachedReply {
    node: NodeInfo,
    asked: Instant,
    /// The value of [`FileSystem::changes`] at that time.
    changes: u64,
}

#[derive(Default)]
pub(crate) struct AttributeCache([Mutex<HashMap<u32, CachedReply>>; STRIPES]);

impl AttributeCache {
    fn remember(&self, thread: u32, reported: CachedReply) {
        let mut stripe = self.stripe(thread).lock();
        if stripe.len() >= THREADS_PER_STRIPE_MAX && !stripe.contains_key(&thread) {
            stripe.clear();
        }
        stripe.insert(thread, reported);
    }

    fn take(&self, thread: u32) -> Option<CachedReply> {
        self.stripe(thread).lock().remove(&thread)
    }

    fn stripe(&self, thread: u32) -> &Mutex<HashMap<u32, CachedReply>> {
        &self.0[thread as usize % STRIPES]
    }
}

impl FileSystem {
    /// [`FileSystem::lookup`] for a kernel thread that may request the attributes next.
    pub async fn lookup_by(&self, thread: u32, caller: &Credentials, parent: InodeId, name: &Name) -> Result<NodeInfo> {
        if self.has_missed(thread) {
            return Box::pin(self.lookup_pinned(caller, parent, name)).await;
        }
        let (asked, changes) = (self.core.clock.monotonic(), self.changes.load(Relaxed));
        let node = self.lookup(caller, parent, name).await?;
        let file = node.attributes.kind != FileKind::Directory;
        if file && node.attributes_ttl.is_zero() && self.files.find(node.inode).is_none() {
            self.attribute_cache.remember(thread, CachedReply { node, asked, changes });
        }
        Ok(node)
    }

    /// [`FileSystem::attributes`] for a thread that may just have looked the name up.
    pub async fn attributes_by(&self, thread: u32, caller: &Credentials, inode: InodeId) -> Result<NodeInfo> {
        match self.take_cached(thread, inode) {
            Some(node) => self.count(Operation::GetAttributes, async { Ok(node) }).await,
            None => self.attributes(caller, inode).await,
        }
    }

    fn take_cached(&self, thread: u32, inode: InodeId) -> Option<NodeInfo> {
        let reported = self.attribute_cache.take(thread).filter(|reported| reported.node.inode == inode)?;
        let fresh = self.core.clock.monotonic().since(reported.asked) <= BELIEVED;
        let untouched = self.changes.load(Relaxed) == reported.changes && self.files.find(inode).is_none();
        (fresh && untouched).then_some(reported.node)
    }
}
