//! Which worker of a server owns each shard.

use crate::ShardId;
use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The owner of each shard: a number of a worker. Each change raises the version. [`ShardMap::owner`] takes no lock; it
/// may return the owner of one version and for the next shard that of another.
pub struct ShardMap {
    owners: Box<[AtomicU16]>,
    workers: usize,
    version: AtomicU64,
    /// Serialises changes, and copies of the whole map with them.
    changing: Mutex<()>,
}

/// A map that is not one of this server: a wrong number of shards, or an owner that is no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignShardMap;

impl ShardMap {
    /// # Errors
    /// If the map names a worker that is not among `workers`, or no shard.
    pub fn new(version: u64, owners: &[u16], workers: usize) -> Result<ShardMap, ForeignShardMap> {
        if owners.is_empty() || !owners.iter().all(|owner| usize::from(*owner) < workers) {
            return Err(ForeignShardMap);
        }
        let owners = owners.iter().map(|owner| AtomicU16::new(*owner)).collect();
        Ok(ShardMap { owners, workers, version: AtomicU64::new(version), changing: Mutex::default() })
    }

    /// The worker that owns `shard`; `None` if the volume has no such shard.
    pub fn owner(&self, shard: ShardId) -> Option<usize> {
        self.owners.get(usize::from(shard.0)).map(|owner| usize::from(owner.load(Acquire)))
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// The version and all owners of that version.
    pub fn copy(&self) -> (u64, Vec<u16>) {
        let _changing = self.lock();
        (self.version(), self.owners.iter().map(|owner| owner.load(Acquire)).collect())
    }

    /// Makes `worker` the owner of `shard` in the next version.
    ///
    /// # Panics
    /// If there is no such shard or no such worker.
    pub fn assign(&self, shard: ShardId, worker: usize) {
        assert!(worker < self.workers, "there is no worker {worker}");
        let _changing = self.lock();
        // At most u16::MAX workers: each was an owner's number or will be one.
        self.owners[usize::from(shard.0)].store(worker as u16, Release);
        self.version.store(self.version() + 1, Release);
    }

    /// Replaces the map by a newer version of it. `false`: the map is not newer.
    ///
    /// # Errors
    /// If it is not a map of this server.
    pub fn learn(&self, version: u64, owners: &[u16]) -> Result<bool, ForeignShardMap> {
        let fits = owners.len() == self.owners.len() && owners.iter().all(|owner| usize::from(*owner) < self.workers);
        if !fits {
            return Err(ForeignShardMap);
        }
        let _changing = self.lock();
        if version <= self.version() {
            return Ok(false);
        }
        self.owners.iter().zip(owners).for_each(|(place, owner)| place.store(*owner, Release));
        self.version.store(version, Release);
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // No change panics half way.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ShardMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, owners) = self.copy();
        f.debug_struct("ShardMap").field("version", &version).field("owners", &owners).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_assignment_is_a_new_version() {
        let map = ShardMap::new(1, &[0, 1, 0, 1], 2).unwrap();
        map.assign(ShardId(2), 1);
        assert_eq!(map.copy(), (2, vec![0, 1, 1, 1]));
        assert_eq!((map.owner(ShardId(2)), map.owner(ShardId(4))), (Some(1), None));
    }

    #[test]
    fn only_newer_maps_of_the_same_server_are_learned() {
        let map = ShardMap::new(3, &[0, 1], 2).unwrap();
        assert_eq!(map.learn(3, &[1, 1]), Ok(false));
        assert_eq!(map.learn(9, &[1, 2]), Err(ForeignShardMap), "there is no worker 2");
        assert_eq!(map.learn(9, &[1]), Err(ForeignShardMap), "the volume has two shards");
        assert_eq!(map.copy(), (3, vec![0, 1]));
        assert_eq!(map.learn(9, &[1, 1]), Ok(true));
        assert_eq!(map.copy(), (9, vec![1, 1]));
    }

    #[test]
    fn unsound_maps_are_refused() {
        assert_eq!(ShardMap::new(1, &[], 1).err(), Some(ForeignShardMap));
        assert_eq!(ShardMap::new(1, &[1], 1).err(), Some(ForeignShardMap));
    }
}
