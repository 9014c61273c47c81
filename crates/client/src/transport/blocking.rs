//! The transport over sockets: the calling thread writes its request and blocks until the response is there, so a
//! future of this transport is ready at its first poll. With [reactor threads](crate::reactor), no thread blocks for
//! the response to an [asynchronous operation](crate::async_ops); the reactor polls for it. Each worker has a pool of
//! idle connections, used last in, first out: in practice one connection per calling thread, or one per asynchronous
//! operation in progress.

mod awaited;
mod pool;

use self::awaited::AwaitedCalls;
use self::pool::Pool;
use super::connection::{Identity, Reach, ServerConnection, Untrusted};
use super::{CallError, FindError, FoundServer, Transport};
use crate::async_ops;
use crate::config::ClientConfig;
use crate::reactor::Reactor;
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::RwLock;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::printable::{printable, printable_path};
use varve_env::spin::SPIN_TIME;
use varve_env::volume_dir::{ServerRecord, VolumeDir};
use varve_proto::handshake::{KeyId, VolumeKey, Welcome};
use varve_proto::{CallId, Request, Response};
use varve_types::{SessionId, ShardCount, VolumeSettings, WorkerAddress};

/// How long to spin for the reply to a call that changes several shards: at each shard it queues behind the calls of
/// other clients (`docs/internals/performance-findings.md`, "Waiting and waking").
const SPIN_TIME_OVER_SHARDS: Duration = Duration::from_micros(300);

/// The connection pools of one found server.
struct Pools {
    found: u64,
    /// The number by which the server identifies itself.
    number: u64,
    reach: Reach,
    workers: Vec<Arc<Pool>>,
}

pub struct BlockingTransport {
    store: VolumeDir,
    shards: ShardCount,
    identity: Identity,
    /// The user requested TCP, also on the server's host.
    tcp: bool,
    clock: Arc<dyn Clock>,
    reactor: Arc<Reactor>,
    current: RwLock<Option<Arc<Pools>>>,
    awaited: AwaitedCalls,
    closed: AtomicBool,
}

impl BlockingTransport {
    pub(crate) fn new(
        config: &ClientConfig,
        settings: &VolumeSettings,
        (key_id, key): (KeyId, VolumeKey),
        session: SessionId,
        clock: Arc<dyn Clock>,
        reactor: Arc<Reactor>,
    ) -> BlockingTransport {
        let identity = Identity { volume: settings.id, key_id, key, session, purpose: config.purpose };
        let (store, tcp) = (config.store.clone(), config.tcp);
        let (current, awaited) = Default::default();
        let (shards, closed) = (settings.shards, AtomicBool::new(false));
        BlockingTransport { store, shards, identity, tcp, clock, reactor, current, awaited, closed }
    }

    fn find_blocking(&self, found: u64) -> Result<Arc<FoundServer>, FindError> {
        let root = printable_path(self.store.root());
        let record = self
            .store
            .read_server_record()
            .map_err(|error| {
                FindError::Absent(format!("cannot read the server record of the volume at {root}: {error}"))
            })?
            .ok_or_else(|| {
                FindError::Absent(format!(
                    "nobody serves the volume at {root}: start `varve serve {root}`, or mount it with `varve mount`"
                ))
            })?;
        record.check_store(&self.store).map_err(|error| FindError::Refused(error.to_string()))?;
        let reach = self.reach(&record)?;
        let first = record.workers.first().ok_or_else(|| {
            FindError::Absent(format!("the server's record {} names no worker", self.store.server_file()))
        })?;
        let address = WorkerAddress { unix: first.unix.clone(), tcp: first.tcp.clone() };
        let mut connection =
            ServerConnection::open(&address, reach).map_err(|error| self.unreached(&record, &error))?;
        let Welcome::Accepted { server: number, map, embedded, .. } =
            connection.shake_hands(&self.identity, 0, &*self.clock)?
        else {
            return Err(FindError::Refused("the server refused without a reason".into()));
        };
        let unfit = |reason: &dyn Display| FindError::Refused(format!("the server's welcome does not fit: {reason}"));
        let map = map.to_map(self.shards).map_err(|error| unfit(&error))?;
        let workers = map.server(number).ok_or_else(|| unfit(&"its shard map does not name it"))?.workers.clone();
        let server = FoundServer { found, number, shards: self.shards, map: RwLock::new(Arc::new(map)), embedded };
        let now = self.clock.monotonic();
        let pool = |(worker, address)| Arc::new(Pool::new(worker, address, now));
        let workers: Vec<Arc<Pool>> = workers.into_iter().enumerate().map(pool).collect();
        // The worker that accepted the handshake is the first of the record; the welcome lists the workers in the same
        // order.
        workers[0].give_back(connection);
        *self.current.write() = Some(Arc::new(Pools { found, number, reach, workers }));
        Ok(Arc::new(server))
    }

    fn reach(&self, record: &ServerRecord) -> Result<Reach, FindError> {
        let root = printable_path(self.store.root());
        let owner = self.store.owner();
        let owner =
            owner.map_err(|error| FindError::Absent(format!("cannot read the owner of the store {root}: {error}")))?;
        Ok(Reach { local: record.is_of_this_boot(), tcp: self.tcp, owner })
    }

