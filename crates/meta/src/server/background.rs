//! The background threads that maintain the tables of all shards of a server.

use std::io;
use tokio::runtime::{Builder, Runtime};
use varve_env::clock::{Clock, Instant};
use varve_env::priority::give_way;

/// Threads that flush tables: enough that one waiting for the store does not delay the other, and no more, because they
/// compete with the workers for processors. As many again merge tables.
const THREADS: usize = 2;

/// `tables` flushes and collects tables, and runs the timers of the workers. `merges` merges them on threads of lower priority, because nothing waits for a
/// merge.
pub(super) struct BackgroundRuntimes {
    pub tables: Runtime,
    pub merges: Runtime,
}

impl BackgroundRuntimes {
    pub fn start() -> io::Result<BackgroundRuntimes> {
        let threads = |name| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(THREADS).thread_name(name).enable_all();
            builder
        };
        Ok(BackgroundRuntimes {
            tables: threads("varve-background").build()?,
            merges: threads("varve-merges").on_thread_start(give_way).build()?,
        })
    }

    /// Waits until `end` for blocking work on these threads.
    pub fn stop(self, clock: &dyn Clock, end: Instant) {
        self.merges.shutdown_timeout(end.since(clock.monotonic()));
        self.tables.shutdown_timeout(end.since(clock.monotonic()));
    }

    /// Leaves workers that have not stopped the timers that they wait for. Does not wait for blocking work.
    pub fn abandon(self) {
        self.merges.shutdown_background();
        std::mem::forget(self.tables);
    }
}
