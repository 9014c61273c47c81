use crate::{ClientConfig, Counters, Failure, Result};
use std::sync::Arc;
use std::time::Duration;
use varve_types::{Attributes, Errno, InodeId, VolumeSettings};

/// A file or directory as a door shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub inode: InodeId,
    pub attributes: Attributes,
    /// 512-byte blocks, as `st_blocks`.
    pub blocks: u64,
    /// How long the kernel may believe that the name means this inode.
    pub entry_ttl: Duration,
    /// How long the kernel may believe the attributes.
    pub attributes_ttl: Duration,
}

/// A volume that this process works on. Used by many threads at once, through `Arc`.
pub struct FileSystem {
    settings: VolumeSettings,
    embedded: bool,
    counters: Counters,
}

impl FileSystem {
    /// Reads the volume's file, its key and the server's record, and shakes hands with the server.
    pub fn connect(config: ClientConfig) -> Result<Arc<FileSystem>> {
        let _ = config;
        Err(Failure::from(Errno::ENOSYS))
    }

    pub fn settings(&self) -> &VolumeSettings {
        &self.settings
    }

    /// The server is inside this mount and serves it alone: names and attributes may be believed for long.
    pub fn embedded(&self) -> bool {
        self.embedded
    }

    /// How long the kernel may believe that a name does not exist.
    pub fn negative_ttl(&self) -> Duration {
        Duration::ZERO
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
