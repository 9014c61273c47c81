//! The detector service: it receives frames over detectors' connections and writes them to files.
//!
//! Each connection has a receiving and a sending thread; each run has its writer's threads. Runs outlive the service:
//! records below its directory list the runs that the next service takes up.
//!
//! Invariants: a frame is acknowledged at a level only after the writer reports that level. While the queue of a run is
//! full, its connections are not read. Every end of a run leaves a valid file. Entry: [`Service::start`].

mod board;
mod bound;
mod clients;
mod config;
mod files;
mod http;
mod lock;
mod metrics;
mod receive;
mod records;
mod request;
mod run;
mod sink;
mod stream2;
mod tries;
mod writer_share;

pub use board::ProgressBoard;
pub use config::{Config, Joining, Protection, ServiceError};
pub use http::OPENAPI;
pub use records::{EndKind, RunEnd};
pub use request::StartRequest;
pub use run::{Run, RunStatus, Unfinished};
pub use writer_share::WriterShareOptions;

use crate::dataset_spec::DatasetSpec;
use crate::host_check::HostCheck;
use crate::journal;
use crate::stream::{ErrorCode, StreamRefusal};
use crate::token::{self, Published};
use crate::writer::join::{Coordinator, Joined};
use bound::Listening;
use lock::Lock;
use parking_lot::Mutex;
use records::{RunRecord, RunRecords, TakenSeries};
use run::RunContext;
use sink::RunSink;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tries::Tries;
use varve_env::reserve::Reserve;
use writer_share::{CoordinatorHandle, WriterShare};

/// How often the watch thread looks for failed writers and absent clients.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Number of watch rounds between attempts to take up waiting runs.
const TAKE_UP_ROUNDS: u64 = 25;
/// How long a stop waits for clients to receive the notification.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(3);
/// Number of ended runs that the service remembers.
const ENDED_MAX: usize = 100;

/// The running service.
pub struct Service {
    shared: Arc<ServiceShared>,
    address: SocketAddr,
    http: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    published: Vec<Published>,
    /// `None` for a writer share, which receives only its own clients' frames.
    _lock: Option<Lock>,
}

/// Service state that connections and the HTTP interface use.
pub struct ServiceShared {
    pub config: Config,
    hosts: HostCheck,
    tries: Tries,
    home: Arc<RunContext>,
    runs: Mutex<BTreeMap<String, Arc<Run>>>,
    /// Images of detectors that no run has kept.
    images_passed_over: AtomicU64,
    /// Held while a run begins.
    beginning: Mutex<()>,
    connections: AtomicUsize,
    /// Connections beyond the limit that are being refused.
    turned_away: AtomicUsize,
    stopping: AtomicBool,
}

impl Service {
    /// Takes up the runs that have not ended, and listens.
    ///
    /// # Errors
    /// If the directory cannot be used, or the service cannot listen at the address.
    pub fn start(mut config: Config) -> Result<Service, ServiceError> {
        let asked = config.root.clone();
        let failed = |source| ServiceError::Root { path: asked.clone(), source };
        let root = config.root.canonicalize().map_err(failed)?;
        let records = RunRecords::open(&root).map_err(failed)?;
        let lock = Lock::take(records.directory(), &root)?;
        records.remove_leftovers().map_err(failed)?;
        let reserve = Reserve::of(records.directory().join("reserve")).map_err(failed)?;
        let (found, wrong) = records.read().map_err(failed)?;
        for text in wrong {
            tracing::warn!("cannot read the record of a run, ignoring the run: {text}");
        }
        config.root.clone_from(&root);
        let home = Arc::new(RunContext { root, records: Some(records), reserve: Some(reserve) });
        let known = found.into_iter().map(|record| KnownRun::Record(Box::new(record))).collect();
        Service::listen(config, home, known, Some(lock))
    }

    fn listen(
        config: Config,
        home: Arc<RunContext>,
        known: Vec<KnownRun>,
        lock: Option<Lock>,
    ) -> Result<Service, ServiceError> {
        let asked = config.root.clone();
        let failed = |source| ServiceError::Root { path: asked.clone(), source };
        let Listening { frames: listener, http: http_listener, published } = bound::listen(&config)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(ServiceShared {
            hosts: HostCheck::new(&config.protection.hosts),
            tries: Tries::default(),
            config,
            home,
            runs: Mutex::default(),
            images_passed_over: AtomicU64::new(0),
            beginning: Mutex::default(),
            connections: AtomicUsize::new(0),
            turned_away: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        });
        for known in known {
            match known {
                KnownRun::Record(record) => shared.take_up(*record),
                KnownRun::Share(name, run) => drop(shared.runs.lock().insert(name, run)),
            }
        }
        let mut threads = Vec::new();
        let mine = Arc::clone(&shared);
        threads.push(named("watch", move || mine.watch()).map_err(failed)?);
        let mine = Arc::clone(&shared);
        threads.push(named("accept", move || receive::accept(&mine, &listener)).map_err(failed)?);
        let mut http = None;
        if let Some(listener) = http_listener {
            let (address, thread) = http::start(&shared, listener).map_err(failed)?;
            threads.push(thread);
            http = Some(address);
        }
        Ok(Service { shared, address, http, threads, published, _lock: lock })
    }

