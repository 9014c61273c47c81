//! Maps names to shards by the partition maps that this client has learned. A map may be outdated; a shard that no
//! longer has a name replies with a newer map.

use parking_lot::Mutex;
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_proto::WireMap;
use varve_types::{InodeId, NameHash, PartitionMap, ShardCount, ShardId};

/// Maps per generation: at most 512 bytes each, so both generations together stay below 32 MiB. A dropped map is
/// learned again from the next reply `Moved`.
const MAPS_MAX: usize = 32 * 1024;

/// Directories that were never split have no entry: their map is known without a reply.
#[derive(Default)]
struct Maps {
    recent: HashMap<InodeId, PartitionMap, KeyHashing>,
    /// The maps that were recent before `recent` became full. A map that is used moves up; the rest is dropped when
    /// `recent` is full again.
    older: HashMap<InodeId, PartitionMap, KeyHashing>,
}

pub(crate) struct Routing {
    shards: ShardCount,
    maps: Mutex<Maps>,
}

impl Routing {
    pub fn new(shards: ShardCount) -> Routing {
        Routing { shards, maps: Mutex::default() }
    }

    pub fn shard_of(&self, directory: InodeId, hash: NameHash) -> ShardId {
        let mut maps = self.maps.lock();
        match maps.find(directory) {
            Some(map) => map.shard_of(directory.shard(), hash),
            None => directory.shard(),
        }
    }

    pub fn map(&self, directory: InodeId) -> PartitionMap {
        let mut maps = self.maps.lock();
        maps.find(directory).cloned().unwrap_or_else(|| PartitionMap::whole(self.shards))
    }

    /// Learns a map. `false`: it is not a map of this volume, or contains nothing new.
    pub fn learn(&self, directory: InodeId, reported: &WireMap) -> bool {
        let Some(reported) = reported.to_map(self.shards) else {
            tracing::warn!(%directory, "the server sent a partition map that is not of this volume");
            return false;
        };
        if reported.len() == 1 {
            return false;
        }
        let mut maps = self.maps.lock();
        match maps.find(directory) {
            Some(map) => {
                let before = map.len();
                map.merge(&reported);
                map.len() > before
            }
            None => {
                maps.insert(directory, reported);
                true
            }
        }
    }

    pub fn forget(&self, directory: InodeId) {
        let mut maps = self.maps.lock();
        maps.recent.remove(&directory);
        maps.older.remove(&directory);
    }
}

impl Maps {
    fn find(&mut self, directory: InodeId) -> Option<&mut PartitionMap> {
        if !self.recent.contains_key(&directory) {
            let map = self.older.remove(&directory)?;
            self.insert(directory, map);
        }
        self.recent.get_mut(&directory)
    }

    fn insert(&mut self, directory: InodeId, map: PartitionMap) {
        if self.recent.len() >= MAPS_MAX {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(directory, map);
    }
}

#[cfg(test)]
mod tests;
