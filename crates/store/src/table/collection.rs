//! Garbage collection: removes log files soon after their content is in tables, and replaced tables and manifests when
//! no cursor can still read them. It runs after an open, and only after a change; an idle shard makes no garbage.
//!
//! Only the shard's owner collects. Each collection first looks for a successor in the store: a process that was
//! stopped for hours would otherwise remove files, by its own view of what is garbage.

use super::TableConfig;
use super::settings::COLLECTION_AGE_MIN;
use crate::log::{Log, is_owner};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Delay of the log collection of a busy shard.
const LOG_WAIT: Duration = Duration::from_secs(10);
/// The delay on a store that is short of space, and how often that is looked at.
const LOG_WAIT_SHORT: Duration = Duration::from_secs(1);
/// The delay after an open. It is shorter, because a server that is killed every few seconds would never collect
/// otherwise.
const LOG_WAIT_OPENED: Duration = Duration::from_secs(1);
/// Garbage made just after a collection was planned waits for the next one.
const FILES_WAIT: Duration = COLLECTION_AGE_MIN.saturating_add(Duration::from_secs(10));

/// Pause after a look that found no owner: the log has ended, or the store gives no answer.
const OWNER_UNKNOWN_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Collection {
    config: TableConfig,
    /// The number of the newest manifest seen; no manifest has the number 0.
    manifest: u64,
    log_due: Option<Instant>,
    files_due: Option<Instant>,
}

impl Collection {
    pub(super) fn new(config: &TableConfig) -> Collection {
        Collection { config: config.clone(), manifest: 0, log_due: None, files_due: None }
    }

    /// Collects the garbage that is due. Returns when to call it again; `None`: only after a change. SlateDB logs
    /// failures. The next round retries them.
    pub(super) async fn round(&mut self, log: &Arc<Log>, manifest: u64, now: Instant) -> Option<Instant> {
        if self.manifest != manifest {
            let log_wait = if self.manifest == 0 { LOG_WAIT_OPENED } else { LOG_WAIT };
            self.manifest = manifest;
            self.log_due.get_or_insert(now + log_wait);
            self.files_due.get_or_insert(now + FILES_WAIT);
        }
        let short = self.config.store.reserve().is_some_and(|reserve| reserve.is_short());
        if short && let Some(due) = &mut self.log_due {
            *due = (*due).min(now);
        }
        let is_due = |due: &Option<Instant>| due.is_some_and(|due| due <= now);
        if (is_due(&self.log_due) || is_due(&self.files_due)) && !is_owner(log).await {
            return Some(now + OWNER_UNKNOWN_WAIT);
        }
        if self.log_due.take_if(|due| *due <= now).is_some() {
            self.config.log_collector().build().run_gc_once().await;
        }
        if self.files_due.take_if(|due| *due <= now).is_some() {
            self.config.file_collector().build().run_gc_once().await;
        }
        let look = self.log_due.map(|due| due.min(now + LOG_WAIT_SHORT));
        look.into_iter().chain(self.files_due).min()
    }
}