    /// Receives frames for a share of another service's run, and writes them into that run's file.
    ///
    /// # Errors
    /// Same as [`Service::start`], or if the run cannot be joined.
    pub fn join(mut config: Config, joining: Joining) -> Result<Service, ServiceError> {
        let asked = config.root.clone();
        let failed = |source| ServiceError::Root { path: asked.clone(), source };
        let refused = |refusal| ServiceError::Join { run: joining.coordinator.run.clone(), refusal };
        let bad = |text: String| refused(StreamRefusal::new(ErrorCode::Description, text));
        let root = config.root.canonicalize().map_err(failed)?;
        config.root.clone_from(&root);
        // The joined run is the only one.
        config.runs_max = 0;
        let board = Arc::new(ProgressBoard::default());
        let (share, head) = WriterShare::join(joining.coordinator.clone(), board.clone()).map_err(refused)?;
        let description: DatasetSpec =
            serde_json::from_str(&head.description).map_err(|error| bad(error.to_string()))?;
        let path = request::place(&root, Path::new(&head.file)).map_err(&bad)?;
        let elsewhere = |what: String| {
            bad(format!("{what}; --directory must be the service's own directory, as this host sees it"))
        };
        let kept = journal::read_head(&journal::path_beside(&path)).map_err(|error| elsewhere(error.to_string()))?;
        if kept != description {
            return Err(elsewhere(format!("{} is the file of another run", path.display())));
        }
        let (settings, coordinator) = (config.settings.clone(), Arc::new(CoordinatorHandle(Arc::clone(&share))));
        let joined = (head.epoch, coordinator as Arc<dyn Coordinator>);
        let joined = Joined::join(&path, description.clone(), settings, joined, board.clone());
        let joined = joined.map_err(|error| bad(error.to_string()))?;
        let name = joining.coordinator.run.clone();
        let request =
            StartRequest { sources: joining.sources, ..StartRequest::new(&name, head.file.into(), description) };
        let home = Arc::new(RunContext { root, records: None, reserve: None });
        let run = Run::new(Arc::clone(&home), RunRecord::of(request), path, (RunSink::Share(joined, share), board));
        Service::listen(config, home, vec![KnownRun::Share(name, Arc::new(run))], None)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Path of the published token, if it is published for programs of this user.
    pub fn published(&self) -> impl Iterator<Item = &Path> {
        self.published.iter().map(Published::path)
    }

    /// Address of the HTTP interface.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    pub fn shared(&self) -> &Arc<ServiceShared> {
        &self.shared
    }

    /// Receives series from the DECTRIS detector whose stream2 is at `address` (HOST:PORT), one run per series, until
    /// the service stops. If the detector is absent, the service waits for it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn take_stream2(&mut self, address: &str) -> io::Result<()> {
        self.threads.push(stream2::start(&self.shared, address.to_owned())?);
        Ok(())
    }

    /// Ends all connections, publishes the received frames, and leaves the runs unfinished; the next service takes them
    /// up. Returns those runs.
    pub fn stop(self) -> Vec<Unfinished> {
        self.shared.stopping.store(true, SeqCst);
        for run in self.shared.runs() {
            let stopping = || StreamRefusal::new(ErrorCode::Stopping, "the service is stopping");
            match run.ended_as() {
                // Its clients may not have been notified of the end yet.
                Some(ended) => run.notify_end(&ended),
                None => run.board.each(|outbox| outbox.refuse(stopping())),
            }
        }
        // Wakes the accepting thread.
        drop(std::net::TcpStream::connect_timeout(&self.address, Duration::from_secs(1)));
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a service thread panicked");
            }
        }
        // The token is withdrawn only now: as long as clients can connect, they must find it.
        drop(self.published);
        // The final messages must be sent before the process exits.
        let deadline = Instant::now() + LAST_WORDS_WAIT;
        while self.shared.connections() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let runs = std::mem::take(&mut *self.shared.runs.lock());
        runs.into_values().filter_map(|run| run.let_go()).collect()
    }
}

/// The initiator of a run.
enum Asker<'a> {
    Control,
    Client(&'a [u8; 16]),
    Detector(Box<TakenSeries>),
}

impl Asker<'_> {
    /// The record of a run that begins with this request.
    fn record(&self, request: StartRequest) -> RunRecord {
        let record = RunRecord::of(request);
        match self {
            Asker::Detector(taken) => RunRecord { series: Some(taken.clone()), ..record },
            Asker::Client(_) => RunRecord { by_client: true, ..record },
            Asker::Control => record,
        }
    }
}

/// A run that exists when the service starts.
enum KnownRun {
    Record(Box<RunRecord>),
    Share(String, Arc<Run>),
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

impl ServiceShared {
    /// Whether the service is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    pub fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.lock().values().cloned().collect()
    }

    pub fn run(&self, name: &str) -> Option<Arc<Run>> {
        self.runs.lock().get(name).cloned()
    }

