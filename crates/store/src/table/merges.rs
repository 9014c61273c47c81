//! The runtime for merges, and the limit on shards that merge in parallel. A directory over all shards makes all of
//! them need a merge at the same time, and each merge takes some MiB of memory for every table it reads and for the one
//! it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Shards that merge in parallel: enough that, while some wait for the store or for their next poll, others use the
/// idle processors.
const PLACES: usize = 4;

/// Shared by all tables of a process.
#[derive(Clone)]
pub struct Merges {
    runtime: Handle,
    places: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Merges {
    /// `runtime`: a multi-threaded one with timers, preferably with threads of lower priority than those that serve
    /// clients.
    pub fn on(runtime: Handle) -> Merges {
        Merges { runtime, places: Arc::new(Semaphore::new(PLACES)), waiting: Arc::default() }
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether a shard waits for a permit.
    pub(super) fn are_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for a permit, in order of arrival. Dropping the permit releases it.
    pub(super) async fn place(&self) -> OwnedSemaphorePermit {
        let _waiting = MergeWaiter::begin(&self.waiting);
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.expect("nobody closes the semaphore of places")
    }
}

/// Counts a waiting shard for its lifetime, also when the wait is cancelled.
struct MergeWaiter<'a>(&'a AtomicUsize);

impl<'a> MergeWaiter<'a> {
    fn begin(count: &'a AtomicUsize) -> MergeWaiter<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        MergeWaiter(count)
    }
}

impl Drop for MergeWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
