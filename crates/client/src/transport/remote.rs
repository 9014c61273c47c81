//! The transport over connections of `varve_rpc`. Each thread has a connection of its own to each worker that it calls
//! ([`connections`]), which its event loop runs.
//!
//! A connection that is lost ends the calls on it, and the layers above look for the server again: it may have ended the
//! session meanwhile, and then the open files must be registered before anything else. So this transport does not
//! reconnect by itself, as `varve_rpc::Peer` would.

mod connections;
mod finding;
mod servers;

use self::connections::Connected;
use self::servers::{KnownServer, Servers};
use super::{CallError, FindError, ServerWelcome, Transport};
use crate::config::ClientConfig;
use crate::thread_loop::{self, unless_given_up};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::identity::NOBODY;
use varve_env::volume_dir::{VolumeDir, boot_id};
use varve_proto::handshake::{KeyId, VolumeKey, Welcome};
use varve_proto::{CallId, Request, Response, frame};
use varve_rpc::{BlockingPool, CallError as RpcError, Cause, DialError, Identity, NotBegun};
use varve_types::{MapServer, SessionId, ShardCount, ShardMap, VolumeSettings, WorkerPlace};

/// How long a handshake with one of several servers may take. If the server hangs, another one may have its shards.
const GREETED_MAX: Duration = Duration::from_secs(3);

/// How often, and after which pauses, a thread asks a server again that is at a limit while other threads are connected.
const UNREADY_TRIES: u32 = 20;
const UNREADY_WAIT: Duration = Duration::from_millis(50);

/// Threads that look names of hosts up, and lookups that wait for one.
const LOOKUP_THREADS: usize = 2;
const LOOKUPS_WAITING: usize = 256;

pub struct RemoteTransport {
    store: VolumeDir,
    shards: ShardCount,
    /// Without the users that may serve the volume.
    identity: Identity,
    /// The user requested TCP, also on the server's host.
    tcp: bool,
    clock: Arc<dyn Clock>,
    pool: BlockingPool,
    servers: Servers,
    /// The owner of the store, read before the first server is found. Nobody may serve it before that.
    owner: AtomicU32,
    /// The boot id of this host: Unix sockets of its servers can be reached.
    boot_id: Option<String>,
    /// A call has waited for a second or longer.
    waited: AtomicBool,
    closed: AtomicBool,
}

impl RemoteTransport {
    pub(crate) fn new(
        config: &ClientConfig,
        settings: &VolumeSettings,
        (key_id, key): (KeyId, VolumeKey),
        session: SessionId,
        clock: Arc<dyn Clock>,
    ) -> RemoteTransport {
        let (volume, session, purpose) = (settings.id.0, session.0, config.purpose);
        let (servers, waited, closed) = Default::default();
        RemoteTransport {
            store: config.store.clone(),
            shards: settings.shards,
            identity: Identity { volume, key_id, key, session, purpose, trusted: Vec::new() },
            tcp: config.tcp,
            clock,
            pool: BlockingPool::new(LOOKUP_THREADS, LOOKUPS_WAITING),
            servers,
            owner: AtomicU32::new(NOBODY),
            boot_id: boot_id().ok(),
            waited,
            closed,
        }
    }

    async fn call_worker(&self, to: WorkerPlace, request: &Request, deadline: Instant) -> Result<Response, CallError> {
        let WorkerPlace { server, worker } = to;
        let known = self.servers.find(server).filter(|known| worker < known.workers.len());
        let unnamed = || format!("the shard map does not name worker {worker} of that server");
        let known = known.ok_or_else(|| CallError::Lost { server, why: unnamed() })?;
        let body = frame::body_of(request).map_err(|error| CallError::Unsendable(error.to_string()))?;
        let given_up = || self.given_up(server, deadline);
        let wait = || deadline.since(self.clock.monotonic());
        if wait().is_zero() {
            return Err(CallError::Deadline);
        }
        let connected = unless_given_up(self.connected(&known, worker), wait(), given_up).await??;
        let end = thread_loop::current().now().after(wait());
        let call = connected.connection.call(body.into(), end);
        let ended = unless_given_up(call, thread_loop::WAIT_SLICE, given_up).await;
        let ended = ended.and_then(|ended| ended.map_err(|error| self.failed(server, deadline, error)));
        if let Err(CallError::Deadline) = ended {
            // The reply may still come. Nobody reads it before this thread's next call, and the connection would be taken
            // for a silent one then.
            connections::line(&known, worker).connected.lock().await.take();
        }
        let body = ended?;
        let response = frame::decode_body(&body)
            .map_err(|error| CallError::Lost { server, why: format!("its reply cannot be read: {error}") })?;
        check_answers(response, request.id, server)
    }

