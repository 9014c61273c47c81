//! Checks whether a shard's table exists. The check runs before SlateDB opens the table, because SlateDB retries a
//! failing store until it works, and creates a new database if it finds none.
//!
//! `varve format` makes each shard's directory and the log's directory in it, and the first open makes a manifest
//! before it makes a log file. So a shard without a manifest is new only if the log's directory is empty. Otherwise it
//! has lost its manifest: it would be opened as an empty shard, without all its names.
//!
//! Once a shard was opened, its log is never empty again. A mark beside the log's directory records the first open,
//! because nothing in the manifest does as long as nothing is in tables. A second mark, outside the shard's directory,
//! covers the case that the whole directory is gone and replaced by an empty one.

use super::error::MissingState;
use super::{TableConfig, TableError};
use crate::log::{DamagedPlace, LogError, first_file, is_begun};
use slatedb::object_store::ObjectStore;
use slatedb::object_store::path::Path;
use slatedb::wal::WalError;
use std::io;
use std::sync::Arc;
use varve_env::disk;

/// Fails if the store does not list the manifests.
pub(super) async fn ask(config: &TableConfig) -> Result<(), TableError> {
    let manifests = Path::from(config.path()).join("manifest");
    match config.store.list_with_delimiter(Some(&manifests)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(TableError::Unavailable { shard: config.shard, action: "open", source: Arc::new(error) }),
    }
}

/// Fails if the shard, which has no manifest, was opened before or does not exist.
pub(super) async fn refuse_unless_new(config: &TableConfig) -> Result<(), TableError> {
    let looked_at = config.clone();
    let looked = tokio::task::spawn_blocking(move || look(&looked_at)).await;
    looked.map_err(|join| TableError::internal(config.shard, format!("cannot check its directory: {join}")))?
}

/// Fails if the shard, which has a manifest, has lost its log.
pub(super) async fn refuse_without_log(config: &TableConfig) -> Result<(), TableError> {
    let looked_at = config.clone();
    let looked = tokio::task::spawn_blocking(move || log_is_lost(&looked_at)).await;
    match looked {
        Ok(Ok(false)) => Ok(()),
        Ok(Ok(true)) => {
            let directory = config.volume.shard_log(config.shard);
            Err(TableError::Damaged {
                shard: config.shard,
                source: Arc::new(MissingState::Log { directory: directory.into() }),
            })
        }
        Ok(Err(error)) => Err(TableError::from_log(config.shard, WalError::from(error))),
        Err(join) => Err(TableError::internal(config.shard, format!("cannot check its log: {join}"))),
    }
}

/// Whether the log of a shard that was opened is completely gone.
fn log_is_lost(config: &TableConfig) -> Result<bool, LogError> {
    match is_begun(&config.volume.shard_log(config.shard)) {
        Ok(true) => Ok(false),
        // An unreadable mark is an error, so it does not make the log count as new.
        Ok(false) => was_opened(config),
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && config.store.is_there() => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// For a salvage: the log as a damaged place, if it is completely gone.
pub(super) fn lost_log(config: &TableConfig) -> Result<Option<DamagedPlace>, LogError> {
    let path = first_file(&config.volume.shard_log(config.shard));
    let reason = "all files of the log are gone".to_owned();
    Ok(log_is_lost(config)?.then_some(DamagedPlace { path: path.into(), offset: None, reason }))
}

/// Makes the marks of an opened shard. Its log has begun durably, and nothing is acknowledged yet. The shard is as safe
/// without the marks, so a store without room does not fail the open.
pub(super) async fn note_opened(config: &TableConfig) {
    let marks = config.volume.shard_marks(config.shard);
    let make = move || {
        marks.iter().filter(|mark| !mark.exists()).try_for_each(|mark| {
            disk::File::options().write(true).create().open(mark)?;
            disk::sync_directory(&mark.parent())
        })
    };
    if let Err(error) = tokio::task::spawn_blocking(make).await.unwrap_or_else(|join| Err(io::Error::other(join))) {
        tracing::warn!(
            shard = config.shard.0, %error,
            "cannot record that the shard was opened; the shard is safe, but a later loss of its log or of the whole \
             shard may go undetected"
        );
    }
}

fn was_opened(config: &TableConfig) -> Result<bool, LogError> {
    for mark in config.volume.shard_marks(config.shard) {
        if mark.try_exists().map_err(LogError::io("look at", &mark))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn look(config: &TableConfig) -> Result<(), TableError> {
    let shard = config.shard;
    let lost = |lost: MissingState| Err(TableError::Damaged { shard, source: Arc::new(lost) });
    let log = config.volume.shard_log(shard);
    match is_begun(&log) {
        Ok(false) => match was_opened(config) {
            Ok(false) => Ok(()),
            Ok(true) => lost(MissingState::All { directory: config.volume.shard(shard).into() }),
            Err(error) => Err(TableError::from_log(shard, WalError::from(error))),
        },
        Ok(true) => lost(MissingState::Manifest { directory: config.volume.shard(shard).into() }),
        // A missing directory is damage if the store is there. If the store is not there, the error is the store's.
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && config.store.is_there() => {
            lost(MissingState::Directory { directory: log.into() })
        }
        Err(error) => Err(TableError::from_log(shard, WalError::from(error))),
    }
}
