//! Calls between the servers of a volume: a thread that keeps a connection to every other server, and listens for theirs.
//!
//! ```text
//! worker -- PeerNetworkHandle::call --> queue --> [outgoing] === connection ==> [incoming] --> inbox of a worker
//!    <----- PeerResponse or NotAnswered ---------- [outgoing] <== connection === lease valid? <-- its response
//! ```
//!
//! A call is sent at most once. [`NotAnswered`] tells the calls that were certainly not carried out, which
//! [`inbox`](super::inbox) delivers again, from those whose outcome is unknown.
//!
//! The thread does not spin. Its processor belongs to the workers, and a call between servers waits for a log append
//! anyway, which takes longer than a wake-up.

mod incoming;
mod members;
mod outgoing;
mod unauthenticated;

pub use members::PeerMember;

use super::inbox::WorkerMessage;
use super::listener::advertised;
use super::shared::ServerShared;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{Either, select};
use incoming::Incoming;
use members::Members;
use outgoing::{Outgoing, QueuedCall};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use varve_cluster::lease::Lease;
use varve_env::clock::{Clock, Instant};
use varve_env::net::SocketPlace;
use varve_env::volume_dir::boot_id;
use varve_proto::handshake::VolumeKey;
use varve_rpc::{EventLoop, Listener, LoopHandle};
use varve_schema::peer::codec::encode_request;
use varve_schema::peer::{PeerRequest, PeerResponse};
use varve_types::{Cause, ShardId, VolumeId, WorkerAddress};

/// How long a stop waits for the replies to calls that have begun: the workers have ended, so they only have to be sent.
const STOP_TIME: Duration = Duration::from_secs(1);

/// The worker of a peers' connection in the handshake: such a connection belongs to the server as a whole.
const NO_WORKER: u16 = 0;

/// Permissions of the Unix socket.
const SOCKET_MODE: u32 = 0o600;

/// The inbox of the worker that owns a shard, if one of this server does.
pub type ShardRoute = Box<dyn Fn(ShardId) -> Option<mpsc::Sender<WorkerMessage>> + Send>;

/// The limits of the calls between servers. Tests lower them.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Calls that wait for the thread to take them.
    pub queue: usize,
    /// Calls of one server to another that are not answered. A worker's clients have some thousands of requests in
    /// progress, and few of them call another server.
    pub calls: usize,
    /// Calls above that number that end something: calls in progress may wait for them, at either side.
    pub ending_calls: usize,
    /// Bytes of requests, on each side, that are not answered.
    pub bytes: usize,
    /// Deadline of a handshake, as for clients.
    pub handshake: Duration,
    /// A server that owes a reply and is silent for this long has lost its connection. The thread of a server that lives
    /// answers a probe at once.
    pub silence: Duration,
}

impl Default for PeerLimits {
    fn default() -> PeerLimits {
        PeerLimits {
            queue: 4096,
            calls: 4096,
            ending_calls: 1024,
            bytes: 64 << 20,
            handshake: Duration::from_secs(10),
            silence: Duration::from_secs(20),
        }
    }
}

impl PeerLimits {
    fn of_connection(&self) -> varve_rpc::Limits {
        let calls = self.calls + self.ending_calls;
        varve_rpc::Limits { in_flight: calls, waiting: calls, silence: self.silence, ..varve_rpc::Limits::default() }
    }
}

pub struct PeerNetworkConfig {
    pub volume: VolumeId,
    /// The volume's own key.
    pub key: VolumeKey,
    /// The number of this server.
    pub number: u64,
    /// The boot of this host. Servers of the same boot call each other through Unix sockets.
    pub boot_id: String,
    /// Users whose processes may serve the volume: root, the volume's owner, and the user of this process.
    pub trusted: Vec<u32>,
    pub unix: Option<PathBuf>,
    pub tcp: Option<SocketAddr>,
    pub clock: Arc<dyn Clock>,
    /// Asked last before a reply leaves.
    pub lease: Arc<Lease>,
    pub route: ShardRoute,
    /// Called if the thread ends by itself, with the reason.
    pub failed: Box<dyn FnOnce(String) + Send>,
    pub limits: PeerLimits,
}

impl PeerNetworkConfig {
    /// The configuration of a server with these workers. Without `unix` and `tcp` no other server can call it.
    ///
    /// # Errors
    /// If the boot of this host cannot be told.
    pub fn of_server(
        shared: &Arc<ServerShared>,
        inboxes: Vec<mpsc::Sender<WorkerMessage>>,
        lease: Arc<Lease>,
        (unix, tcp): (Option<PathBuf>, Option<SocketAddr>),
        failed: Box<dyn FnOnce(String) + Send>,
    ) -> io::Result<PeerNetworkConfig> {
        let owner = Arc::clone(shared);
        Ok(PeerNetworkConfig {
            volume: shared.settings.id,
            key: shared.keys.own().clone(),
            number: shared.number,
            boot_id: boot_id()?,
            trusted: vec![0, shared.settings.owner_uid, rustix::process::geteuid().as_raw()],
            unix,
            tcp,
            clock: Arc::clone(&shared.clock),
            lease,
            route: Box::new(move |shard| Some(inboxes[owner.shard_map.worker(shard)?].clone())),
            failed,
            limits: PeerLimits::default(),
        })
    }
}

