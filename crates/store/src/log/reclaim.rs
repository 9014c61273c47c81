//! Removes log files whose groups are all in tables.

use super::config::LogConfig;
use super::directory::{self, EpochFiles};
use super::failure::LogError;
use async_trait::async_trait;
use slatedb::VersionedManifest;
use slatedb::wal::{WalAdmin, WalError, WalFileRange, WalGc};
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk;
use varve_env::store_path::StorePath;

/// SlateDB's garbage collector and administrator of one shard's log.
pub struct LogReclaimer {
    config: LogConfig,
}

impl LogReclaimer {
    pub fn new(config: LogConfig) -> LogReclaimer {
        LogReclaimer { config }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LogConfig) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, WalError> {
        let config = self.config.clone();
        let done = self.config.background.spawn_blocking(move || work(&config)).await;
        Ok(done.map_err(|join| WalError::InternalError(Arc::new(join)))??)
    }
}

#[async_trait]
impl WalGc for LogReclaimer {
    /// Only the range without an end counts, which is the newest manifest's. The others belong to checkpoints, which
    /// the compactor makes to keep tables for readers that began before it replaced them. Varve opens no database at a
    /// checkpoint, so a log is never replayed for one.
    async fn collect(&self, referenced: Vec<WalFileRange>, _min_age: Duration, dry_run: bool) -> Result<(), WalError> {
        let newest = referenced.iter().find(|range| range.1 == Bound::Unbounded).map(|range| range.0);
        let replay_after = match newest {
            // SlateDB includes the last group whose rows are all in tables.
            Some(Bound::Included(id)) => id,
            Some(Bound::Excluded(id)) => id,
            _ => return Ok(()),
        };
        if dry_run {
            return Ok(());
        }
        self.blocking(move |config| reclaim(config, replay_after)).await
    }
}

/// Removes the files that no successor needs when all groups up to `replay_after` are in tables.
pub(super) fn reclaim(config: &LogConfig, replay_after: u64) -> Result<(), LogError> {
    let paths = reclaimable(config, replay_after)?;
    if paths.is_empty() {
        return Ok(());
    }
    keep_the_rest(config, &paths)?;
    paths.iter().try_for_each(remove)
}

/// Makes the file durable with which the newest epoch begins after this. A file that was begun when the one before it
/// was left has neither name nor header on disk until its first sync. A power failure that keeps the removals would
/// leave the epoch without a file.
fn keep_the_rest(config: &LogConfig, removed: &[StorePath]) -> Result<(), LogError> {
    let directory = &config.directory;
    let newest = directory::list(directory)?.pop_last().map(|(_, epoch)| epoch).unwrap_or_default();
    if let Some(first) = newest.files.values().find(|path| !removed.contains(path)) {
        disk::File::open(first).and_then(|file| file.sync_all()).map_err(LogError::io("fsync", first))?;
    }
    disk::sync_directory(directory).map_err(LogError::io("fsync", directory))
}

/// Files that no successor needs when all groups up to `replay_after` are in tables, in the order of removal. Each file
/// precedes the files that remain, so that a crash on the way leaves no gap. The newest epoch keeps its last file:
/// while it exists, unsealed lower epochs do not count.
pub(super) fn reclaimable(config: &LogConfig, replay_after: u64) -> Result<Vec<StorePath>, LogError> {
    let directory = &config.directory;
    let epochs = directory::list(directory)?;
    let Some(newest) = epochs.keys().next_back().copied() else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for (epoch, files) in &epochs {
        if *epoch < newest {
            let ended = match directory::read_seal(directory, *epoch)? {
                Some(seal) => seal.last_group <= replay_after,
                // Written by a late owner, after its epoch was ended and reclaimed.
                None => true,
            };
            if ended {
                paths.extend(files.files.values().cloned());
                paths.push(directory::begun_path(directory, *epoch));
                paths.push(directory::fence_path(directory, *epoch));
                paths.push(directory::seal_path(directory, *epoch));
                continue;
            }
        }
        paths.extend(behind(files, replay_after)?);
    }
    Ok(paths)
}

/// The files of one epoch that are followed only by files with later groups.
fn behind(files: &EpochFiles, replay_after: u64) -> Result<Vec<StorePath>, LogError> {
    let mut paths = Vec::new();
    let mut before: Vec<StorePath> = Vec::new();
    for path in files.files.values() {
        match directory::read_file_header(path)? {
            Ok(header) if header.last_group <= replay_after => paths.append(&mut before),
            Ok(_) => break,
            // A later file that holds only later groups replaces it.
            Err(_) => {}
        }
        before.push(path.clone());
    }
    Ok(paths)
}

pub(super) fn remove(path: &StorePath) -> Result<(), LogError> {
    match disk::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(LogError::io("remove", path)),
    }
}

#[async_trait]
impl WalAdmin for LogReclaimer {
    fn garbage_collector(&self, _path: &slatedb::object_store::path::Path) -> Arc<dyn WalGc> {
        Arc::new(LogReclaimer { config: self.config.clone() })
    }

    async fn delete_wal(
        &self,
        _path: &slatedb::object_store::path::Path,
        dry_run: bool,
    ) -> Result<Vec<String>, WalError> {
        self.blocking(move |config| {
            let mut deleted = Vec::new();
            for (epoch, files) in directory::list(&config.directory)? {
                let marks = [
                    (files.begun, directory::begun_path(&config.directory, epoch)),
                    (files.fenced, directory::fence_path(&config.directory, epoch)),
                    (files.sealed, directory::seal_path(&config.directory, epoch)),
                ];
                let marks = marks.into_iter().filter_map(|(present, path)| present.then_some(path));
                for path in files.files.into_values().chain(marks) {
                    if !dry_run {
                        remove(&path)?;
                    }
                    deleted.push(path.display().to_string());
                }
            }
            Ok(deleted)
        })
        .await
    }

    async fn is_empty(
        &self,
        _path: &slatedb::object_store::path::Path,
        replay_after_wal_id: u64,
        wal_id_last_seen: u64,
    ) -> Result<bool, WalError> {
        // A group with an id holds at least one batch.
        Ok(wal_id_last_seen <= replay_after_wal_id)
    }

    async fn clone_wal(
        &self,
        from_path: &slatedb::object_store::path::Path,
        _from_manifest: VersionedManifest,
        to_path: &slatedb::object_store::path::Path,
    ) -> Result<(u64, u64), WalError> {
        let message = format!("cannot copy the log of {from_path} to {to_path}: shards are not cloned");
        Err(WalError::InternalError(Arc::new(io::Error::new(io::ErrorKind::Unsupported, message))))
    }
}
