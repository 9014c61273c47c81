//! Where tables are merged, and how many shards may merge at once. A directory over all shards makes all of them need it at
//! the same time, and each merge holds some MiB of every table it reads and of the one it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Shards that merge at once: enough that while some wait for the store, or for their next look, others use the
/// processors that nobody else wants.
const PLACES: usize = 4;

/// Shared by all tables of a process.
#[derive(Clone)]
pub struct Merges {
    runtime: Handle,
    places: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Merges {
    /// `runtime`: a multi-threaded one with timers, best with threads that give way to those that clients wait for.
    pub fn on(runtime: Handle) -> Merges {
        Merges { runtime, places: Arc::new(Semaphore::new(PLACES)), waiting: Arc::default() }
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether a shard waits for a place.
    pub(super) fn are_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for a place, after those who came before; it is free again when what this returns is dropped.
    pub(super) async fn place(&self) -> OwnedSemaphorePermit {
        let _waiting = MergeWaiter::begin(&self.waiting);
        let place = Arc::clone(&self.places).acquire_owned().await;
        place.expect("nobody closes the semaphore of places")
    }
}

/// Counted as long as it lives, also when the wait is given up.
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
