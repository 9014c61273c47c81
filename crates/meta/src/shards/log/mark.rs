//! The mark of an epoch: it has a file, and its stream was fsynced up to a position.
//!
//! The position is written after each fsync and never fsynced itself. So it never says too much; when the process dies
//! it is exact, and when the power fails it may be an older one, or none. Nothing else says of the last groups of a log
//! that they were there.

use super::LogConfig;
use super::directory;
use super::failure::LogError;
use super::format::{MARK_BYTES, SyncedMark};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use varve_env::disk::{self, File};
use varve_env::store_path::StorePath;

/// The mark of the epoch that is written.
pub(super) struct Mark {
    shard: u16,
    epoch: u64,
    path: StorePath,
    file: File,
    warned: AtomicBool,
}

impl Mark {
    /// After the epoch's first file, which is durable, and before anything is appended to it: see [`directory::gone`].
    /// Nobody else makes the mark of this epoch, and a file that holds nothing is whole as soon as it has its name.
    pub(super) fn begin(config: &LogConfig, epoch: u64) -> Result<Mark, LogError> {
        let path = directory::begun_path(&config.directory, epoch);
        let file = File::options().write(true).create().open(&path).map_err(LogError::io("create", &path))?;
        disk::sync_directory(&config.directory).map_err(LogError::io("fsync", &config.directory))?;
        Ok(Mark { shard: config.shard.0, epoch, path, file, warned: AtomicBool::new(false) })
    }

    /// Everything below `synced` is fsynced, and was before a successor looked. Without the mark it is as safe, so that
    /// a failure is no reason to fail who waits for that.
    pub(super) fn note(&self, synced: u64) {
        let mark = SyncedMark { shard: self.shard, epoch: self.epoch, synced };
        if let Err(error) = self.file.write_all_at(&mark.encode(), 0)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                file = %self.path.display(), %error,
                "cannot note how far the log is fsynced; that is safe, but if something cuts the log it may not be seen"
            );
        }
    }
}

/// How far the epoch's stream was fsynced at least; 0 where its mark does not say that. To be read before the stream
/// is, which may still grow.
pub(super) fn synced(shard: u16, directory: &StorePath, epoch: u64) -> u64 {
    let path = directory::begun_path(directory, epoch);
    let mut bytes = Vec::with_capacity(MARK_BYTES);
    let read = path.open().and_then(|file| file.take(MARK_BYTES as u64).read_to_end(&mut bytes));
    if let Err(error) = read
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "cannot read how far the log was fsynced; it is read without that");
    }
    match SyncedMark::decode(&bytes) {
        Ok(mark) if (mark.shard, mark.epoch) == (shard, epoch) => mark.synced,
        // After a loss of power, or of an earlier build.
        _ => 0,
    }
}
