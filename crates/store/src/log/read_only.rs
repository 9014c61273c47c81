//! Read-only view of a log without an owner, as its next owner would read it. It does not end the log and writes
//! nothing.

use super::config::LogConfig;
use super::directory;
use super::failure::LogError;
use super::recovery::{Claim, last_group, measure, refuse_if_gone, segments};
use super::replay::{LogReplay, Segment};
use async_trait::async_trait;
use slatedb::wal::{WalError, WalFileRange, WalIterator, WalReader};
use std::ops::Bound;

/// The log's content beyond the tables: the sealed epochs and, if the highest epoch is not sealed, its intact part.
pub struct ReadOnlyLog {
    shard: u16,
    segments: Vec<Segment>,
    last_group: u64,
}

impl ReadOnlyLog {
    /// `replay_after`: the last group whose rows are all in tables. `flushed`: the last group that is fsynced according
    /// to the manifest. Blocks.
    pub fn open(config: &LogConfig, replay_after: u64, flushed: u64) -> Result<ReadOnlyLog, LogError> {
        let epochs = directory::list(&config.directory)?;
        let claim = Claim { epoch: 0, replay_after, flushed };
        refuse_if_gone(config, &epochs, claim)?;
        let shard = config.shard.0;
        let unpublished = match epochs.iter().next_back() {
            Some((epoch, files)) if !files.sealed => {
                Some(measure(shard, &config.directory, *epoch, files, replay_after)?)
            }
            _ => None,
        };
        let segments = segments(config, &epochs, claim, unpublished)?;
        let last_group = last_group(config, &segments, claim)?;
        Ok(ReadOnlyLog { shard, segments, last_group })
    }
}

#[async_trait]
impl WalReader for ReadOnlyLog {
    async fn iterator(&self, range: WalFileRange) -> Result<Box<dyn WalIterator>, WalError> {
        let after = match range.0 {
            Bound::Included(id) => id.saturating_sub(1),
            Bound::Excluded(id) => id,
            Bound::Unbounded => 0,
        };
        Ok(Box::new(LogReplay::new(self.shard, self.segments.clone(), after)))
    }

    async fn last_wal_file_id(&self, replay_after_wal_id: u64) -> Result<u64, WalError> {
        Ok(self.last_group.max(replay_after_wal_id))
    }
}
