//! Which worker of which server owns each shard.

use crate::ShardId;
use std::collections::HashSet;

/// The addresses of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerAddress {
    /// Path of the worker's Unix socket, for clients of the same host.
    pub unix: Option<String>,
    /// `host:port` of the worker's TCP listener.
    pub tcp: Option<String>,
}

/// A server in a shard map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapServer {
    /// The random number by which the server identifies itself. A restarted server has another one.
    pub number: u64,
    /// The boot id of its host: its Unix sockets can be reached only from there.
    pub boot_id: String,
    pub workers: Vec<WorkerAddress>,
}

/// A worker of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerPlace {
    /// The number of the server.
    pub server: u64,
    pub worker: usize,
}

/// The owner of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOwner {
    /// An index into the workers of all servers of the map, in order. [`ShardOwner::NOBODY`]: no worker owns the shard
    /// now.
    pub worker: u16,
    /// A later owner has a greater term. A move between workers of one server may keep the term, because it hands over
    /// the open files.
    pub term: u64,
}

impl ShardOwner {
    pub const NOBODY: u16 = u16::MAX;
}

/// One version of the shard map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    version: u64,
    servers: Vec<MapServer>,
    owners: Vec<ShardOwner>,
    /// The workers of all servers, in order.
    workers: Vec<WorkerPlace>,
}

/// Why a map is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidShardMap {
    #[error("the shard map is of {found} shards, and the volume has {volume}")]
    OtherShards { found: usize, volume: usize },
    #[error("the shard map has no shards or no workers")]
    Empty,
    #[error("the shard map names {0} workers: at most {max} are supported", max = ShardMap::WORKERS_MAX)]
    TooManyWorkers(usize),
    #[error("the addresses in the shard map take {0} bytes: at most {max} are supported", max = ShardMap::ADDRESS_BYTES_MAX)]
    LongAddresses(usize),
    #[error("the shard map names server {0:016x} twice, or without workers")]
    UnsoundServer(u64),
    #[error("the shard map gives shard {0} to a worker that it does not name")]
    UnknownOwner(usize),
}

impl ShardMap {
    /// The workers of all servers together.
    pub const WORKERS_MAX: usize = 4096;

    /// All addresses and boot ids together: with the owners of 4,096 shards they fit into the answer of a handshake,
    /// which is one Noise message of 65,535 bytes.
    pub const ADDRESS_BYTES_MAX: usize = 32 * 1024;

    /// # Errors
    /// If the parts do not fit each other, or exceed a limit.
    pub fn new(version: u64, servers: Vec<MapServer>, owners: Vec<ShardOwner>) -> Result<ShardMap, InvalidShardMap> {
        let count = servers.iter().map(|server| server.workers.len()).sum();
        if owners.is_empty() || count == 0 {
            return Err(InvalidShardMap::Empty);
        }
        if count > ShardMap::WORKERS_MAX {
            return Err(InvalidShardMap::TooManyWorkers(count));
        }
        let bytes = servers.iter().map(address_bytes).sum();
        if bytes > ShardMap::ADDRESS_BYTES_MAX {
            return Err(InvalidShardMap::LongAddresses(bytes));
        }
        let mut numbers = HashSet::new();
        if let Some(server) = servers.iter().find(|server| server.workers.is_empty() || !numbers.insert(server.number))
        {
            return Err(InvalidShardMap::UnsoundServer(server.number));
        }
        let known = |owner: &ShardOwner| owner.worker == ShardOwner::NOBODY || usize::from(owner.worker) < count;
        if let Some(shard) = owners.iter().position(|owner| !known(owner)) {
            return Err(InvalidShardMap::UnknownOwner(shard));
        }
        let places = |server: &MapServer| {
            let number = server.number;
            (0..server.workers.len()).map(move |worker| WorkerPlace { server: number, worker })
        };
        let workers = servers.iter().flat_map(places).collect();
        Ok(ShardMap { version, servers, owners, workers })
    }

