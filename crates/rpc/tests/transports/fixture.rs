//! Servers on threads of their own, and clients of them over each transport.

use bytes::Bytes;
use futures::channel::{mpsc, oneshot};
use futures::future::{Either, FutureExt, LocalBoxFuture, select};
use futures::stream::StreamExt;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;
use std::time::Duration;
use varve_env::clock::{Instant, RealClock};
use varve_env::net::SocketPlace;
use varve_proto::WireShardMap;
use varve_proto::handshake::{Hello, KeyId, Offer, Purpose, VolumeKey, Welcome};
use varve_rpc::{
    Admission, Answer, BlockingPool, Connection, Dial, DialError, Dialer, EventLoop, Handler, Identity, InProcessLink,
    IncomingCall, Limits, Listener, LoopHandle, PeerOrigin, ServerAddress, serve,
};

pub const VOLUME: [u8; 16] = [3; 16];
pub const KEY: VolumeKey = VolumeKey([9; 32]);

/// How long a test waits for what must happen.
pub const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Unix,
    /// A Unix socket whose sides spin, and so use their slot.
    SharedMemory,
    Tcp,
    InProcess,
}

impl Transport {
    /// Spins for long, so that most messages go through memory.
    fn spin(self) -> Duration {
        if self == Transport::SharedMemory { Duration::from_millis(1) } else { Duration::ZERO }
    }

    pub fn new_loop(self) -> EventLoop {
        spinning_loop(self.spin())
    }
}

pub fn spinning_loop(spin: Duration) -> EventLoop {
    EventLoop::new(Arc::new(RealClock::new()), spin).unwrap()
}

/// Counts of the server.
#[derive(Default)]
pub struct Counters {
    pub begun: AtomicUsize,
    pub running: AtomicUsize,
    pub running_most: AtomicUsize,
    pub cancelled: AtomicUsize,
    /// The process of the server has no memory for more calls.
    pub full: AtomicBool,
    /// The server may not reply any more.
    pub mute: AtomicBool,
}

impl Counters {
    /// Waits until `counter` has reached `value`.
    pub async fn reach(&self, event_loop: &LoopHandle, counter: impl Fn(&Counters) -> &AtomicUsize, value: usize) {
        let give_up = event_loop.now().after(SOON);
        while counter(self).load(SeqCst) < value {
            assert!(event_loop.now() < give_up, "{} of {value}", counter(self).load(SeqCst));
            pause(event_loop, 1).await;
        }
    }
}

pub async fn pause(event_loop: &LoopHandle, millis: u64) {
    event_loop.timer(event_loop.now().after(Duration::from_millis(millis))).await;
}

/// A request of the tests.
#[derive(Clone, Copy)]
pub enum Ask {
    /// Is answered at once.
    Echo(u8),
    /// Is answered after so many milliseconds.
    Later(u8, u64),
    /// Is answered when it is cancelled, or never.
    Hang,
    /// Is answered at once by so many bytes.
    Long(u32),
    /// Blocks the server's thread for so many milliseconds.
    Block(u64),
}

impl Ask {
    pub fn bytes(self) -> Bytes {
        let (kind, first, number) = match self {
            Ask::Echo(byte) => (b'e', byte, 0),
            Ask::Later(byte, millis) => (b'l', byte, millis),
            Ask::Hang => (b'h', 0, 0),
            Ask::Long(bytes) => (b'b', 0, bytes.into()),
            Ask::Block(millis) => (b's', 0, millis),
        };
        [&[kind, first][..], &number.to_le_bytes()[..]].concat().into()
    }
}

