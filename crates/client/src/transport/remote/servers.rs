//! The servers that the client's shard map names. All threads share them.

use super::connections::Connected;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use varve_env::key_hash::KeyHashing;
use varve_rpc::{Connection, Severer};
use varve_types::{MapServer, ShardMap, WorkerAddress};

/// Server identities so far, in this process.
static IDENTITIES: AtomicU64 = AtomicU64::new(0);

/// A server as the threads connect to it. When the map does not name it any more, or it was lost, and no call to it is in
/// progress, its connections end, those of threads that do nothing now included.
pub(super) struct KnownServer {
    /// Threads connect anew to a server that was lost, which has another identity.
    pub identity: u64,
    pub number: u64,
    pub workers: Vec<WorkerAddress>,
    /// The server is on this host, by its boot id.
    pub local: bool,
    connections: Mutex<Vec<Weak<Severer>>>,
}

impl KnownServer {
    fn new(number: u64, workers: Vec<WorkerAddress>, local: bool) -> Arc<KnownServer> {
        let identity = IDENTITIES.fetch_add(1, Relaxed);
        Arc::new(KnownServer { identity, number, workers, local, connections: Mutex::default() })
    }

    /// Whether a thread is connected.
    pub fn is_connected(&self) -> bool {
        self.connections.lock().iter().any(|severer| severer.strong_count() > 0)
    }

    /// Takes a connection in, to end it with this server.
    pub fn keep(&self, connection: Connection) -> io::Result<Rc<Connected>> {
        let severer = connection.severer()?.map(Arc::new);
        let mut connections = self.connections.lock();
        connections.retain(|severer| severer.strong_count() > 0);
        connections.extend(severer.as_ref().map(Arc::downgrade));
        Ok(Rc::new(Connected { connection, _severer: severer }))
    }
}

impl Drop for KnownServer {
    fn drop(&mut self) {
        self.connections.get_mut().iter().filter_map(Weak::upgrade).for_each(|severer| severer.sever());
    }
}

#[derive(Default)]
pub(super) struct Servers {
    current: RwLock<HashMap<u64, Arc<KnownServer>, KeyHashing>>,
    /// The last server that has welcomed this client, until the map is followed that names it.
    welcomed: Mutex<Option<Arc<KnownServer>>>,
}

impl Servers {
    /// Calls go to the servers of `map` from now on. Connections to servers that were known already stay: the number of a
    /// server is that of a process, whose addresses do not change.
    pub fn follow(&self, map: &ShardMap, is_local: impl Fn(&MapServer) -> bool) {
        let welcomed = self.welcomed.lock().take();
        let mut current = self.current.write();
        let mut former = std::mem::take(&mut *current);
        for server in map.servers() {
            let is_it = |known: &Arc<KnownServer>| known.number == server.number && known.workers == server.workers;
            let kept = former.remove(&server.number).filter(is_it);
            let kept = kept.or_else(|| welcomed.clone().filter(is_it));
            let new = || KnownServer::new(server.number, server.workers.clone(), is_local(server));
            current.insert(server.number, kept.unwrap_or_else(new));
        }
        drop(current);
        // The connections are closed without the lock.
        drop((former, welcomed));
    }

    /// The server of a map that has welcomed this client.
    pub fn welcomed(&self, server: &MapServer, local: bool) -> Arc<KnownServer> {
        let current = self.current.read().get(&server.number).filter(|known| known.workers == server.workers).cloned();
        current.unwrap_or_else(|| {
            let known = KnownServer::new(server.number, server.workers.clone(), local);
            let former = self.welcomed.lock().replace(Arc::clone(&known));
            drop(former);
            known
        })
    }

    /// Threads connect anew to `server`. Calls in progress go on.
    pub fn lose(&self, server: u64) {
        let mut current = self.current.write();
        let Some(known) = current.get_mut(&server) else { return };
        let anew = KnownServer::new(server, known.workers.clone(), known.local);
        let lost = std::mem::replace(known, anew);
        drop(current);
        drop(lost);
    }

    pub fn find(&self, server: u64) -> Option<Arc<KnownServer>> {
        self.current.read().get(&server).cloned()
    }

    pub fn are_several(&self) -> bool {
        self.current.read().len() > 1
    }

    pub fn close(&self) {
        let closed = (std::mem::take(&mut *self.current.write()), self.welcomed.lock().take());
        drop(closed);
    }
}

#[cfg(test)]
mod tests;
