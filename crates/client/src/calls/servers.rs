//! The servers that a client knows: its shard map, newer maps, and the search for servers that were lost.

use super::{BUSY_WAIT, Core, SERVER_WAIT};
use crate::transport::{CallError, FindError, ServerWelcome};
use crate::{Failure, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use varve_env::clock::Instant;
use varve_proto::{Call, CallFailure, Request, Response, WireShardMap};
use varve_types::{Credentials, Errno, InvalidShardMap, MapServer, ShardId, ShardMap, WorkerPlace};

/// Number of other servers that one look asks for their map.
const OTHERS_MAX: usize = 2;

pub(super) struct KnownServers {
    map: RwLock<Arc<ShardMap>>,
    embedded: AtomicBool,
    /// The servers that are being looked for, each by one thread.
    sought: Mutex<HashSet<u64>>,
    maps: AtomicU64,
    searches: AtomicU64,
}

/// Number of times that the map was replaced, and that a search for a lost server has ended.
#[derive(Clone, Copy)]
pub(super) struct ServerChanges {
    maps: u64,
    searches: u64,
}

impl KnownServers {
    pub fn new(welcome: ServerWelcome) -> KnownServers {
        let ServerWelcome { map, embedded, .. } = welcome;
        let (sought, maps, searches) = Default::default();
        KnownServers { map: RwLock::new(Arc::new(map)), embedded: AtomicBool::new(embedded), sought, maps, searches }
    }

    pub fn changes(&self) -> ServerChanges {
        ServerChanges { maps: self.maps.load(Acquire), searches: self.searches.load(Acquire) }
    }
}

/// The right to look for a server.
struct Search<'a> {
    known: &'a KnownServers,
    server: u64,
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        self.known.sought.lock().remove(&self.server);
    }
}

impl Core {
    pub fn map(&self) -> Arc<ShardMap> {
        self.servers.map.read().clone()
    }

    /// Whether the server runs inside this mount and serves only this mount.
    pub fn embedded(&self) -> bool {
        self.servers.embedded.load(Relaxed)
    }

    /// The worker for requests about `shard`. If nobody owns the shard, or if it does not exist, any worker answers with
    /// its map.
    pub fn place_of(&self, shard: ShardId) -> WorkerPlace {
        let map = self.servers.map.read();
        // A map has at least one server.
        map.owner(shard).unwrap_or_else(|| WorkerPlace { server: map.servers()[0].number, worker: 0 })
    }

    /// Takes the map over with which `asked` has refused a request about `shard`. Returns whether another worker is to be
    /// asked now.
    pub fn learn(
        &self,
        map: &WireShardMap,
        shard: ShardId,
        asked: WorkerPlace,
    ) -> std::result::Result<bool, InvalidShardMap> {
        let known = self.map();
        // The versions of a server count only while it is one of the volume's servers.
        if map.version > known.version() && known.server(asked.server).is_some() {
            self.follow(map.to_map(self.settings.shards)?, &known);
        }
        // Another thread may have learned the map first.
        Ok(self.place_of(shard) != asked)
    }

    /// Asks one of the servers for a newer map. `turn` chooses which. A server that is alone may have been joined by others,
    /// which have some of its shards now.
    pub async fn refresh_map(&self, turn: u64, deadline: Instant) {
        if self.embedded() {
            return;
        }
        let map = self.map();
        let servers = map.servers();
        let place = WorkerPlace { server: servers[turn as usize % servers.len()].number, worker: 0 };
        // No volume has this shard, so the server refuses the request with its map.
        let none = ShardId(u16::MAX);
        let id = self.session.begin();
        let credentials = Credentials::root().into();
        let request =
            Request { id: id.id(), shard: none.0, credentials, released: Vec::new(), call: Call::LocateShard };
        let response = self.transport.call(place, &request, deadline).await;
        match response {
            Ok(Response { result: Err(CallFailure::NotOwner { map }), .. }) => {
                let learned = self.learn(&map, none, place);
                learned.map_or_else(|error| tracing::debug!("{error}"), drop);
            }
            // The server may have ended the session, and no other thread may notice.
            Err(CallError::Lost { server, .. }) => self.lose_registrations_at(server),
            _ => {}
        }
    }

    /// Replaces `known` by `map`. `false`: another thread has replaced it already.
    fn follow(&self, map: ShardMap, known: &Arc<ShardMap>) -> bool {
        let mut current = self.servers.map.write();
        if !Arc::ptr_eq(&current, known) {
            return false;
        }
        // A call that sees the new map registers the files that are lost by it.
        self.lose_moved_registrations(known, &map);
        self.transport.follow(&map);
        *current = Arc::new(map);
        self.servers.maps.fetch_add(1, AcqRel);
        true
    }