/// The way in which a call to another server ended without a response of the shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    /// Nothing of it was sent: the server cannot be reached, or is no member any more.
    #[error("not sent: {0}")]
    NotSent(String),
    /// A limit is reached; nothing of it was sent.
    #[error("not sent: {0}")]
    Overload(String),
    /// The other server has it, and has not carried it out: it does not own the shard, or had no time left.
    #[error("not carried out: {0}")]
    NotCarriedOut(String),
    /// It was sent, and no response came.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The worker of the shard failed. The outcome is unknown too.
    #[error("{0}")]
    Failed(Cause),
}

/// The running thread. It ends when this is dropped.
pub struct PeerNetwork {
    handle: PeerNetworkHandle,
    address: WorkerAddress,
    unix: Option<PathBuf>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Calls other servers, from any thread.
#[derive(Clone)]
pub struct PeerNetworkHandle {
    calls: mpsc::Sender<QueuedCall>,
    members: Arc<watch::Sender<Vec<PeerMember>>>,
    bytes: Arc<AtomicUsize>,
    clock: Arc<dyn Clock>,
    limits: PeerLimits,
}

/// Counts the bytes of a request until it is answered.
pub(super) struct HeldBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl HeldBytes {
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> HeldBytes {
        all.fetch_add(bytes, SeqCst);
        HeldBytes { all: Arc::clone(all), bytes }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, SeqCst);
    }
}

/// The parts of the network that its thread owns.
struct Inputs {
    calls: mpsc::Receiver<QueuedCall>,
    members: watch::Receiver<Vec<PeerMember>>,
    stop: oneshot::Receiver<()>,
    listening: std::sync::mpsc::Sender<io::Result<WorkerAddress>>,
}

impl PeerNetwork {
    /// Starts the thread, and listens. It knows no other server until [`PeerNetworkHandle::set_members`].
    ///
    /// # Errors
    /// If an address cannot be used, or the process has no descriptors or threads left.
    pub fn start(config: PeerNetworkConfig) -> io::Result<PeerNetwork> {
        let (calls, calls_in) = mpsc::channel(config.limits.queue);
        let (members, members_in) = watch::channel(Vec::new());
        let (stop, stopped) = oneshot::channel();
        let (listening, listens) = std::sync::mpsc::channel();
        let handle = PeerNetworkHandle {
            calls,
            members: Arc::new(members),
            bytes: Arc::default(),
            clock: Arc::clone(&config.clock),
            limits: config.limits,
        };
        let unix = config.unix.clone();
        let inputs = Inputs { calls: calls_in, members: members_in, stop: stopped, listening };
        let thread = std::thread::Builder::new().name("varve-peers".into()).spawn(move || run(config, inputs))?;
        let address = listens.recv().unwrap_or_else(|_| Err(io::Error::other("the thread for other servers failed")));
        let mut network = PeerNetwork {
            handle,
            address: WorkerAddress::default(),
            unix: None,
            stop: Some(stop),
            thread: Some(thread),
        };
        network.address = address?;
        network.unix = unix;
        Ok(network)
    }

    pub fn handle(&self) -> &PeerNetworkHandle {
        &self.handle
    }

    /// Where other servers reach this one.
    pub fn address(&self) -> &WorkerAddress {
        &self.address
    }

    fn end(&mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            // It catches and reports its own panic.
            let _ = thread.join();
        }
        if let Some(path) = self.unix.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!("cannot remove the socket {}: {error}", path.display());
        }
    }
}

impl Drop for PeerNetwork {
    fn drop(&mut self) {
        self.end();
    }
}

