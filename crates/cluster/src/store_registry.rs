//! A registry in the store itself, by creates that fail if the name exists:
//!
//! ```text
//! cluster/map/<version>           the shard map
//! cluster/beat/<server>/<number>  a renewal, or a kill
//! ```
//!
//! A number is taken by the server whose object has its name. Three things need care:
//!
//! - **A repeated create.** A network file system may send one create twice and report that the name exists, and a server
//!   repeats a create whose answer was lost. So the content decides whose a number is: what the server itself would have
//!   written is its own.
//! - **A full store.** A renewal is a second name for the renewal before it, a hard link, which needs no space. So servers keep
//!   their leases on a full store, and what clients remove frees space. Maps and kills need space: that of the volume's
//!   reserve.
//! - **A late create.** Old objects are removed. A server that was stopped for long could then create a number anew
//!   whose successors exist. So a create counts only if a listing that began after it shows no later number.

use crate::map::{ClusterMap, ServerId};
use crate::registry::{
    Beat, KillReason, Pulse, RENEWAL, Registry, RegistryError, Taken, check_not_lost, decode_map, encode_map,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{CopyMode, CopyOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk;
use varve_env::store_path::StorePath;

/// How often a server that waits for a change of the map lists its versions.
const MAP_LOOKED_AT_EVERY: Duration = Duration::from_millis(100);

/// How many old numbers of a chain stay. A reader that has listed a chain reads its newest object, and finds it.
const MAPS_KEPT: u64 = 100;
const BEATS_KEPT: u64 = 8;

/// The longest object that is read, in bytes: a map with 4,096 shards and a thousand members.
const OBJECT_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Debug)]
pub struct StoreRegistry {
    store: Arc<dyn ObjectStore>,
    /// The directory of the registry, if the store is one of files: there, removed objects leave empty directories.
    directory: Option<StorePath>,
    /// The last renewal that this process has made, for the next one.
    renewed: Arc<Mutex<Option<(ServerId, Beat)>>>,
    /// For messages.
    name: String,
}

impl StoreRegistry {
    /// `store`: the root of the volume's store, with creates that have one winner. `name`: its path, for messages.
    pub fn new(store: Arc<dyn ObjectStore>, name: impl Into<String>) -> StoreRegistry {
        StoreRegistry { store, directory: None, renewed: Arc::default(), name: name.into() }
    }

    /// Removes empty directories below `directory`, that of the registry.
    pub fn in_directory(self, directory: StorePath) -> StoreRegistry {
        StoreRegistry { directory: Some(directory), ..self }
    }

    /// Removes the directory of a chain without objects. A server that creates an object there meanwhile has a temporary file
    /// in it first, or makes it again.
    fn remove_directory(&self, server: ServerId) {
        let Some(directory) = &self.directory else { return };
        let chain = directory.join(format!("beat/{server}"));
        match disk::remove_empty_directory(&chain) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::debug!("cannot remove {chain}: {error}"),
            _ => {}
        }
    }

    /// The numbers in a chain, in ascending order.
    async fn numbers(&self, chain: &Path) -> Result<Vec<u64>, RegistryError> {
        let listed: Vec<_> = self.store.list(Some(chain)).try_collect().await.map_err(|error| self.failed(&error))?;
        let number = |object: &object_store::ObjectMeta| object.location.filename().and_then(|name| name.parse().ok());
        let mut numbers: Vec<u64> = listed.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The content of a number's object. `None`: the object was removed.
    async fn read(&self, chain: &Path, number: u64) -> Result<Option<Bytes>, RegistryError> {
        let got = match self.store.get(&at(chain, number)).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            got => got.map_err(|error| self.failed(&error))?,
        };
        if got.meta.size > OBJECT_BYTES_MAX {
            return Err(self.unreadable(&at(chain, number), format!("it has {} bytes", got.meta.size)));
        }
        got.bytes().await.map(Some).map_err(|error| self.failed(&error))
    }

    /// Takes a number, with `content`, and removes numbers that are `kept` or more before it.
    async fn take(&self, chain: &Path, number: u64, content: &[u8], kept: u64) -> Result<Taken, RegistryError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let object = PutPayload::from_bytes(Bytes::copy_from_slice(content));
        match self.store.put_opts(&at(chain, number), object, options).await {
            Ok(_) => self.confirm(chain, number, kept).await,
            Err(object_store::Error::AlreadyExists { .. }) => self.confirm_if(chain, number, content, kept).await,
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// As [`StoreRegistry::take`] with the content of the number before, which is this server's. Needs no space.
    async fn take_again(&self, chain: &Path, number: u64, content: &[u8], kept: u64) -> Result<Taken, RegistryError> {
        let options = CopyOptions::new().with_mode(CopyMode::Create);
        match self.store.copy_opts(&at(chain, number - 1), &at(chain, number), options).await {
            Ok(()) => self.confirm(chain, number, kept).await,
            Err(object_store::Error::AlreadyExists { .. }) => self.confirm_if(chain, number, content, kept).await,
            // Somebody removed the chain, or ended it by a kill.
            Err(object_store::Error::NotFound { .. }) => match self.read(chain, number).await? {
                Some(found) if found == content => self.confirm(chain, number, kept).await,
                _ => Ok(Taken::Others),
            },
            // The store has no hard links.
            Err(_) => self.take(chain, number, content, kept).await,
        }
    }

    /// The number is taken: by this server, if the object has `content`.
    async fn confirm_if(&self, chain: &Path, number: u64, content: &[u8], kept: u64) -> Result<Taken, RegistryError> {
        match self.read(chain, number).await?.is_some_and(|found| found == content) {
            true => self.confirm(chain, number, kept).await,
            false => Ok(Taken::Others),
        }
    }

    /// The object of the number is this server's. It counts if there is no later one. Removes old ones.
    async fn confirm(&self, chain: &Path, number: u64, kept: u64) -> Result<Taken, RegistryError> {
        let numbers = self.numbers(chain).await?;
        if numbers.last().is_some_and(|last| *last > number) {
            return Ok(Taken::Others);
        }
        for old in numbers.into_iter().take_while(|old| old + kept <= number) {
            if let Err(error) = self.store.delete(&at(chain, old)).await {
                tracing::debug!("cannot remove {}: {error}", at(chain, old));
                break;
            }
        }
        Ok(Taken::Ours)
    }

    async fn newest_map_version(&self) -> Result<Option<u64>, RegistryError> {
        Ok(self.numbers(&maps()).await?.last().copied())
    }

    fn failed(&self, error: &object_store::Error) -> RegistryError {
        let (registry, reason) = (self.name.clone(), error.to_string());
        match error {
            _ if is_of_unwritable_store(error) => RegistryError::Unwritable { registry, reason },
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. } => RegistryError::Refused { registry, reason },
            _ => RegistryError::Unavailable { registry, reason },
        }
    }

    fn unreadable(&self, object: &Path, reason: String) -> RegistryError {
        RegistryError::Unreadable { registry: self.name.clone(), what: object.to_string(), reason }
    }
}