/// Limits a test of `running` by a guard that a cancelled call drops, too.
struct Running(Arc<Counters>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

struct TestHandler {
    event_loop: LoopHandle,
    counters: Arc<Counters>,
}

impl Handler for TestHandler {
    fn handle(&self, call: IncomingCall) -> Answer {
        handle(&self.event_loop, &self.counters, call)
    }

    fn has_room(&self) -> bool {
        !self.counters.full.load(SeqCst)
    }

    fn may_reply(&self) -> bool {
        !self.counters.mute.load(SeqCst)
    }
}

fn handle(event_loop: &LoopHandle, counters: &Arc<Counters>, call: IncomingCall) -> Answer {
    let event_loop = event_loop.clone();
    counters.begun.fetch_add(1, SeqCst);
    counters.running_most.fetch_max(counters.running.fetch_add(1, SeqCst) + 1, SeqCst);
    let running = Running(Arc::clone(counters));
    let [kind, byte, number @ ..] = &call.request[..10] else { panic!("a request of the tests has 10 bytes") };
    let (byte, number) = (*byte, u64::from_le_bytes(number.try_into().unwrap()));
    let one = Bytes::copy_from_slice(&[byte]);
    match kind {
        b'e' => Answer::Now(one),
        b'l' => Answer::Later(
            async move {
                pause(&event_loop, number).await;
                drop(running);
                one
            }
            .boxed_local(),
        ),
        b'h' => Answer::Later(
            async move {
                call.cancel.cancelled().await;
                running.0.cancelled.fetch_add(1, SeqCst);
                one
            }
            .boxed_local(),
        ),
        b'b' => Answer::Now(Bytes::from(vec![7; number as usize])),
        b's' => {
            std::thread::sleep(Duration::from_millis(number));
            Answer::Now(one)
        }
        kind => panic!("request of kind {kind}"),
    }
}

struct TestAdmission;

impl Admission for TestAdmission {
    type Admitted = ();

    fn volume(&self) -> [u8; 16] {
        VOLUME
    }

    fn volume_name(&self) -> String {
        "volume test".into()
    }

    fn worker(&self) -> u16 {
        4
    }

    async fn key(&self, id: KeyId) -> Result<Option<VolumeKey>, String> {
        Ok((id == KeyId::VOLUME).then_some(KEY))
    }

    fn admit(&self, hello: &Hello, _: &Offer, _: VolumeKey, _: PeerOrigin) -> Result<((), Welcome), Welcome> {
        if hello.purpose == Purpose::Administer {
            return Err(Welcome::Refused { reason: "no administrators here".into() });
        }
        let welcome = Welcome::Accepted {
            server: 1,
            shards: 1,
            inline_limit: 0,
            sync_interval_ms: 0,
            owner_uid: 0,
            map: WireShardMap { version: 1, servers: Vec::new(), owners: Vec::new() },
            embedded: false,
        };
        Ok(((), welcome))
    }
}

/// How a server ends.
enum End {
    /// Its connections end at once, with whatever they carry.
    Kill,
    /// Calls that have begun are answered.
    Stop,
}

pub struct Server {
    pub counters: Arc<Counters>,
    pub transport: Transport,
    /// Where it listens, if it does.
    pub place: Option<SocketPlace>,
    links: mpsc::UnboundedSender<InProcessLink>,
    end: Option<oneshot::Sender<End>>,
    thread: Option<JoinHandle<()>>,
    directory: Option<Arc<tempfile::TempDir>>,
}

impl Server {
    pub fn start(transport: Transport, limits: Limits) -> Server {
        Server::start_spinning(transport, limits, transport.spin())
    }

    pub fn start_spinning(transport: Transport, limits: Limits, spin: Duration) -> Server {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let place = match transport {
            Transport::Unix | Transport::SharedMemory => Some(SocketPlace::Unix(directory.path().join("socket"))),
            Transport::Tcp => Some(SocketPlace::Tcp("127.0.0.1:0".parse().unwrap())),
            Transport::InProcess => None,
        };
        Server::start_at(transport, limits, spin, place, Some(directory))
    }

    fn start_at(
        transport: Transport,
        limits: Limits,
        spin: Duration,
        place: Option<SocketPlace>,
        directory: Option<Arc<tempfile::TempDir>>,
    ) -> Server {
        let (counters, (links, incoming)) = (Arc::<Counters>::default(), mpsc::unbounded());
        let (end, ending) = oneshot::channel();
        let (listens, has_place) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&counters);
        let thread = std::thread::spawn(move || {
            let event_loop = spinning_loop(spin);
            let listener = place.map(|place| (Listener::new(event_loop.handle(), &place, 0o600).unwrap(), place));
            let place = listener.as_ref().map(|(listener, place)| match place {
                SocketPlace::Tcp(_) => SocketPlace::Tcp(listener.tcp_address().unwrap()),
                SocketPlace::Unix(_) => place.clone(),
            });
            listens.send(place).unwrap();
            event_loop.block_on(run(event_loop.handle(), listener, incoming, theirs, limits, ending));
        });
        let place = has_place.recv().unwrap();
        let (end, thread) = (Some(end), Some(thread));
        Server { counters, transport, place, links, end, thread, directory }
    }

    fn end(&mut self, end: End) {
        if let Some(sender) = self.end.take() {
            let _ = sender.send(end);
        }
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }

    pub fn kill(&mut self) {
        self.end(End::Kill);
    }

    /// Begins to stop, and lets the caller go on.
    pub fn begin_stop(&mut self) {
        let _ = self.end.take().expect("it runs").send(End::Stop);
    }

    /// Another server at the same place.
    pub fn restart(&mut self, limits: Limits) {
        self.kill();
        let spin = self.transport.spin();
        *self = Server::start_at(self.transport, limits, spin, self.place.clone(), self.directory.take());
    }

    pub fn dial(&self, event_loop: &EventLoop, limits: Limits) -> Rc<dyn Dial> {
        dial(event_loop.handle(), self.place.as_ref(), &self.links, limits)
    }

    pub fn connect(&self, event_loop: &EventLoop, limits: Limits) -> Connection {
        event_loop.block_on(self.dial(event_loop, limits).dial()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(End::Kill);
    }
}

pub fn identity() -> Identity {
    let (key_id, key, trusted) = (KeyId::VOLUME, KEY, (0..10_000).collect());
    Identity { volume: VOLUME, key_id, key, session: 5, purpose: Purpose::Work, trusted }
}

pub fn dialer(event_loop: &LoopHandle, place: &SocketPlace, limits: Limits) -> Dialer {
    let address = match place {
        SocketPlace::Unix(path) => ServerAddress::Unix(PathBuf::from(path)),
        SocketPlace::Tcp(address) => ServerAddress::Tcp(address.to_string()),
    };
    let (event_loop, pool) = (event_loop.clone(), BlockingPool::new(1, 8));
    Dialer { event_loop, pool, address, worker: 4, identity: identity(), limits }
}

fn dial(
    event_loop: &LoopHandle,
    place: Option<&SocketPlace>,
    links: &mpsc::UnboundedSender<InProcessLink>,
    limits: Limits,
) -> Rc<dyn Dial> {
    let (event_loop, links) = (event_loop.clone(), links.clone());
    let dialer = place.map(|place| dialer(&event_loop, place, limits));
    Rc::new(move || -> LocalBoxFuture<'static, Result<Connection, DialError>> {
        let (dialer, links, event_loop) = (dialer.clone(), links.clone(), event_loop.clone());
        async move {
            match dialer {
                Some(dialer) => dialer.dial().await.map(|(connection, _)| connection),
                None => {
                    let (near, far) = InProcessLink::pair();
                    let gone = |_| DialError::Unreachable("the server in this process has ended".into());
                    links.unbounded_send(far).map_err(gone)?;
                    Ok(Connection::new(&event_loop, near, limits))
                }
            }
        }
        .boxed_local()
    })
}