    /// # Errors
    /// If the service requires a token and `token` is not that token.
    pub fn check_token(&self, token: &str) -> Result<(), StreamRefusal> {
        let Some(own) = &self.config.token else { return Ok(()) };
        match (token::matches(own, token), token.is_empty()) {
            (true, _) => Ok(()),
            (false, false) => Err(StreamRefusal::new(ErrorCode::Token, "the token is wrong")),
            (false, true) => {
                Err(StreamRefusal::new(ErrorCode::Token, "this service needs a token, and none was given"))
            }
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Starts a run, or returns the unfinished run that the same request started.
    ///
    /// # Errors
    /// If the run cannot start. The error says what is wrong.
    pub fn begin(&self, request: StartRequest) -> Result<Arc<Run>, StreamRefusal> {
        self.begin_for(request, &Asker::Control)
    }

    fn begin_for(&self, request: StartRequest, asker: &Asker<'_>) -> Result<Arc<Run>, StreamRefusal> {
        let bad = |text: String| StreamRefusal::new(ErrorCode::Description, text);
        request.check().map_err(bad)?;
        if self.is_stopping() {
            return Err(StreamRefusal::new(ErrorCode::Stopping, "the service is stopping"));
        }
        // Held until the run is created, so that of two equal requests one creates the run and the other finds it. A
        // store that hangs then blocks only the beginning of runs.
        let _beginning = self.beginning.lock();
        if let Some(run) = self.run(&request.name) {
            let (same, ended) = (run.request == request, run.ended_as());
            let hears_the_end = matches!(asker, Asker::Client(client) if run.had(client));
            match ended {
                None if !same => {
                    let text = format!(
                        "a run `{}` is running, and was started with other parameters; stop it first, or give another \
                        name and file",
                        request.name
                    );
                    return Err(StreamRefusal::new(ErrorCode::Busy, text));
                }
                None => return Ok(run),
                Some(_) if same && hears_the_end => return Ok(run),
                // The status of that run is the only record of how the file was made.
                Some(ended) if run.path.symlink_metadata().is_ok() => return Err(run.cannot_begin_again(&ended)),
                Some(_) => {}
            }
        }
        let running = self.runs().iter().filter(|run| run.ended_as().is_none()).count();
        if running >= self.config.runs_max {
            let text = format!("{running} runs are active, the limit of this service; stop one first");
            return Err(StreamRefusal::new(ErrorCode::Limit, text));
        }
        self.check_plugin(&request).map_err(bad)?;
        let path = request::place(&self.home.root, &request.file).map_err(bad)?;
        let run = self.create(asker.record(request), path)?;
        let mut runs = self.runs.lock();
        runs.insert(run.request.name.clone(), Arc::clone(&run));
        self.forget_oldest(&mut runs);
        Ok(run)
    }

    /// Refuses plug-ins outside the configured directory. Loading a library runs its code as the service's user, and
    /// the initiator of a run may be another user.
    fn check_plugin(&self, request: &StartRequest) -> Result<(), String> {
        let Some(plugin) = &request.description.plugin else { return Ok(()) };
        let shown = plugin.library.display();
        let Some(directory) = &self.config.plugins else {
            return Err(format!(
                "cannot load filter plug-in {shown}: this service loads none; start it with `--plugins DIRECTORY`, the \
                directory of the allowed plug-ins"
            ));
        };
        // Symbolic links in the directory were made by users who may write there. A bare name would be resolved
        // elsewhere by the dynamic loader.
        let lies = plugin.library.parent().and_then(|parent| parent.canonicalize().ok());
        if plugin.library.is_absolute() && lies.is_some() && lies == directory.canonicalize().ok() {
            return Ok(());
        }
        Err(format!(
            "`library` {shown} is not in {}, the only directory for filter plug-ins of this service; put it there",
            directory.display()
        ))
    }

    fn forget_oldest(&self, runs: &mut BTreeMap<String, Arc<Run>>) {
        while runs.values().filter(|run| run.ended_as().is_some()).count() > ENDED_MAX {
            let ended = runs.values().filter(|run| run.ended_as().is_some());
            let Some(oldest) = ended.min_by_key(|run| run.started).map(|run| run.request.name.clone()) else { return };
            runs.remove(&oldest);
            if let Err(error) = self.home.forget(&oldest) {
                tracing::warn!("cannot remove the record of an old run: {error}");
            }
        }
    }

    /// Watches for runs whose writers fail and whose clients do not come back.
    fn watch(&self) {
        let mut rounds = 0_u64;
        while !self.is_stopping() {
            std::thread::sleep(WATCH_INTERVAL);
            rounds += 1;
            if rounds % 5 == 1
                && let Some(Err(error)) = self.home.reserve.as_ref().map(Reserve::tend)
            {
                tracing::debug!("cannot determine the store's free space: {error}");
            }
            if rounds.is_multiple_of(TAKE_UP_ROUNDS) {
                self.take_up_waiting();
            }
            for run in self.runs() {
                run.look_after();
            }
        }
    }
}
