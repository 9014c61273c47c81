//! Two or more networks in one process, whose workers are test doubles.

mod failures;
mod handshakes;
mod limits;

use super::*;
use crate::server::inbox::Delivered;
use futures::future::join_all;
use parking_lot::Mutex;
use std::sync::OnceLock;
use varve_env::clock::RealClock;
use varve_schema::peer::{PeerCall, PeerReply, ShardTerm};
use varve_types::{Epoch, Errno, InodeId};

const VOLUME: VolumeId = VolumeId([3; 16]);
const KEY: VolumeKey = VolumeKey([9; 32]);
const BOOT: &str = "boot";

/// How long a test waits for what must happen.
const SOON: Duration = Duration::from_secs(20);

/// The shard that has no owner.
const NOBODYS: ShardId = ShardId(9);

type Replier = oneshot::Sender<Delivered>;

/// A worker that notes the requests that it gets, and carries them out as their call says.
#[derive(Default)]
struct FakeWorker {
    ids: Mutex<Vec<u64>>,
    /// Requests that wait for [`FakeWorker::release`].
    held: Mutex<Vec<(PeerRequest, Replier)>>,
}

impl FakeWorker {
    /// `FreshInodes`: done. `Map`: held. `Outcome`: not this worker's shard. `LearnMap` and others: fails.
    fn carry_out(&self, request: PeerRequest, reply: Replier) {
        self.ids.lock().push(request.id);
        let delivered = match request.call {
            PeerCall::FreshInodes(_) => Ok(Ok(done(&request))),
            PeerCall::Outcome(_) => Err(Box::new(request)),
            PeerCall::Map(_) => return self.held.lock().push((request, reply)),
            _ => Ok(Err(Cause { errno: Errno::ENOSPC, reason: "the store is full".into() })),
        };
        let _ = reply.send(delivered);
    }

    fn release(&self) {
        for (request, reply) in self.held.lock().drain(..) {
            let _ = reply.send(Ok(Ok(done(&request))));
        }
    }

