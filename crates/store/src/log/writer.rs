//! The log's interfaces to SlateDB.

use super::open_log::Log;
use super::sync::drive;
use async_trait::async_trait;
use futures::FutureExt;
use slatedb::RowEntry;
use slatedb::wal::{WalError, WalEvent, WalFlushResult, WalObserver, WalStatus, WalStatusListener, WalWriter};
use std::sync::Arc;

/// The part of the log that SlateDB's writer task owns.
pub(super) struct LogWriter {
    log: Arc<Log>,
}

impl LogWriter {
    pub(super) fn start(log: Arc<Log>) -> LogWriter {
        let background = log.config.background.clone();
        background.spawn(drive(log.clone()));
        LogWriter { log }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.log.demand.lock().close = true;
        self.log.wake.notify_one();
    }
}

#[async_trait]
impl WalWriter for LogWriter {
    /// The rows are in the log already: SlateDB gets them only afterwards.
    async fn append(&mut self, write_batch: &[RowEntry]) -> Result<(), WalError> {
        let log = &self.log;
        let (applied, status) = {
            let mut state = log.state.lock();
            if let Some(failure) = state.failure() {
                return Err(failure.clone());
            }
            (write_batch.first().and_then(|row| state.apply(row.seq)), state.status())
        };
        match (applied, status) {
            (None, _) => Err(WalError::InternalError(Arc::new(std::io::Error::other(
                "rows were written to the table without passing through its log",
            )))),
            (Some(true), Ok(status)) => {
                log.notify(WalEvent::WalFlushed(status));
                Ok(())
            }
            (Some(_), _) => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<WalFlushResult, WalError> {
        let ((target, wal_id), synced) = {
            let state = self.log.state.lock();
            if let Some(failure) = state.failure() {
                return Err(failure.clone());
            }
            (state.applied(), state.synced())
        };
        if synced < target {
            self.log.demand_sync();
        }
        let log = self.log.clone();
        Ok(WalFlushResult { wal_id, completion: async move { log.wait_until_synced(target).await }.boxed() })
    }

    fn should_flush_memtable(&self, replay_after_wal_id: u64) -> bool {
        let full = self.log.counted(|state| state.should_flush(&self.log.config, replay_after_wal_id));
        if full {
            // The table enters the manifest only when its rows are fsynced in the log.
            self.log.demand_sync();
        }
        full
    }

    fn observer(&self) -> Box<dyn WalObserver> {
        Box::new(LogObserver { log: self.log.clone() })
    }

    fn status(&self) -> Result<WalStatus, WalStatus> {
        self.log.status()
    }

    async fn close(&mut self) -> Result<(), WalError> {
        let synced = self.log.sync().await;
        self.log.fail(WalError::Closed);
        self.log.demand.lock().close = true;
        self.log.wake.notify_one();
        match synced {
            // The log was closed or failed before, which was reported then.
            Err(WalError::Closed) => Ok(()),
            other => other,
        }
    }
}

struct LogObserver {
    log: Arc<Log>,
}

impl WalObserver for LogObserver {
    fn status(&self) -> Result<WalStatus, WalStatus> {
        self.log.status()
    }

    fn subscribe(&self, listener: WalStatusListener) -> Result<(), WalError> {
        self.log.listeners.lock().push(listener);
        Ok(())
    }
}
