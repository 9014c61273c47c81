//! Whether a shard's table is there, asked before SlateDB is, which asks a store that fails until it does not, and
//! makes a new database where it finds none.
//!
//! A format makes each shard's directory and the log's in it, and the first opening makes a manifest before it makes a
//! file of the log. So only an empty directory for the log says that a shard without a manifest is new, and was never
//! opened. Any other has lost it: it would be opened as an empty one, and all its names would be missing.

use super::{TableConfig, TableError};
use crate::shards::log::{LogError, is_begun};
use slatedb::object_store::ObjectStore;
use slatedb::object_store::path::Path;
use slatedb::wal::WalError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// What a shard that is not new has lost.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error(
        "{} is not there, which the format made; restore it from a copy of the store, or, to go on without what it \
         held, make it, empty, and run `varve fsck --repair`", directory.display()
    )]
    Directory { directory: PathBuf },
    #[error(
        "there is no manifest in {}, and its log was begun; restore it from a copy of the store, or save what is left \
         with `varve fsck --repair`", directory.display()
    )]
    Manifest { directory: PathBuf },
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

fn look(config: &TableConfig) -> Result<(), TableError> {
    let shard = config.shard;
    let lost = |lost: Lost| Err(TableError::Damaged { shard, source: Arc::new(lost) });
    let log = config.volume.shard_log(shard);
    match is_begun(&log) {
        Ok(false) => Ok(()),
        Ok(true) => lost(Lost::Manifest { directory: config.volume.shard(shard) }),
        // Its own absence is damage where the store is there, and no more than that of the store where it is not.
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && config.store.is_there() => {
            lost(Lost::Directory { directory: log })
        }
        Err(error) => Err(TableError::from_log(shard, WalError::from(error))),
    }
}
