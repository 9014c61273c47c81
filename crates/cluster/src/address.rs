//! Where the servers of a volume find each other: in its store, or in an etcd cluster.

use crate::etcd::{EtcdAddress, EtcdRegistry, EtcdUrlError};
use crate::registry::{Registry, RegistryError};
use crate::store_registry::StoreRegistry;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use varve_env::posix_store::PosixStore;
use varve_env::reserve::Reserve;
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeId;

/// `store`, or the address of an etcd cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistryAddress {
    #[default]
    Store,
    Etcd(EtcdAddress),
}

/// Why it is not known which registry the servers of a volume use.
#[derive(Debug, thiserror::Error)]
pub enum RegistryChoiceError {
    #[error("cannot tell where the servers of the volume find each other: {0}")]
    Io(#[from] io::Error),
    #[error("{} names no registry: {source}", path.display())]
    Invalid { path: PathBuf, source: EtcdUrlError },
    #[error(
        "the servers of the volume find each other in {recorded} ({}), not in {asked}: leave --registry out, or give that one",
        path.display()
    )]
    Other { recorded: String, asked: String, path: PathBuf },
    #[error(
        "the volume is another user's, who recorded {recorded} in {}: give `--registry {recorded}` if you trust it, with the \
         options that you connect with",
        path.display()
    )]
    OthersChoice { recorded: String, path: PathBuf },
}

impl RegistryAddress {
    /// The registry that the servers of `volume` use, as the first of them recorded it; `asked` is the user's choice. `None`:
    /// none is recorded, so no server has ever joined.
    pub fn of_volume(
        volume: &VolumeDir,
        asked: Option<&RegistryAddress>,
    ) -> Result<Option<RegistryAddress>, RegistryChoiceError> {
        volume.read_registry()?.map(|recorded| RegistryAddress::chosen(volume, &recorded, asked)).transpose()
    }

    /// [`RegistryAddress::of_volume`] for a server that joins: records its choice, or `store`, if it is the first one.
    pub fn of_joining_server(
        volume: &VolumeDir,
        asked: Option<&RegistryAddress>,
    ) -> Result<RegistryAddress, RegistryChoiceError> {
        let first = asked.cloned().unwrap_or_default().to_url();
        RegistryAddress::chosen(volume, &volume.record_registry(&first)?, asked)
    }

    fn chosen(
        volume: &VolumeDir,
        recorded: &str,
        asked: Option<&RegistryAddress>,
    ) -> Result<RegistryAddress, RegistryChoiceError> {
        let path = || volume.registry_file().into();
        let known: RegistryAddress =
            recorded.parse().map_err(|source| RegistryChoiceError::Invalid { path: path(), source })?;
        match asked {
            // Its options name files, which would be read with the rights of this process.
            None if known != RegistryAddress::Store && !volume.is_own_or_roots()? => {
                Err(RegistryChoiceError::OthersChoice { recorded: known.to_string(), path: path() })
            }
            None => Ok(known),
            // Its files for TLS may be elsewhere on this host.
            Some(asked) if asked.to_string() == known.to_string() => Ok(asked.clone()),
            Some(asked) => {
                let (recorded, asked) = (known.to_string(), asked.to_string());
                Err(RegistryChoiceError::Other { recorded, asked, path: path() })
            }
        }
    }

    /// The address with all its options.
    fn to_url(&self) -> String {
        match self {
            RegistryAddress::Store => self.to_string(),
            RegistryAddress::Etcd(address) => address.to_url(),
        }
    }

    /// Opens the registry of `volume`, whose id is `id`.
    pub fn open(&self, volume: &VolumeDir, id: VolumeId) -> Result<Arc<dyn Registry>, RegistryError> {
        match self {
            RegistryAddress::Store => {
                let name = volume.root().display().to_string();
                // The primitive that the volume uses for its tables, which are in the same store.
                let failed =
                    |error: io::Error| RegistryError::Unavailable { registry: name.clone(), reason: error.to_string() };
                let store = match volume.exclusive() {
                    Some(exclusive) => PosixStore::with_exclusive(volume.at_root(), exclusive),
                    None => PosixStore::open(volume.at_root()).map_err(failed)?,
                };
                // A kill or a move must be possible on a full store. A store that was unmounted is not one that lost its maps.
                let store = match Reserve::of(volume.reserve()) {
                    Ok(reserve) => store.with_reserve(Arc::new(reserve)),
                    // A user who may enter the root and not list it can read the maps.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => store,
                    Err(error) => return Err(failed(error)),
                };
                let store = store.with_place(volume.place().cloned());
                Ok(Arc::new(StoreRegistry::new(Arc::new(store), name).in_directory(volume.cluster())))
            }
            RegistryAddress::Etcd(address) => Ok(Arc::new(EtcdRegistry::new(address.clone(), id)?)),
        }
    }
}

impl fmt::Display for RegistryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryAddress::Store => f.write_str("store"),
            RegistryAddress::Etcd(address) => address.fmt(f),
        }
    }
}

impl FromStr for RegistryAddress {
    type Err = EtcdUrlError;

    fn from_str(text: &str) -> Result<RegistryAddress, EtcdUrlError> {
        if text == "store" { Ok(RegistryAddress::Store) } else { text.parse().map(RegistryAddress::Etcd) }
    }
}

#[cfg(test)]
mod tests;
