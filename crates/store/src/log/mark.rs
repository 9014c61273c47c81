//! The mark of an epoch. It records that the epoch has a file, and the position up to which its stream was fsynced.
//!
//! The position is written after each fsync and never fsynced itself, so it is never too high. After the death of the
//! process it is exact; after a power failure it may be an older one, or missing. No other record shows that the last
//! groups of a log existed.

use super::config::LogConfig;
use super::directory;
use super::failure::LogError;
use super::format::{MARK_BYTES, SyncedMark};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use varve_env::disk::{self, File};
use varve_env::store_path::StorePath;

/// The mark of the epoch being written.
pub(super) struct Mark {
    shard: u16,
    epoch: u64,
    path: StorePath,
    file: File,
    warned: AtomicBool,
}

impl Mark {
    /// Called after the epoch's first file is durable and before anything is appended to it: see [`directory::gone`].
    /// No other process makes the mark of this epoch, and an empty file is complete as soon as it has its name.
    pub(super) fn begin(config: &LogConfig, epoch: u64) -> Result<Mark, LogError> {
        let path = directory::begun_path(&config.directory, epoch);
        let file = File::options().write(true).create().open(&path).map_err(LogError::io("create", &path))?;
        disk::sync_directory(&config.directory).map_err(LogError::io("fsync", &config.directory))?;
        Ok(Mark { shard: config.shard.0, epoch, path, file, warned: AtomicBool::new(false) })
    }

    pub(super) fn path(&self) -> &StorePath {
        &self.path
    }

    /// Records that everything below `synced` was fsynced before a successor checked. The bytes are as safe without the
    /// mark, so a failure here does not fail the callers that wait for the sync.
    pub(super) fn note(&self, synced: u64) {
        let mark = SyncedMark { shard: self.shard, epoch: self.epoch, synced };
        if let Err(error) = self.file.write_all_at(&mark.encode(), 0)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                file = %self.path.display(), %error,
                "cannot record how far the log is fsynced; the log is safe, but a later truncation may go undetected"
            );
        }
    }
}

/// The position up to which the epoch's stream was fsynced at least; 0 if its mark does not record one. Must be read
/// before the stream, which may still grow.
pub(super) fn synced(shard: u16, directory: &StorePath, epoch: u64) -> u64 {
    let path = directory::begun_path(directory, epoch);
    let mut bytes = Vec::with_capacity(MARK_BYTES);
    let read = path.open().and_then(|file| file.take(MARK_BYTES as u64).read_to_end(&mut bytes));
    if let Err(error) = read
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(
            file = %path.display(), %error,
            "cannot read how far the log was fsynced; reading the log without that mark"
        );
    }
    match SyncedMark::decode(&bytes) {
        Ok(mark) if (mark.shard, mark.epoch) == (shard, epoch) => mark.synced,
        // After a power failure, or written by an earlier build.
        _ => 0,
    }
}