impl PeerNetworkHandle {
    /// Sends `request` to `server` and returns the response, by the request's deadline.
    ///
    /// # Errors
    /// If there is no response of the shard.
    pub async fn call(&self, server: u64, request: &PeerRequest) -> Result<PeerResponse, NotAnswered> {
        let body = encode_request(request).map_err(|error| NotAnswered::Failed(error.to_string().into()))?;
        let held = HeldBytes::new(&self.bytes, body.len());
        if self.bytes.load(SeqCst) > self.limits.bytes.max(body.len()) {
            return Err(NotAnswered::Overload("too many bytes wait for other servers".into()));
        }
        let (reply, ended) = oneshot::channel();
        let call = QueuedCall {
            server,
            shard: request.to,
            body: Bytes::from(body),
            ends_something: request.call.ends_something(),
            deadline: self.clock.monotonic().after(request.deadline),
            reply,
            held,
        };
        self.calls.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotAnswered::Overload("too many calls of other servers wait".into()),
            mpsc::error::TrySendError::Closed(_) => NotAnswered::NotSent("this server has stopped".into()),
        })?;
        ended.await.unwrap_or_else(|_| Err(NotAnswered::Unknown("this server has stopped".into())))
    }

    /// Replaces the other servers. Connections to servers whose entry has not changed stay; others end, and their calls
    /// with an unknown outcome if they were sent.
    pub fn set_members(&self, members: Vec<PeerMember>) {
        self.members.send_replace(members);
    }
}

/// The body of the thread.
fn run(mut config: PeerNetworkConfig, inputs: Inputs) {
    let failed = std::mem::replace(&mut config.failed, Box::new(|_| {}));
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| live(config, inputs)));
    if lived.is_err() {
        let reason = "the thread for calls between servers broke an invariant and has ended";
        tracing::error!("{reason}");
        failed(reason.to_owned());
    }
}

fn live(config: PeerNetworkConfig, inputs: Inputs) {
    let Inputs { calls, members, stop, listening } = inputs;
    let opened = EventLoop::new(Arc::clone(&config.clock), Duration::ZERO)
        .and_then(|event_loop| Listeners::open(event_loop.handle(), &config).map(|listeners| (event_loop, listeners)));
    let (event_loop, listeners) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // The starter waits for it.
            let _ = listening.send(Err(error));
            return;
        }
    };
    let _ = listening.send(Ok(listeners.address.clone()));
    let (stop_serving, stopping) = oneshot::channel::<()>();
    let stopping = stopping.map(|_| ()).boxed_local().shared();
    let known = Rc::new(Members::default());
    let outgoing = Rc::new(Outgoing::new(event_loop.handle(), &config));
    let incoming = Rc::new(Incoming::new(event_loop.handle(), config, Rc::clone(&known), stopping));
    let changes = RefCell::new(members);
    let following = Following { changes, known, outgoing: Rc::clone(&outgoing), incoming: Rc::clone(&incoming) };
    event_loop.block_on(async {
        let working = async {
            futures::join!(
                Rc::clone(&incoming).accept(listeners.unix),
                Rc::clone(&incoming).accept(listeners.tcp),
                outgoing.take_calls(calls, || following.catch_up()),
                following.follow(),
            )
        };
        select(pin!(working), stop).await;
        outgoing.set_members(&[]);
        drop(stop_serving);
        let replied = incoming.all_ended();
        within(event_loop.handle(), event_loop.handle().now().after(STOP_TIME), replied).await;
    });
}

/// Takes changes of the members over: when they come, and before each call, so that a call finds the members that were set
/// before it.
struct Following {
    changes: RefCell<watch::Receiver<Vec<PeerMember>>>,
    known: Rc<Members>,
    outgoing: Rc<Outgoing>,
    incoming: Rc<Incoming>,
}

impl Following {
    fn catch_up(&self) {
        let mut changes = self.changes.borrow_mut();
        // An error means that no handle is left.
        if changes.has_changed().unwrap_or(false) {
            let members = changes.borrow_and_update().clone();
            self.known.set(&members);
            self.outgoing.set_members(&members);
            self.incoming.end_strangers();
        }
    }

    async fn follow(&self) {
        let mut changes = self.changes.borrow().clone();
        while changes.changed().await.is_ok() {
            self.catch_up();
        }
        std::future::pending().await
    }
}

struct Listeners {
    unix: Option<Listener>,
    tcp: Option<Listener>,
    address: WorkerAddress,
}

impl Listeners {
    fn open(event_loop: &LoopHandle, config: &PeerNetworkConfig) -> io::Result<Listeners> {
        let open = |place: SocketPlace| {
            let with_place = |error: io::Error| io::Error::new(error.kind(), format!("{place}: {error}"));
            Listener::new(event_loop, &place, SOCKET_MODE).map_err(with_place)
        };
        let unix = config.unix.clone().map(|path| open(SocketPlace::Unix(path))).transpose()?;
        let tcp = config.tcp.map(|address| open(SocketPlace::Tcp(address))).transpose()?;
        let bound = tcp.as_ref().map(Listener::tcp_address).transpose()?;
        let address = WorkerAddress {
            unix: config.unix.as_ref().map(|path| path.to_string_lossy().into_owned()),
            tcp: bound.map(advertised),
        };
        Ok(Listeners { unix, tcp, address })
    }
}

/// The result of `work`, if it comes by `at`.
async fn within<T>(event_loop: &LoopHandle, at: Instant, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(event_loop.timer(at))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests;
