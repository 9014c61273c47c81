use crate::{FileSystem, Result};
use varve_types::{Errno, ShardId};
use varve_wire::ShardStatus;

/// What statfs(2) shows: the store's space and files, for the volume lives in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Bytes that one of the blocks below counts.
    pub block_bytes: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    /// To those who are not root.
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_bytes_max: u32,
}

impl FileSystem {
    pub async fn statistics(&self) -> Result<VolumeStatistics> {
        Err(Errno::ENOSYS.into())
    }

    /// Returns when everything acknowledged before is on disk.
    pub async fn sync(&self) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }

    pub async fn shard_status(&self, shard: ShardId) -> Result<ShardStatus> {
        let _ = shard;
        Err(Errno::ENOSYS.into())
    }

    /// One round trip to the owner of `shard` with `payload`: measures the transport.
    pub async fn ping(&self, shard: ShardId, payload: &[u8]) -> Result<()> {
        let _ = (shard, payload);
        Err(Errno::ENOSYS.into())
    }

    /// Writes back, syncs and ends the session. Handles that are still open are closed.
    pub async fn shutdown(&self) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
}
