//! The transport over sockets: the calling thread writes its request and blocks until the response is there, so a future
//! of this transport is ready whenever it is polled. Each worker has a pool of idle connections, last used first used: in
//! practice a connection a calling thread.

use super::connection::{Connection, Identity};
use super::{CallError, FindError, Server, Transport};
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::time::Duration;
use varve_types::{SessionId, VolumeSettings};
use varve_wire::handshake::{Purpose, VolumeKey, Welcome, WorkerAddress};
use varve_wire::{Request, Response};
use varve_world::clock::{Clock, Moment};
use varve_world::patience::LOOK;
use varve_world::volume_dir::VolumeDir;

/// Idle connections kept to one worker: as many threads as a mount has, and a bound on the server's descriptors.
const IDLE_PER_WORKER_MAX: usize = 64;

/// How long the answer to a call that changes several shards is looked for: it takes its turn at each, behind those of other
/// callers (`docs/measurements/2026-11-25-looks.md`).
const LOOK_OVER_SHARDS: Duration = Duration::from_micros(300);

struct Pool {
    address: WorkerAddress,
    idle: Mutex<Vec<Connection>>,
}

/// The pools of one found server.
struct Pools {
    found: u64,
    /// The number that the server has given itself.
    number: u64,
    /// The server is on this host: its Unix sockets can be reached.
    local: bool,
    workers: Vec<Pool>,
}

pub struct BlockingTransport {
    store: VolumeDir,
    shards: u16,
    identity: Identity,
    clock: Arc<dyn Clock>,
    current: RwLock<Option<Arc<Pools>>>,
}

impl BlockingTransport {
    pub fn new(
        store: VolumeDir,
        settings: &VolumeSettings,
        key: VolumeKey,
        session: SessionId,
        purpose: Purpose,
        clock: Arc<dyn Clock>,
    ) -> BlockingTransport {
        let identity = Identity { volume: settings.id, key, session, purpose };
        BlockingTransport { store, shards: settings.shards.get(), identity, clock, current: RwLock::new(None) }
    }

    fn find_now(&self, found: u64) -> Result<Arc<Server>, FindError> {
        let root = self.store.root().display();
        let record = self
            .store
            .read_server_record()
            .map_err(|error| FindError::Absent(format!("cannot read who serves the volume at {root}: {error}")))?
            .ok_or_else(|| {
                FindError::Absent(format!(
                    "nobody serves the volume at {root}: start `varve serve {root}`, or mount it with `varve mount`"
                ))
            })?;
        record.check_store(&self.store).map_err(|error| FindError::Refused(error.to_string()))?;
        let local = record.is_of_this_boot();
        let first = record.workers.first().ok_or_else(|| {
            FindError::Absent(format!("the server's record {} names no worker", self.store.server_file().display()))
        })?;
        let address = WorkerAddress { unix: first.unix.clone(), tcp: first.tcp.clone() };
        let mut connection = Connection::open(&address, local).map_err(|error| {
            let process = format!("process {} on {}", record.pid, record.host);
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                return FindError::Refused(format!(
                    "the server of the volume at {root} ({process}) is another user's, who alone reaches it: {error}; stop it \
                     and serve or mount the volume yourself"
                ));
            }
            FindError::Absent(match record.is_of_the_dead() {
                true => format!(
                    "nobody serves the volume at {root}: its last server, {process}, was killed or has crashed; start \
                     `varve serve {root}`, or mount it with `varve mount`"
                ),
                false => format!("the server of the volume at {root} ({process}) does not answer: {error}"),
            })
        })?;
        let Welcome::Accepted { server: number, shards, owners, workers, embedded, .. } =
            connection.shake_hands(&self.identity)?
        else {
            return Err(FindError::Refused("the server refused without a reason".into()));
        };
        let sound = shards == self.shards
            && owners.len() == usize::from(shards)
            && !workers.is_empty()
            && owners.iter().all(|owner| usize::from(*owner) < workers.len());
        if !sound {
            let reason = "the server's welcome does not fit the volume: are server and client of the same version?";
            return Err(FindError::Refused(reason.into()));
        }
        let server = Server { found, owners, workers: workers.len(), embedded };
        let workers: Vec<Pool> = workers.into_iter().map(|address| Pool { address, idle: Mutex::default() }).collect();
        // The worker that was asked is the first of the record; the welcome lists them in the same order.
        workers[0].idle.lock().push(connection);
        *self.current.write() = Some(Arc::new(Pools { found, number, local, workers }));
        Ok(Arc::new(server))
    }

    fn call_now(
        &self,
        server: &Server,
        worker: usize,
        request: &Request,
        deadline: Moment,
    ) -> Result<Response, CallError> {
        let lost = |text: String| CallError::Lost(text);
        let pools = self.current.read().clone().ok_or_else(|| lost("it was closed".into()))?;
        if pools.found != server.found {
            return Err(lost("another server was found meanwhile".into()));
        }
        let pool = pools.workers.get(worker).ok_or_else(|| lost(format!("there is no worker {worker}")))?;
        let idle = pool.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open(&pools, pool)?,
        };
        let look = if request.call.spans_shards() { LOOK_OVER_SHARDS } else { LOOK };
        connection.send(request, look).map_err(|error| match error.kind() {
            std::io::ErrorKind::Other => CallError::Unsendable(error.to_string()),
            _ => lost(error.to_string()),
        })?;
        let past_deadline = || self.clock.monotonic() >= deadline;
        let received = connection.receive::<Response>(past_deadline).map_err(|error| lost(error.to_string()))?;
        let response = received.ok_or(CallError::Deadline)?;
        if response.id != request.id {
            return Err(lost(format!("the answer to {:?} came instead of that to {:?}", response.id, request.id)));
        }
        let mut idle = pool.idle.lock();
        if idle.len() < IDLE_PER_WORKER_MAX {
            idle.push(connection);
        }
        Ok(response)
    }

    fn open(&self, pools: &Pools, pool: &Pool) -> Result<Connection, CallError> {
        let mut connection =
            Connection::open(&pool.address, pools.local).map_err(|error| CallError::Lost(error.to_string()))?;
        match connection.shake_hands(&self.identity).map_err(|error| CallError::Lost(error.to_string()))? {
            // It has taken the other's place at this address, and is to hear first of what is open here.
            Welcome::Accepted { server, .. } if server != pools.number => {
                Err(CallError::Lost("another server has taken its place".into()))
            }
            _ => Ok(connection),
        }
    }
}

impl Transport for BlockingTransport {
    fn find(&self, found: u64) -> BoxFuture<'_, Result<Arc<Server>, FindError>> {
        ready(self.find_now(found)).boxed()
    }

    fn call<'a>(
        &'a self,
        server: &'a Server,
        worker: usize,
        request: &'a Request,
        deadline: Moment,
    ) -> BoxFuture<'a, Result<Response, CallError>> {
        ready(self.call_now(server, worker, request, deadline)).boxed()
    }

    #[expect(clippy::disallowed_methods, reason = "callers pause between looks at what cannot call back")]
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        std::thread::sleep(wait);
        ready(()).boxed()
    }

    fn close(&self) {
        *self.current.write() = None;
    }
}