/// Whether the cause is a store that accepts no writes of anybody.
fn is_of_unwritable_store(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(found) = cause {
        let kind = found.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(
            kind,
            Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        ) {
            return true;
        }
        cause = found.source();
    }
    false
}

fn maps() -> Path {
    Path::from("cluster/map")
}

fn beats(server: ServerId) -> Path {
    Path::from(format!("cluster/beat/{server}"))
}

fn at(chain: &Path, number: u64) -> Path {
    chain.clone().join(format!("{number:020}"))
}

#[async_trait]
impl Registry for StoreRegistry {
    async fn newest_map(&self) -> Result<Option<ClusterMap>, RegistryError> {
        loop {
            let Some(version) = self.newest_map_version().await? else { return Ok(None) };
            // Removed between listing and reading: there are much later versions by now.
            let Some(bytes) = self.read(&maps(), version).await? else { continue };
            let unreadable = |reason| self.unreadable(&at(&maps(), version), reason);
            return decode_map(&bytes, version).map(Some).map_err(unreadable);
        }
    }

    async fn later_map(&self, than: u64, wait: Duration) -> Result<Option<ClusterMap>, RegistryError> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let newest = self.newest_map_version().await?;
            check_not_lost(&self.name, than, newest)?;
            if newest.is_some_and(|version| version > than) {
                return self.newest_map().await;
            }
            let now = tokio::time::Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            tokio::time::sleep(MAP_LOOKED_AT_EVERY.min(deadline - now)).await;
        }
    }

    async fn publish(&self, map: &ClusterMap) -> Result<Taken, RegistryError> {
        self.take(&maps(), map.version, &encode_map(map), MAPS_KEPT).await
    }

    async fn renew(&self, server: ServerId, beat: Beat) -> Result<Taken, RegistryError> {
        let chain = beats(server);
        // A number before that is a kill must not be copied.
        let follows = self.renewed.lock().is_some_and(|(renewed, last)| renewed == server && last.next() == beat);
        let taken = match follows {
            true => self.take_again(&chain, beat.0, RENEWAL, BEATS_KEPT).await,
            false => self.take(&chain, beat.0, RENEWAL, BEATS_KEPT).await,
        };
        if let Ok(Taken::Ours) = taken {
            *self.renewed.lock() = Some((server, beat));
        }
        taken
    }

    async fn kill(&self, server: ServerId, beat: Beat, reason: KillReason) -> Result<Taken, RegistryError> {
        self.take(&beats(server), beat.0, reason.record(), BEATS_KEPT).await
    }

    async fn pulse(&self, server: ServerId) -> Result<Pulse, RegistryError> {
        let chain = beats(server);
        loop {
            let Some(newest) = self.numbers(&chain).await?.last().copied() else {
                return Ok(Pulse::Beats(Beat::default()));
            };
            // Removed between listing and reading: there are later numbers by now.
            let Some(content) = self.read(&chain, newest).await? else { continue };
            let unreadable = || self.unreadable(&at(&chain, newest), "it is neither a renewal nor a kill".into());
            return Pulse::decode(&content, Beat(newest)).ok_or_else(unreadable);
        }
    }

    async fn forget(&self, server: ServerId) -> Result<(), RegistryError> {
        let chain = beats(server);
        let killed = self.pulse(server).await?.is_killed();
        let mut numbers = self.numbers(&chain).await?;
        if killed {
            // It keeps a server that wakes up late from renewing.
            numbers.pop();
        }
        for number in numbers {
            match self.store.delete(&at(&chain, number)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        if !killed {
            self.remove_directory(server);
        }
        Ok(())
    }
}