async fn run(
    event_loop: &LoopHandle,
    listener: Option<(Listener, SocketPlace)>,
    mut links: mpsc::UnboundedReceiver<InProcessLink>,
    counters: Arc<Counters>,
    limits: Limits,
    ending: oneshot::Receiver<End>,
) {
    let handler = Rc::new(TestHandler { event_loop: event_loop.clone(), counters });
    let (stop, stopping) = oneshot::channel::<()>();
    let stopping = stopping.map(|_| ()).shared();
    let open = Rc::new(std::cell::Cell::new(0_usize));
    let accepting = async {
        let Some((listener, _)) = &listener else { return std::future::pending::<()>().await };
        loop {
            let accepted = listener.accept().await.unwrap();
            let (handle, handler, stopping) = (event_loop.clone(), handler.clone(), stopping.clone());
            let open = Rc::clone(&open);
            event_loop.spawn(async move {
                let deadline = handle.now().after(Duration::from_millis(500));
                let Ok((link, ())) = accepted.admit(&TestAdmission, deadline).await else { return };
                open.set(open.get() + 1);
                serve(&handle, link, handler, limits, stopping).await;
                open.set(open.get() - 1);
            });
        }
    };
    let joining = async {
        while let Some(link) = links.next().await {
            let (handle, handler, stopping) = (event_loop.clone(), handler.clone(), stopping.clone());
            let open = Rc::clone(&open);
            event_loop.spawn(async move {
                open.set(open.get() + 1);
                serve(&handle, link, handler, limits, stopping).await;
                open.set(open.get() - 1);
            });
        }
        std::future::pending::<()>().await;
    };
    let serving = async { futures::join!(accepting, joining) };
    let ended = match select(ending, pin!(serving)).await {
        Either::Left((ended, _)) => ended,
        Either::Right(_) => unreachable!("servers serve until they end"),
    };
    if let Ok(End::Stop) = ended {
        drop(stop);
        while open.get() > 0 {
            pause(event_loop, 1).await;
        }
    }
}

pub fn deadline(event_loop: &LoopHandle, wait: Duration) -> Instant {
    event_loop.now().after(wait)
}