    fn wait_for_held(&self, count: usize) {
        let begun = std::time::Instant::now();
        while self.held.lock().len() < count {
            assert!(begun.elapsed() < SOON, "{} of {count} calls have arrived", self.held.lock().len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn done(request: &PeerRequest) -> PeerResponse {
    let from = ShardTerm { shard: request.to, term: Epoch(5) };
    PeerResponse { id: request.id, from, reply: PeerReply::InodesFrom(request.id * 100) }
}

fn request(id: u64, call: PeerCall) -> PeerRequest {
    let from = ShardTerm { shard: ShardId(1), term: Epoch(4) };
    PeerRequest { from, to: ShardId(2), term: Some(Epoch(5)), id, deadline: SOON, call }
}

fn fresh(id: u64) -> PeerRequest {
    request(id, PeerCall::FreshInodes(1))
}

fn hanging(id: u64) -> PeerRequest {
    request(id, PeerCall::Map(InodeId(1)))
}

/// A network with its worker.
struct Node {
    network: PeerNetwork,
    number: u64,
    worker: Arc<FakeWorker>,
    lease: Arc<Lease>,
}

/// The settings of a network under test.
#[derive(Clone)]
struct Setup {
    number: u64,
    limits: PeerLimits,
    inbox: usize,
    tcp: bool,
    boot_id: &'static str,
    path: Option<PathBuf>,
}

impl Setup {
    fn new(number: u64) -> Setup {
        Setup { number, limits: PeerLimits::default(), inbox: 64, tcp: false, boot_id: BOOT, path: None }
    }

    fn config(&self, path: PathBuf) -> PeerNetworkConfig {
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        PeerNetworkConfig {
            volume: VOLUME,
            key: KEY,
            number: self.number,
            boot_id: self.boot_id.into(),
            trusted: vec![rustix::process::geteuid().as_raw()],
            unix: Some(path),
            tcp: self.tcp.then(|| "127.0.0.1:0".parse().unwrap()),
            lease: Arc::new(Lease::unlimited(Arc::clone(&clock))),
            clock,
            route: Box::new(|_| None),
            failed: Box::new(|reason| panic!("{reason}")),
            limits: self.limits,
        }
    }

    fn start(&self) -> Node {
        let worker = Arc::<FakeWorker>::default();
        let (inbox, mut messages) = mpsc::channel(self.inbox);
        let path = self.path.clone().unwrap_or_else(|| sockets().join(format!("peer-{}", varve_env::random::number())));
        let mut config = self.config(path);
        config.route = Box::new(move |shard| (shard != NOBODYS).then(|| inbox.clone()));
        let (lease, theirs) = (Arc::clone(&config.lease), Arc::clone(&worker));
        std::thread::spawn(move || {
            while let Some(message) = messages.blocking_recv() {
                let WorkerMessage::Peer { request, reply } = message else { panic!("it is for peers") };
                theirs.carry_out(request, reply);
            }
        });
        Node { network: PeerNetwork::start(config).unwrap(), number: self.number, worker, lease }
    }
}

fn sockets() -> &'static std::path::Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

impl Node {
    fn start(number: u64) -> Node {
        Setup::new(number).start()
    }

    fn member(&self) -> PeerMember {
        PeerMember { number: self.number, boot_id: BOOT.into(), address: self.network.address().clone() }
    }

    fn knows(&self, others: &[&Node]) {
        self.network.handle().set_members(others.iter().map(|other| other.member()).collect());
    }

    fn call(&self, other: &Node, request: &PeerRequest) -> Result<PeerResponse, NotAnswered> {
        block_on(self.network.handle().call(other.number, request))
    }

    /// A call in progress, on a thread of its own.
    fn begin(&self, other: &Node, request: PeerRequest) -> JoinHandle<Result<PeerResponse, NotAnswered>> {
        let (handle, number) = (self.network.handle().clone(), other.number);
        std::thread::spawn(move || block_on(handle.call(number, &request)))
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

/// Two servers that know each other.
fn pair() -> (Node, Node) {
    let (a, b) = (Node::start(1), Node::start(2));
    a.knows(&[&b]);
    b.knows(&[&a]);
    (a, b)
}

/// Promise: a call reaches the worker that owns the shard and its response comes back, in both directions.
#[test]
fn calls_reach_the_owning_worker() {
    let (a, b) = pair();
    assert_eq!(a.call(&b, &fresh(3)).unwrap(), done(&fresh(3)));
    assert_eq!(b.call(&a, &fresh(4)).unwrap(), done(&fresh(4)));
    assert_eq!((a.worker.ids.lock().clone(), b.worker.ids.lock().clone()), (vec![4], vec![3]));
}

/// Promise: servers of other hosts are called over TCP.
#[test]
fn server_of_another_host_is_called_over_tcp() {
    let setups = [Setup { tcp: true, ..Setup::new(1) }, Setup { tcp: true, boot_id: "other boot", ..Setup::new(2) }];
    let [a, b] = setups.map(|setup| setup.start());
    // The file of the socket is not there: nobody needs it.
    std::fs::remove_file(b.network.address().unix.as_ref().unwrap()).unwrap();
    let member = PeerMember { boot_id: "other boot".into(), ..b.member() };
    a.network.handle().set_members(vec![member]);
    b.knows(&[&a]);
    assert_eq!(a.call(&b, &fresh(3)).unwrap(), done(&fresh(3)));
}

/// Promise: a caller can tell a call that was not carried out from one that failed.
#[test]
fn results_without_response_are_told_apart() {
    let (a, b) = pair();
    let elsewhere = a.call(&b, &PeerRequest { to: NOBODYS, ..fresh(1) });
    assert!(matches!(&elsewhere, Err(NotAnswered::NotCarriedOut(_))), "{elsewhere:?}");
    let transaction = varve_schema::TransactionId { coordinator: ShardId(1), epoch: Epoch(1), counter: 1 };
    let moved = a.call(&b, &request(2, PeerCall::Outcome(transaction)));
    assert!(matches!(&moved, Err(NotAnswered::NotCarriedOut(_))), "{moved:?}");
    let failed = a.call(&b, &request(3, PeerCall::Fetch(Vec::new())));
    let cause = Cause { errno: Errno::ENOSPC, reason: "the store is full".into() };
    assert_eq!(failed, Err(NotAnswered::Failed(cause)));
    let absent = block_on(a.network.handle().call(7, &fresh(4)));
    assert!(matches!(&absent, Err(NotAnswered::NotSent(_))), "{absent:?}");
}

/// Promise: a thousand calls are in progress at a time.
#[test]
fn thousand_calls_are_in_flight() {
    let (a, b) = pair();
    let handle = a.network.handle().clone();
    let requests: Vec<_> = (1..=1000).map(hanging).collect();
    let worker = Arc::clone(&b.worker);
    let releasing = std::thread::spawn(move || {
        worker.wait_for_held(1000);
        worker.release();
    });
    let ended = block_on(join_all(requests.iter().map(|request| handle.call(2, request))));
    releasing.join().unwrap();
    for (ended, request) in ended.into_iter().zip(&requests) {
        assert_eq!(ended.unwrap(), done(request));
    }
}

/// Promise: requests of one worker arrive in the order in which they were made.
#[test]
fn requests_arrive_in_order() {
    let (a, b) = pair();
    let requests: Vec<_> = (1..=200).map(fresh).collect();
    let handle = a.network.handle();
    let ended = block_on(join_all(requests.iter().map(|request| handle.call(2, request))));
    assert!(ended.iter().all(Result::is_ok));
    assert_eq!(*b.worker.ids.lock(), (1..=200).collect::<Vec<_>>());
}

/// Promise: a network that stops ends its thread and its socket, and calls of it end.
#[test]
fn stop_ends_calls_and_leaves_no_socket() {
    let (a, b) = pair();
    let path = b.network.address().unix.clone().unwrap();
    let call = a.begin(&b, hanging(1));
    b.worker.wait_for_held(1);
    let begun = std::time::Instant::now();
    drop(b);
    assert!(begun.elapsed() < SOON / 2);
    assert!(!std::path::Path::new(&path).exists());
    let ended = call.join().unwrap();
    assert!(matches!(&ended, Err(NotAnswered::Unknown(_))), "{ended:?}");
}
