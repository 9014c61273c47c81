//! Removing what nobody needs any more: log files soon after their content is in tables, replaced tables and manifests
//! when no cursor can be reading them. After an opening, and only after something has changed; an idle shard makes no garbage.

use super::TableConfig;
use super::settings::COLLECTION_AGE_MIN;
use std::time::Duration;
use tokio::time::Instant;

/// The log of a busy shard is looked at this often.
const LOG_WAIT: Duration = Duration::from_secs(10);
/// That of an opened one sooner: a server that is killed every few seconds would never come to it.
const LOG_WAIT_OPENED: Duration = Duration::from_secs(1);
/// What became garbage just after a collection was planned waits for the next one.
const FILES_WAIT: Duration = COLLECTION_AGE_MIN.saturating_add(Duration::from_secs(10));

pub(super) struct Collection {
    config: TableConfig,
    /// The newest manifest that was seen; none has the number 0.
    manifest: u64,
    log_due: Option<Instant>,
    files_due: Option<Instant>,
}

impl Collection {
    pub(super) fn new(config: &TableConfig) -> Collection {
        Collection { config: config.clone(), manifest: 0, log_due: None, files_due: None }
    }

    /// Collects what is due. Returns when to be called again, if not only after a change. Failures are SlateDB's to
    /// log: what is not collected now is at the next turn.
    pub(super) async fn round(&mut self, manifest: u64, now: Instant) -> Option<Instant> {
        if self.manifest != manifest {
            let log_wait = if self.manifest == 0 { LOG_WAIT_OPENED } else { LOG_WAIT };
            self.manifest = manifest;
            self.log_due.get_or_insert(now + log_wait);
            self.files_due.get_or_insert(now + FILES_WAIT);
        }
        if self.log_due.take_if(|due| *due <= now).is_some() {
            self.config.log_collector().build().run_gc_once().await;
        }
        if self.files_due.take_if(|due| *due <= now).is_some() {
            self.config.file_collector().build().run_gc_once().await;
        }
        self.log_due.into_iter().chain(self.files_due).min()
    }
}
