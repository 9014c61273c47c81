//! Whether a shard's table is there, asked before SlateDB is, which asks a store that fails until it does not, and
//! makes a new database where it finds none.
//!
//! A format makes each shard's directory and the log's in it, and the first opening makes a manifest before it makes a
//! file of the log. So only an empty directory for the log says that a shard without a manifest is new, and was never
//! opened. Any other has lost it: it would be opened as an empty one, and all its names would be missing.
//!
//! Once a shard was opened its log is never empty again. A mark beside the log's directory says that it was, for nothing in the
//! manifest does, as long as nothing is in tables; and one outside the shard's directory says so when all of that is gone, and
//! an empty one in its place.

use super::{TableConfig, TableError};
use crate::shards::log::{DamagedPlace, LogError, first_file, is_begun};
use slatedb::object_store::ObjectStore;
use slatedb::object_store::path::Path;
use slatedb::wal::WalError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use varve_env::disk;

/// What a shard that is not new has lost.
#[derive(Debug, thiserror::Error)]
pub enum MissingState {
    #[error(
        "{} is not there, which the format made; restore it from a copy of the store, or go on without what it held \
         by `varve fsck --repair`", directory.display()
    )]
    Directory { directory: PathBuf },
    #[error(
        "there is no manifest in {}, and its log was begun; restore it from a copy of the store, or save what is left \
         with `varve fsck --repair`", directory.display()
    )]
    Manifest { directory: PathBuf },
    #[error(
        "what was in {} is gone: the shard was opened before; restore the directory from a copy of the store, or go on without \
         what it held by `varve fsck --repair`", directory.display()
    )]
    All { directory: PathBuf },
    #[error(
        "the log in {} is gone, which was begun when the shard was first opened; acknowledged changes that it alone held \
         are lost. Restore the directory from a copy of the store, or go on with what the tables hold by \
         `varve fsck --repair`", directory.display()
    )]
    Log { directory: PathBuf },
}

/// An error if the store does not say which manifests there are.
pub(super) async fn ask(config: &TableConfig) -> Result<(), TableError> {
    let manifests = Path::from(config.path()).join("manifest");
    match config.store.list_with_delimiter(Some(&manifests)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(TableError::Unavailable { shard: config.shard, action: "open", source: Arc::new(error) }),
    }
}

/// An error if the shard, which has no manifest, was opened before, or is not there.
pub(super) async fn refuse_unless_new(config: &TableConfig) -> Result<(), TableError> {
    let looked_at = config.clone();
    let looked = tokio::task::spawn_blocking(move || look(&looked_at)).await;
    looked.map_err(|join| TableError::internal(config.shard, format!("its directory was not looked at: {join}")))?
}

/// An error if the shard, which has a manifest, has lost its log.
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
        Err(join) => Err(TableError::internal(config.shard, format!("its log was not looked at: {join}"))),
    }
}

/// Whether nothing is left of the log of a shard that was opened.
fn log_is_lost(config: &TableConfig) -> Result<bool, LogError> {
    match is_begun(&config.volume.shard_log(config.shard)) {
        Ok(true) => Ok(false),
        // Nobody takes it for a new one because its mark cannot be looked at.
        Ok(false) => was_opened(config),
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && config.store.is_there() => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// For a salvage: the log as a place that is damaged, if nothing is left of it.
pub(super) fn lost_log(config: &TableConfig) -> Result<Option<DamagedPlace>, LogError> {
    let path = first_file(&config.volume.shard_log(config.shard));
    let reason = "all files of the log are gone".to_owned();
    Ok(log_is_lost(config)?.then_some(DamagedPlace { path: path.into(), offset: None, reason }))
}

/// Its log has begun, durably, and nothing is acknowledged yet. Without the marks it is as safe, so that a store without room is
/// no reason to fail.
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
            "cannot note that the shard was opened; that is safe, but if something takes its whole log, or all of it, that may \
             not be seen"
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
        // Its own absence is damage where the store is there, and no more than that of the store where it is not.
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && config.store.is_there() => {
            lost(MissingState::Directory { directory: log.into() })
        }
        Err(error) => Err(TableError::from_log(shard, WalError::from(error))),
    }
}
