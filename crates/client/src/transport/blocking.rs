//! The transport over sockets: the calling thread writes its request and blocks until the response is there, so a
//! future of this transport is ready at its first poll. With [reactor threads](crate::reactor), no thread blocks for
//! the response to an [asynchronous operation](crate::async_ops); the reactor polls for it. Each worker has a pool of
//! idle connections, used last in, first out: in practice one connection per calling thread, or one per asynchronous
//! operation in progress.

mod awaited;
mod finding;
mod pool;
mod servers;

use self::awaited::AwaitedCalls;
use self::pool::Pool;
use self::servers::Servers;
use super::connection::{Identity, ServerConnection};
use super::{CallError, FindError, ServerWelcome, Transport};
use crate::async_ops;
use crate::config::ClientConfig;
use crate::reactor::Reactor;
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::identity::NOBODY;
use varve_env::spin::SPIN_TIME;
use varve_env::volume_dir::{VolumeDir, boot_id};
use varve_proto::handshake::{KeyId, VolumeKey, Welcome};
use varve_proto::{CallId, Request, Response};
use varve_types::{MapServer, SessionId, ShardCount, ShardMap, VolumeSettings, WorkerPlace};

/// How long a handshake with one of several servers may take. If the server hangs, another one may have its shards.
const GREETED_MAX: Duration = Duration::from_secs(3);

/// How long to spin for the reply to a call that changes several shards: at each shard it queues behind the calls of
/// other clients (`docs/internals/performance-findings.md`, "Waiting and waking").
const SPIN_TIME_OVER_SHARDS: Duration = Duration::from_micros(300);

pub struct BlockingTransport {
    store: VolumeDir,
    shards: ShardCount,
    identity: Identity,
    /// The user requested TCP, also on the server's host.
    tcp: bool,
    clock: Arc<dyn Clock>,
    reactor: Arc<Reactor>,
    servers: Servers,
    /// The last connection on which a server welcomed this client, for the first call to that server.
    welcomed: Mutex<Option<(u64, ServerConnection)>>,
    /// The owner of the store, read before the first server is found. Nobody may serve it before that.
    owner: AtomicU32,
    /// The boot id of this host: Unix sockets of its servers can be reached.
    boot_id: Option<String>,
    awaited: AwaitedCalls,
    /// A call has waited for a second or longer.
    waited: AtomicBool,
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
        let (servers, welcomed, awaited) = Default::default();
        let boot_id = boot_id().ok();
        let (shards, waited, closed) = (settings.shards, AtomicBool::new(false), AtomicBool::new(false));
        BlockingTransport {
            store,
            shards,
            identity,
            tcp,
            clock,
            reactor,
            servers,
            welcomed,
            owner: AtomicU32::new(NOBODY),
            boot_id,
            awaited,
            waited,
            closed,
        }
    }

    fn pool(&self, to: WorkerPlace) -> Result<Arc<Pool>, CallError> {
        let why = || format!("the shard map does not name worker {} of that server", to.worker);
        self.servers.pool(to).ok_or_else(|| CallError::Lost { server: to.server, why: why() })
    }

    fn call_blocking(&self, to: WorkerPlace, request: &Request, deadline: Instant) -> Result<Response, CallError> {
        let pool = self.pool(to)?;
        let connection = match pool.take() {
            Some(connection) => connection,
            None => self.open(&pool, deadline)?,
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
        let server = pool.place.server;
        if self.clock.monotonic() >= deadline {
            pool.give_back(connection);
            return Err(CallError::Deadline);
        }
        let spin = if request.call.spans_shards() { SPIN_TIME_OVER_SHARDS } else { SPIN_TIME };
        connection
            .send(request, deadline.since(self.clock.monotonic()), spin)
            .map_err(|error| unsent(server, &error))?;
        let past_deadline = || self.clock.monotonic() >= deadline || self.closed.load(Relaxed);
        let give_up = || {
            self.waited.store(true, Relaxed);
            past_deadline() || !self.servers.names(server)
        };
        let sleeps = || self.reactor.hand_off_reactor();
        let received = connection.receive::<Response>(give_up, sleeps);
        // A server does not begin a call whose deadline has passed.
        let received =
            received.map_err(|error| if past_deadline() { CallError::Deadline } else { lost(server, &error) })?;
        let response = received.ok_or_else(|| if past_deadline() { CallError::Deadline } else { left(server) })?;
        check_answers(&response, request.id, server)?;
        pool.give_back(connection);
        Ok(response)
    }

    async fn call_of_async_op(
        &self,
        to: WorkerPlace,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, CallError> {
        let pool = self.pool(to)?;
        let Some(mut connection) = pool.take() else {
            // The thread that waits for the connection may also wait for the reply.
            let whole = async { self.call_on(self.open(&pool, deadline)?, &pool, request, deadline) };
            return async_ops::waiting(whole).await;
        };
        // No other request is in flight on this connection, so the kernel has room for this one.
        connection
            .send_and_go(request, deadline.since(self.clock.monotonic()))
            .map_err(|error| unsent(to.server, &error))?;
        self.awaited.answer(connection, pool, request.id, deadline).await
    }

    fn greeted_by(&self) -> Instant {
        match self.servers.are_several() {
            true => self.clock.monotonic().after(GREETED_MAX),
            false => Instant(Duration::MAX),
        }
    }

    fn open(&self, pool: &Pool, deadline: Instant) -> Result<ServerConnection, CallError> {
        let WorkerPlace { server, worker } = pool.place;
        let mut connection = ServerConnection::open(&pool.address, pool.reach).map_err(|error| lost(server, &error))?;
        let welcome = connection.shake_hands(&self.identity, worker, self.greeted_by().min(deadline), &*self.clock);
        match welcome.map_err(|error| CallError::Lost { server, why: error.to_string() })? {
            // It replaced the other server at this address, and must first learn which files are open here.
            Welcome::Accepted { server: other, .. } if other != server => {
                Err(CallError::Lost { server, why: "another server has taken its place".into() })
            }
            _ => Ok(connection),
        }
    }
}

fn lost(server: u64, error: &io::Error) -> CallError {
    CallError::Lost { server, why: error.to_string() }
}

fn left(server: u64) -> CallError {
    CallError::Lost { server, why: "it has left the servers of the volume without an answer".into() }
}

fn unsent(server: u64, error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::Other => CallError::Unsendable(error.to_string()),
        _ => lost(server, error),
    }
}

