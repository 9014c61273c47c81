//! Where the servers of a volume find each other: in its store, or in an etcd cluster.

use crate::etcd::{EtcdAddress, EtcdRegistry, EtcdUrlError};
use crate::registry::{Registry, RegistryError};
use crate::store_registry::StoreRegistry;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeId;

/// `store`, or the address of an etcd cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistryAddress {
    #[default]
    Store,
    Etcd(EtcdAddress),
}

impl RegistryAddress {
    /// Opens the registry of `volume`, whose id is `id`.
    pub fn open(&self, volume: &VolumeDir, id: VolumeId) -> Result<Arc<dyn Registry>, RegistryError> {
        match self {
            RegistryAddress::Store => {
                let name = volume.root().display().to_string();
                // The primitive that the volume uses for its tables, which are in the same store.
                let store = match volume.exclusive() {
                    Some(exclusive) => PosixStore::with_exclusive(volume.at_root(), exclusive),
                    None => PosixStore::open(volume.at_root()).map_err(|error| RegistryError::Unavailable {
                        registry: name.clone(),
                        reason: error.to_string(),
                    })?,
                };
                Ok(Arc::new(StoreRegistry::new(Arc::new(store), name)))
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