    /// Finds the lost server again, or a newer map. Returns when any thread has done so. `before`: the changes before the
    /// call that was lost.
    pub(super) async fn find_again(
        &self,
        lost: u64,
        before: ServerChanges,
        deadline: Instant,
        why: &str,
    ) -> Result<()> {
        // Another thread may look for as long as its own deadline allows.
        let mut turn = BUSY_WAIT;
        let _search = loop {
            let first = self.servers.sought.lock().insert(lost);
            let search = first.then(|| Search { known: &self.servers, server: lost });
            let changes = self.servers.changes();
            if changes.searches > before.searches || changes.maps != before.maps {
                return Ok(());
            }
            match search {
                Some(search) => break search,
                None => self.check_deadline(deadline, why)?,
            }
            self.pause(turn.next()).await;
        };
        tracing::warn!("connection to the server lost, reconnecting: {why}");
        self.transport.lose(lost);
        let mut wait = SERVER_WAIT;
        let mut round = 0;
        while self.servers.changes().maps == before.maps {
            if self.closed.load(Relaxed) {
                return Err(Failure::new(Errno::EIO, "this client has been shut down"));
            }
            let why = match self.look(lost, round).await {
                Ok(()) => break,
                Err(FindError::Refused(reason)) => return Err(Failure::new(Errno::EIO, reason)),
                Err(FindError::Absent(reason) | FindError::Unready(reason)) => reason,
            };
            self.check_deadline(deadline, &why)?;
            self.pause(wait.next()).await;
            round += 1;
        }
        tracing::warn!("reconnected to the server");
        self.counters.reconnects.fetch_add(1, Relaxed);
        // If the lost server lives, it may have ended the session meanwhile.
        self.lose_registrations_at(lost);
        self.servers.searches.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Asks the servers of the map, then those of the records, until one of them is the lost server or has a map to follow.
    async fn look(&self, lost: u64, round: usize) -> std::result::Result<(), FindError> {
        let known = self.map();
        let (mut lives, mut why) = (false, None);
        for server in asked(&known, lost, round) {
            match self.transport.greet(server).await {
                Ok(welcome) => {
                    let same = welcome.server == server.number;
                    if self.takes(welcome, lost, &known, lives) {
                        return Ok(());
                    }
                    lives |= same;
                }
                Err(error) if server.number == lost => why = Some(error),
                Err(error) => tracing::debug!("{error}"),
            }
        }
        let absent = |why: Option<FindError>| why.unwrap_or_else(|| absent(lost));
        match self.transport.find().await {
            Ok(welcome) => self.takes(welcome, lost, &known, lives).then_some(()).ok_or_else(|| absent(why)),
            Err(_) if lives => Err(absent(why)),
            Err(error) => Err(error),
        }
    }

    /// Whether `welcome` ends the search for the server `lost`. `lives`: a server of the known map answers.
    fn takes(&self, welcome: ServerWelcome, lost: u64, known: &Arc<ShardMap>, lives: bool) -> bool {
        let ServerWelcome { server, map, embedded } = welcome;
        // Servers without a common member count their own versions: others have taken the volume, if no server of the known
        // map lives.
        let others = map.servers().iter().all(|one| known.server(one.number).is_none());
        let follows = if others { !lives && map.server(server).is_some() } else { map.version() > known.version() };
        if follows {
            self.servers.embedded.store(embedded, Relaxed);
            // Another thread that has replaced the map meanwhile has found a server too.
            self.follow(map, known);
        }
        follows || server == lost
    }
}

/// The servers of a map to ask in a round of the search: some of those after the lost one, in a circle, because the next
/// two watch it; then the lost one. A server that is alone is found by its record, which says more about its absence.
fn asked(map: &ShardMap, lost: u64, round: usize) -> impl Iterator<Item = &MapServer> {
    let servers = map.servers();
    let again = map.server(lost).filter(|_| servers.len() > 1);
    let after = servers.iter().position(|server| server.number == lost).map_or(0, |at| at + 1);
    let others = servers.iter().cycle().skip(after).take(servers.len()).filter(move |server| server.number != lost);
    let count = servers.len().saturating_sub(1).max(1);
    let others = others.cycle().skip(round * OTHERS_MAX % count).take(OTHERS_MAX.min(servers.len() - 1));
    others.chain(again)
}

fn absent(lost: u64) -> FindError {
    FindError::Absent(format!(
        "server {lost:016x} of the volume does not answer, and no other server has taken its shards over yet"
    ))
}