fn check_answers(response: &Response, asked: CallId, server: u64) -> Result<(), CallError> {
    if response.id == asked {
        return Ok(());
    }
    Err(CallError::Lost { server, why: format!("the answer to {:?} came instead of that to {asked:?}", response.id) })
}

impl Transport for BlockingTransport {
    fn find(&self) -> BoxFuture<'_, Result<ServerWelcome, FindError>> {
        ready(self.find_by_records()).boxed()
    }

    fn greet<'a>(&'a self, server: &'a MapServer) -> BoxFuture<'a, Result<ServerWelcome, FindError>> {
        ready(self.greet_blocking(server)).boxed()
    }

    fn follow(&self, map: &ShardMap) {
        let now = self.clock.monotonic();
        self.servers.follow(map, now, |server| self.reach_of(server));
        if let Some((server, connection)) = self.welcomed.lock().take() {
            drop(self.servers.keep(WorkerPlace { server, worker: 0 }, connection));
        }
    }

    fn lose(&self, server: u64) {
        self.servers.lose(server, self.clock.monotonic());
    }

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Response, CallError>> {
        // An asynchronous operation that has a thread of its own may block.
        match async_ops::brings() && self.reactor.is_kept() {
            true => self.call_of_async_op(to, request, deadline).boxed(),
            false => ready(self.call_blocking(to, request, deadline)).boxed(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "callers pause between looks at what cannot call back")]
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        std::thread::sleep(wait);
        ready(()).boxed()
    }

    fn close(&self) {
        self.closed.store(true, Relaxed);
        self.servers.close();
        *self.welcomed.lock() = None;
        self.awaited.end_where(|_, _| true, |server| CallError::Lost { server, why: "it was closed".into() });
    }

    fn awaited(&self) -> usize {
        self.awaited.count()
    }

    fn bring_answers(&self, take_up: fn(Waker)) -> usize {
        self.awaited.bring(take_up)
    }

    fn end_late(&self) {
        let now = self.clock.monotonic();
        self.awaited.end_where(|deadline, _| deadline <= now, |_| CallError::Deadline);
        self.awaited.end_where(|_, server| !self.servers.names(server), left);
        if self.awaited.any_old() {
            self.waited.store(true, Relaxed);
        }
    }

    fn any_waited(&self) -> bool {
        self.waited.swap(false, Relaxed)
    }

    fn close_surplus(&self) {
        self.servers.close_surplus(self.clock.monotonic());
    }
}
