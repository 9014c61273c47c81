//! The shard map as the workers of a server share it.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Acquire, Ordering::Release};
use varve_types::{InvalidShardMap, MapServer, ShardId, ShardMap, ShardOwner, WorkerAddress, WorkerPlace};

/// Replaced as a whole by newer versions. [`SharedShardMap::worker`] takes no lock, because calls between shards use
/// it; it may return the worker of one version and for the next shard that of another.
pub struct SharedShardMap {
    /// The number of this server.
    own: u64,
    workers: usize,
    /// For each shard the worker of this server, or [`ShardOwner::NOBODY`] if the shard is at no worker of it.
    here: Box<[AtomicU16]>,
    /// Written together with `here`, under this lock.
    current: RwLock<Arc<ShardMap>>,
}

impl SharedShardMap {
    /// The map of a server that serves alone, with `workers` workers. [`SharedShardMap::set_addresses`] completes it.
    pub fn alone(own: u64, boot_id: String, workers: usize, shards: u16) -> Result<SharedShardMap, InvalidShardMap> {
        let server = MapServer { number: own, boot_id, workers: vec![WorkerAddress::default(); workers] };
        Ok(SharedShardMap::of(own, workers, ShardMap::of_one_server(server, shards)?))
    }

    /// The map of a server that has no shards until it follows the map of the servers that it joins.
    pub fn without_shards(
        own: u64,
        boot_id: String,
        workers: usize,
        shards: u16,
    ) -> Result<SharedShardMap, InvalidShardMap> {
        let server = MapServer { number: own, boot_id, workers: vec![WorkerAddress::default(); workers] };
        let owners = vec![ShardOwner { worker: ShardOwner::NOBODY, term: 0 }; usize::from(shards)];
        Ok(SharedShardMap::of(own, workers, ShardMap::new(0, vec![server], owners)?))
    }

    fn of(own: u64, workers: usize, map: ShardMap) -> SharedShardMap {
        let here = map.owners().iter().map(|_| AtomicU16::new(ShardOwner::NOBODY)).collect();
        let shared = SharedShardMap { own, workers, here, current: RwLock::new(Arc::new(map.clone())) };
        shared.publish_here(&map);
        shared
    }

    /// The number of workers of this server.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The worker of this server that owns `shard`, if one does.
    pub fn worker(&self, shard: ShardId) -> Option<usize> {
        let worker = self.here.get(usize::from(shard.0))?.load(Acquire);
        (worker != ShardOwner::NOBODY).then_some(usize::from(worker))
    }

    pub fn current(&self) -> Arc<ShardMap> {
        Arc::clone(&self.current.read())
    }

    /// Replaces the map by a newer version, which may name other servers. `false`: it is not newer. A server that the
    /// map does not name owns no shard.
    ///
    /// # Errors
    /// If it is the map of a volume with another number of shards, or gives this server another number of workers.
    pub fn replace(&self, map: ShardMap) -> Result<bool, InvalidShardMap> {
        let (found, volume) = (map.owners().len(), self.here.len());
        if found != volume {
            return Err(InvalidShardMap::OtherShards { found, volume });
        }
        if map.server(self.own).is_some_and(|own| own.workers.len() != self.workers) {
            return Err(InvalidShardMap::UnsoundServer(self.own));
        }
        Ok(self.change(|current| (map.version() > current.version()).then_some(map)))
    }

    /// Makes `worker` of this server, which has the shard, its owner in the next version.
    pub fn assign(&self, shard: ShardId, worker: usize) {
        self.change(|current| Some(current.moved(shard, WorkerPlace { server: self.own, worker })));
    }

    /// Completes the map of a server that serves alone. No client knows the map before.
    pub fn set_addresses(&self, addresses: Vec<WorkerAddress>) -> Result<(), InvalidShardMap> {
        let current = self.current();
        let server = |server: &MapServer| match server.number == self.own {
            true => MapServer { workers: addresses.clone(), ..server.clone() },
            false => server.clone(),
        };
        let servers = current.servers().iter().map(server).collect();
        let map = ShardMap::new(current.version(), servers, current.owners().to_vec())?;
        self.change(|_| Some(map));
        Ok(())
    }

    fn change(&self, next: impl FnOnce(&ShardMap) -> Option<ShardMap>) -> bool {
        let mut current = self.current.write();
        let Some(next) = next(&current) else { return false };
        self.publish_here(&next);
        *current = Arc::new(next);
        true
    }

    fn publish_here(&self, map: &ShardMap) {
        for (shard, here) in self.here.iter().enumerate() {
            let owner = map.owner(ShardId(shard as u16)).filter(|owner| owner.server == self.own);
            here.store(owner.map_or(ShardOwner::NOBODY, |owner| owner.worker as u16), Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u64, workers: usize) -> MapServer {
        MapServer { number, boot_id: "boot".into(), workers: vec![WorkerAddress::default(); workers] }
    }

    fn map(version: u64, servers: Vec<MapServer>, workers: [u16; 4]) -> ShardMap {
        let owners = workers.map(|worker| ShardOwner { worker, term: version }).to_vec();
        ShardMap::new(version, servers, owners).unwrap()
    }

    fn alone() -> SharedShardMap {
        SharedShardMap::alone(7, "boot".into(), 2, 4).unwrap()
    }

    fn workers(map: &SharedShardMap) -> [Option<usize>; 4] {
        [0, 1, 2, 3].map(|shard| map.worker(ShardId(shard)))
    }

    #[test]
    fn newer_maps_with_other_servers_are_followed() {
        let shared = alone();
        assert_eq!(workers(&shared), [Some(0), Some(1), Some(0), Some(1)]);
        shared.assign(ShardId(0), 1);
        assert_eq!((shared.current().version(), shared.worker(ShardId(0))), (2, Some(1)));
        assert_eq!(shared.replace(map(2, vec![server(7, 2)], [0; 4])), Ok(false), "it is not newer");
        // This server's workers are the second and third of all.
        assert_eq!(shared.replace(map(5, vec![server(3, 1), server(7, 2)], [0, 1, 2, u16::MAX])), Ok(true));
        assert_eq!(workers(&shared), [None, Some(0), Some(1), None]);
        assert_eq!(shared.replace(map(6, vec![server(3, 1)], [0; 4])), Ok(true), "this server was taken for dead");
        assert_eq!(workers(&shared), [None; 4]);
    }

    #[test]
    fn server_that_joins_has_no_shards_at_first() {
        let shared = SharedShardMap::without_shards(7, "boot".into(), 2, 4).unwrap();
        assert_eq!((workers(&shared), shared.workers()), ([None; 4], 2));
        assert_eq!(shared.replace(map(1, vec![server(7, 2)], [0, 1, 0, 1])), Ok(true));
        assert_eq!(workers(&shared), [Some(0), Some(1), Some(0), Some(1)]);
    }

    #[test]
    fn maps_with_other_shards_or_workers_are_refused() {
        let shared = alone();
        let owners = vec![ShardOwner { worker: 0, term: 1 }; 8];
        let other = ShardMap::new(9, vec![server(7, 2)], owners).unwrap();
        assert_eq!(shared.replace(other), Err(InvalidShardMap::OtherShards { found: 8, volume: 4 }));
        let fewer = map(9, vec![server(7, 1)], [0; 4]);
        assert_eq!(shared.replace(fewer), Err(InvalidShardMap::UnsoundServer(7)));
        assert_eq!(shared.current().version(), 1);
    }
}
