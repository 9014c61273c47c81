//! The servers that the client's shard map names, with the connections to them.

use super::super::connection::{Reach, ServerConnection};
use super::pool::Pool;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_types::{MapServer, ShardMap, WorkerPlace};

/// By the numbers of the servers: the pool of each worker.
type Pools = HashMap<u64, Vec<Arc<Pool>>, KeyHashing>;

#[derive(Default)]
pub(super) struct Servers {
    current: RwLock<Pools>,
}

impl Servers {
    /// Calls go to the servers of `map` from now on. Pools of servers that were known already stay: the number of a
    /// server is that of a process, whose addresses do not change.
    pub fn follow(&self, map: &ShardMap, now: Instant, reach: impl Fn(&MapServer) -> Reach) {
        let mut current = self.current.write();
        let mut former = std::mem::take(&mut *current);
        for server in map.servers() {
            let kept = former.remove(&server.number).filter(|pools| is_of(pools, server));
            let pools = kept.unwrap_or_else(|| pools(server, reach(server), now));
            current.insert(server.number, pools);
        }
        drop(current);
        // The connections are closed without the lock.
        drop(former);
    }

    /// Closes the idle connections to `server`. Those with a call in progress are given back to nobody.
    pub fn lose(&self, server: u64, now: Instant) {
        let mut current = self.current.write();
        let Some(pools) = current.get_mut(&server) else { return };
        let emptied = pools.iter().map(|pool| Arc::new(pool.emptied(now))).collect();
        let lost = std::mem::replace(pools, emptied);
        drop(current);
        drop(lost);
    }

    pub fn pool(&self, place: WorkerPlace) -> Option<Arc<Pool>> {
        self.current.read().get(&place.server)?.get(place.worker).cloned()
    }

    pub fn are_several(&self) -> bool {
        self.current.read().len() > 1
    }

    /// Whether the map names the server of this number.
    pub fn names(&self, server: u64) -> bool {
        self.current.read().contains_key(&server)
    }

    /// Keeps a connection for calls. Gives it back if the map does not name its server.
    pub fn keep(&self, place: WorkerPlace, connection: ServerConnection) -> Option<ServerConnection> {
        match self.pool(place) {
            Some(pool) => {
                pool.give_back(connection);
                None
            }
            None => Some(connection),
        }
    }

    pub fn close_surplus(&self, now: Instant) {
        let pools: Vec<_> = self.current.read().values().flatten().cloned().collect();
        pools.iter().for_each(|pool| pool.close_surplus(now));
    }

    pub fn close(&self) {
        let closed = std::mem::take(&mut *self.current.write());
        drop(closed);
    }
}

fn is_of(pools: &[Arc<Pool>], server: &MapServer) -> bool {
    pools.iter().map(|pool| &pool.address).eq(&server.workers)
}

fn pools(server: &MapServer, reach: Reach, now: Instant) -> Vec<Arc<Pool>> {
    let place = |worker| WorkerPlace { server: server.number, worker };
    let pool = |(worker, address)| Arc::new(Pool::new(place(worker), Clone::clone(address), reach, now));
    server.workers.iter().enumerate().map(pool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_env::clock::{Clock, RealClock};
    use varve_types::{ShardOwner, WorkerAddress};

    fn map(version: u64, servers: &[u64]) -> ShardMap {
        let server = |number: &u64| MapServer {
            number: *number,
            boot_id: String::new(),
            workers: vec![WorkerAddress { unix: Some(format!("/{number}")), tcp: None }; 2],
        };
        let servers = servers.iter().map(server).collect();
        ShardMap::new(version, servers, vec![ShardOwner { worker: 0, term: 1 }]).unwrap()
    }

    #[test]
    fn connections_to_servers_of_both_maps_stay() {
        let (servers, now) = (Servers::default(), RealClock::new().monotonic());
        let follow = |map| servers.follow(&map, now, |_| Reach { local: true, tcp: false, owner: 0 });
        let pool = |server| servers.pool(WorkerPlace { server, worker: 1 });
        follow(map(1, &[1, 2]));
        let (first, second) = (pool(1).unwrap(), pool(2).unwrap());
        follow(map(2, &[2, 3]));
        assert!(pool(1).is_none() && pool(3).is_some());
        assert!(Arc::ptr_eq(&second, &pool(2).unwrap()));
        follow(map(3, &[1]));
        assert!(!Arc::ptr_eq(&first, &pool(1).unwrap()));
    }

    #[test]
    fn a_lost_server_keeps_the_connections_to_others() {
        let (servers, now) = (Servers::default(), RealClock::new().monotonic());
        servers.follow(&map(1, &[1, 2]), now, |_| Reach { local: true, tcp: false, owner: 0 });
        let pool = |server| servers.pool(WorkerPlace { server, worker: 0 }).unwrap();
        let (lost, other) = (pool(1), pool(2));
        servers.lose(1, now);
        assert!(servers.names(1) && !servers.names(3));
        assert!(!Arc::ptr_eq(&lost, &pool(1)));
        assert!(Arc::ptr_eq(&other, &pool(2)));
    }
}
