//! The threads on which tables are looked after, for all shards of a server.

use std::io;
use tokio::runtime::{Builder, Runtime};
use varve_env::clock::{Clock, Instant};
use varve_env::priority::give_way;

/// Threads that flush tables: as many as may wait for the store without holding each other up; they compete with the
/// workers for processors, so not more. As many again merge tables.
const THREADS: usize = 2;

/// Where tables are flushed and collected; and where they are merged, by threads that give way to all others, for nobody
/// waits for a merge.
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

    /// Waits until `end` for what blocks there.
    pub fn stop(self, clock: &dyn Clock, end: Instant) {
        self.merges.shutdown_timeout(end.since(clock.monotonic()));
        self.tables.shutdown_timeout(end.since(clock.monotonic()));
    }

    /// Leaves what blocks there to itself.
    pub fn abandon(self) {
        self.merges.shutdown_background();
        self.tables.shutdown_background();
    }
}