    /// Version 1 of a server that serves `shards` shards alone. Adjacent shards belong to different workers, so that a
    /// directory spreads evenly.
    ///
    /// # Errors
    /// As [`ShardMap::new`].
    pub fn of_one_server(server: MapServer, shards: u16) -> Result<ShardMap, InvalidShardMap> {
        // At most WORKERS_MAX workers are accepted.
        let workers = u16::try_from(server.workers.len()).unwrap_or(u16::MAX).max(1);
        let owners = (0..shards).map(|shard| ShardOwner { worker: shard % workers, term: 1 }).collect();
        ShardMap::new(1, vec![server], owners)
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn servers(&self) -> &[MapServer] {
        &self.servers
    }

    pub fn server(&self, number: u64) -> Option<&MapServer> {
        self.servers.iter().find(|server| server.number == number)
    }

    pub fn owners(&self) -> &[ShardOwner] {
        &self.owners
    }

    /// The worker that owns `shard`; `None` if nobody does, or if there is no such shard.
    pub fn owner(&self, shard: ShardId) -> Option<WorkerPlace> {
        let owner = self.owners.get(usize::from(shard.0))?;
        self.workers.get(usize::from(owner.worker)).copied()
    }

    /// The term of the owner of `shard`, or of its last owner. 0: there is no such shard.
    pub fn term(&self, shard: ShardId) -> u64 {
        self.owners.get(usize::from(shard.0)).map_or(0, |owner| owner.term)
    }

    /// The next version, in which a shard moves to another worker of its server.
    ///
    /// # Panics
    /// If the map has no such shard or no such worker.
    #[must_use]
    pub fn moved(&self, shard: ShardId, to: WorkerPlace) -> ShardMap {
        let worker = self.workers.iter().position(|place| *place == to).expect("a shard moves to a worker of the map");
        let mut next = ShardMap { version: self.version + 1, ..self.clone() };
        // At most WORKERS_MAX.
        next.owners[usize::from(shard.0)].worker = worker as u16;
        next
    }
}

fn address_bytes(server: &MapServer) -> usize {
    /// Number and lengths, encoded.
    const OF_SERVER: usize = 16;
    const OF_WORKER: usize = 6;
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let workers = server.workers.iter().map(|worker| OF_WORKER + text(&worker.unix) + text(&worker.tcp));
    OF_SERVER + server.boot_id.len() + workers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u64, workers: usize) -> MapServer {
        MapServer { number, boot_id: "boot".into(), workers: vec![WorkerAddress::default(); workers] }
    }

    fn owners(workers: &[u16]) -> Vec<ShardOwner> {
        workers.iter().map(|worker| ShardOwner { worker: *worker, term: 1 }).collect()
    }

    #[test]
    fn owners_count_the_workers_of_all_servers() {
        let map = ShardMap::new(7, vec![server(10, 2), server(5, 1)], owners(&[0, 1, 2, u16::MAX])).unwrap();
        let place = |server, worker| Some(WorkerPlace { server, worker });
        let found: Vec<_> = (0..5).map(|shard| map.owner(ShardId(shard))).collect();
        assert_eq!(found, [place(10, 0), place(10, 1), place(5, 0), None, None]);
    }

    #[test]
    fn a_moved_shard_makes_the_next_version() {
        let map = ShardMap::of_one_server(server(10, 2), 4).unwrap();
        let next = map.moved(ShardId(2), WorkerPlace { server: 10, worker: 1 });
        assert_eq!((map.owners(), next.owners()), (&*owners(&[0, 1, 0, 1]), &*owners(&[0, 1, 1, 1])));
        assert_eq!((map.version(), next.version()), (1, 2));
    }

    #[test]
    fn unsound_maps_are_refused() {
        let refused = |servers, workers: &[u16]| ShardMap::new(1, servers, owners(workers)).err();
        assert_eq!(refused(vec![], &[0]), Some(InvalidShardMap::Empty));
        assert_eq!(refused(vec![server(1, 1)], &[]), Some(InvalidShardMap::Empty));
        assert_eq!(refused(vec![server(1, 1)], &[0, 1]), Some(InvalidShardMap::UnknownOwner(1)));
        assert_eq!(refused(vec![server(1, 1), server(1, 1)], &[0]), Some(InvalidShardMap::UnsoundServer(1)));
        assert_eq!(refused(vec![server(1, 1), server(2, 0)], &[0]), Some(InvalidShardMap::UnsoundServer(2)));
        let many = ShardMap::WORKERS_MAX + 1;
        assert_eq!(refused(vec![server(1, many)], &[0]), Some(InvalidShardMap::TooManyWorkers(many)));
        let long = MapServer { boot_id: "x".repeat(ShardMap::ADDRESS_BYTES_MAX), ..server(1, 1) };
        assert!(matches!(refused(vec![long], &[0]), Some(InvalidShardMap::LongAddresses(_))));
    }
}