    /// The error for a failed connection to the server of `record`.
    fn unreached(&self, record: &ServerRecord, error: &io::Error) -> FindError {
        let root = printable_path(self.store.root());
        let process = format!("{} on {}", record.process(), printable(&record.host));
        if let Some(untrusted) = error.get_ref().and_then(|inner| inner.downcast_ref::<Untrusted>()) {
            return FindError::Refused(format!("the server of the volume at {root} cannot be trusted: {untrusted}"));
        }
        if error.kind() == io::ErrorKind::PermissionDenied {
            return FindError::Refused(format!(
                "the server of the volume at {root} ({process}) runs as another user, and only that user can reach it: \
                 {error}; stop it and serve or mount the volume yourself"
            ));
        }
        FindError::Absent(match record.is_of_the_dead() {
            true => format!(
                "nobody serves the volume at {root}: its last server, {process}, was killed or has crashed; start \
                 `varve serve {root}`, or mount it with `varve mount`"
            ),
            false => format!("the server of the volume at {root} ({process}) does not answer: {error}"),
        })
    }

    /// The connections to a worker of `server`.
    fn pool(&self, server: &FoundServer, worker: usize) -> Result<(Arc<Pools>, Arc<Pool>), CallError> {
        let pools = self.current.read().clone().ok_or_else(|| CallError::Lost("it was closed".into()))?;
        if pools.found != server.found {
            return Err(CallError::Lost("the client connected to another server meanwhile".into()));
        }
        let pool = pools.workers.get(worker).cloned();
        let pool = pool.ok_or_else(|| CallError::Lost(format!("there is no worker {worker}")))?;
        Ok((pools, pool))
    }

    fn call_blocking(
        &self,
        server: &FoundServer,
        worker: usize,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, CallError> {
        let (pools, pool) = self.pool(server, worker)?;
        let connection = match pool.take() {
            Some(connection) => connection,
            None => self.open(&pools, &pool)?,
        };
        self.call_on(connection, &pool, request, deadline)
    }

    fn call_on(
        &self,
        mut connection: ServerConnection,
        pool: &Pool,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, CallError> {
        let spin = if request.call.spans_shards() { SPIN_TIME_OVER_SHARDS } else { SPIN_TIME };
        connection.send(request, spin).map_err(unsent)?;
        let past_deadline = || self.clock.monotonic() >= deadline || self.closed.load(Relaxed);
        let sleeps = || self.reactor.hand_off_reactor();
        let received = connection.receive::<Response>(past_deadline, sleeps).map_err(|error| lost(&error))?;
        let response = received.ok_or(CallError::Deadline)?;
        check_answers(&response, request.id)?;
        pool.give_back(connection);
        Ok(response)
    }

    async fn call_of_async_op(
        &self,
        server: &FoundServer,
        worker: usize,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, CallError> {
        let (pools, pool) = self.pool(server, worker)?;
        let Some(mut connection) = pool.take() else {
            // The thread that waits for the connection may also wait for the reply.
            let whole = async { self.call_on(self.open(&pools, &pool)?, &pool, request, deadline) };
            return async_ops::waiting(whole).await;
        };
        // No other request is in flight on this connection, so the kernel has room for this one.
        connection.send_and_go(request).map_err(unsent)?;
        self.awaited.answer(connection, pool, request.id, deadline).await
    }

    fn open(&self, pools: &Pools, pool: &Pool) -> Result<ServerConnection, CallError> {
        let mut connection = ServerConnection::open(&pool.address, pools.reach).map_err(|error| lost(&error))?;
        let welcome = connection.shake_hands(&self.identity, pool.worker, &*self.clock);
        match welcome.map_err(|error| CallError::Lost(error.to_string()))? {
            // It replaced the other server at this address, and must first learn which files are open here.
            Welcome::Accepted { server, .. } if server != pools.number => {
                Err(CallError::Lost("another server has taken its place".into()))
            }
            _ => Ok(connection),
        }
    }
}

fn lost(error: &io::Error) -> CallError {
    CallError::Lost(error.to_string())
}

fn unsent(error: io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::Other => CallError::Unsendable(error.to_string()),
        _ => lost(&error),
    }
}

fn check_answers(response: &Response, asked: CallId) -> Result<(), CallError> {
    if response.id == asked {
        return Ok(());
    }
    Err(CallError::Lost(format!("the answer to {:?} came instead of that to {asked:?}", response.id)))
}

impl Transport for BlockingTransport {
    fn find(&self, found: u64) -> BoxFuture<'_, Result<Arc<FoundServer>, FindError>> {
        ready(self.find_blocking(found)).boxed()
    }

    fn call<'a>(
        &'a self,
        server: &'a FoundServer,
        worker: usize,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Response, CallError>> {
        // An asynchronous operation that has a thread of its own may block.
        match async_ops::brings() && self.reactor.is_kept() {
            true => self.call_of_async_op(server, worker, request, deadline).boxed(),
            false => ready(self.call_blocking(server, worker, request, deadline)).boxed(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "callers pause between looks at what cannot call back")]
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        std::thread::sleep(wait);
        ready(()).boxed()
    }

    fn close(&self) {
        self.closed.store(true, Relaxed);
        *self.current.write() = None;
        self.awaited.end_where(|_| true, || CallError::Lost("it was closed".into()));
    }

    fn awaited(&self) -> usize {
        self.awaited.count()
    }

    fn bring_answers(&self, take_up: fn(Waker)) -> usize {
        self.awaited.bring(take_up)
    }

    fn end_late(&self) {
        let now = self.clock.monotonic();
        self.awaited.end_where(|deadline| deadline <= now, || CallError::Deadline);
    }

    fn close_surplus(&self) {
        let (pools, now) = (self.current.read().clone(), self.clock.monotonic());
        pools.iter().flat_map(|pools| &pools.workers).for_each(|pool| pool.close_surplus(now));
    }
}