    /// The thread's connection to a worker.
    async fn connected(&self, known: &Arc<KnownServer>, worker: usize) -> Result<Rc<Connected>, CallError> {
        let server = known.number;
        let lost = |why: String| CallError::Lost { server, why };
        let line = connections::line(known, worker);
        let mut held = line.connected.lock().await;
        match &*held {
            // The server may have ended the session meanwhile.
            Some(connected) if let Some(why) = connected.connection.lost() => {
                *held = None;
                return Err(lost(why));
            }
            Some(connected) => return Ok(Rc::clone(connected)),
            None => {}
        }
        let mut tries = 0;
        let (connection, welcome) = loop {
            match self.dial(&known.workers[worker], known.local, worker).await {
                // The server lives: the loss of it would end the connections of the other threads.
                Err(DialError::Unready(_)) if tries < UNREADY_TRIES && known.is_connected() => {
                    tries += 1;
                    thread_loop::pause(UNREADY_WAIT).await;
                }
                dialled => break dialled.map_err(|error| lost(error.to_string()))?,
            }
        };
        match welcome {
            // It replaced the other server at this address, and must first learn which files are open here.
            Welcome::Accepted { server: other, .. } if other != server => {
                Err(lost("another server has taken its place".into()))
            }
            _ => {
                let connected = known.keep(connection).map_err(|error| lost(error.to_string()))?;
                Ok(Rc::clone(held.insert(connected)))
            }
        }
    }

    /// The reason why a call is waited for no more.
    fn given_up(&self, server: u64, deadline: Instant) -> Option<CallError> {
        self.waited.store(true, Relaxed);
        if self.clock.monotonic() >= deadline || self.closed.load(Relaxed) {
            return Some(CallError::Deadline);
        }
        let left = || "it has left the servers of the volume without an answer".into();
        self.servers.find(server).is_none().then(|| CallError::Lost { server, why: left() })
    }

    fn failed(&self, server: u64, deadline: Instant, error: RpcError) -> CallError {
        match error {
            RpcError::NotSent(Cause::TooLong(_)) => CallError::Unsendable(error.to_string()),
            RpcError::NotSent(Cause::Deadline)
            | RpcError::Unknown(Cause::Deadline)
            | RpcError::NotBegun(NotBegun::Expired) => CallError::Deadline,
            _ if self.clock.monotonic() >= deadline || self.closed.load(Relaxed) => CallError::Deadline,
            RpcError::NotSent(Cause::Lost(why)) | RpcError::Unknown(Cause::Lost(why)) => {
                CallError::Lost { server, why }
            }
            error => CallError::Lost { server, why: error.to_string() },
        }
    }
}

fn check_answers(response: Response, asked: CallId, server: u64) -> Result<Response, CallError> {
    if response.id == asked {
        return Ok(response);
    }
    Err(CallError::Lost { server, why: format!("the answer to {:?} came instead of that to {asked:?}", response.id) })
}

impl Transport for RemoteTransport {
    fn find(&self) -> LocalBoxFuture<'_, Result<ServerWelcome, FindError>> {
        self.find_by_records().boxed_local()
    }

    fn greet<'a>(&'a self, server: &'a MapServer) -> LocalBoxFuture<'a, Result<ServerWelcome, FindError>> {
        self.greet_by_map(server).boxed_local()
    }

    fn follow(&self, map: &ShardMap) {
        self.servers.follow(map, |server| self.is_local(server));
    }

    fn lose(&self, server: u64) {
        self.servers.lose(server);
    }

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        deadline: Instant,
    ) -> LocalBoxFuture<'a, Result<Response, CallError>> {
        self.call_worker(to, request, deadline).boxed_local()
    }

    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()> {
        thread_loop::pause(wait).boxed_local()
    }

    fn close(&self) {
        self.closed.store(true, Relaxed);
        self.servers.close();
    }

    fn any_waited(&self) -> bool {
        self.waited.swap(false, Relaxed)
    }
}
