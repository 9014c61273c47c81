//! Attributes that the kernel was told with a name and is about to ask for again.
//!
//! Where the kernel may not believe the attributes of files, stat(2) is two requests of one thread: it looks the name
//! up, and then asks for what it was just told. The second is answered from the first: the call had begun before.
//!
//! Which call a request belongs to is not said. So an answer is given once, to the thread that looked the name up, only
//! as long as a call takes at most, and never of a file that this client has open or has had open meanwhile: of what it
//! does itself, and of what fstat(2) asks for, nothing old is shown. Of directories nothing is remembered here: they are
//! leased, and what makes a name in them is not among the changes that are counted.

use crate::async_ops::waiting;
use crate::{FileSystem, NodeInfo, Operation, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::{Credentials, FileKind, InodeId, Name};

/// Enough that the threads of a mount seldom meet at one lock.
const STRIPES: usize = 16;

/// Threads remembered of one stripe; when there are more, all are forgotten, which costs a question each.
const THREADS_PER_STRIPE_MAX: usize = 64;

/// How long an answer is kept for its thread.
const BELIEVED: Duration = Duration::from_millis(10);

/// What a thread was told.
struct CachedReply {
    node: NodeInfo,
    asked: Instant,
    /// [`FileSystem::changes`] then.
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
    /// [`FileSystem::lookup`] for a thread of the kernel's that may ask for the attributes next.
    pub async fn lookup_by(&self, thread: u32, caller: &Credentials, parent: InodeId, name: &Name) -> Result<NodeInfo> {
        if self.has_missed(thread) {
            // It may open the file's backing file.
            return Box::pin(waiting(self.lookup_pinned(caller, parent, name))).await;
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
