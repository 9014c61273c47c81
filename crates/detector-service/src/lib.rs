//! The detector service: it receives frames over detectors' connections and writes them to files.
//!
//! Each connection has a receiving and a sending thread; each run has its writer's threads. Runs outlive the service:
//! records below its directory list the runs that the next service takes up.
//!
//! Invariants: a frame is acknowledged at a level only after the writer reports that level. While the queue of a run is
//! full, its connections are not read. Every end of a run leaves a valid file. Entry: [`Service::start`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

mod board;
mod bound;
mod clients;
mod config;
mod count_guard;
mod files;
pub mod host_check;
mod http;
mod lock;
mod metrics;
mod pva;
mod receive;
mod records;
mod request;
mod run;
mod shared;
mod sink;
mod stream2;
mod threads;
mod tries;
mod writer_share;

pub use board::ProgressBoard;
pub use config::{Config, Joining, MetadataSource, Protection, ServiceError};
pub use http::OPENAPI;
pub use pva::{PvaServer, PvaTarget};
pub use records::{EndKind, RunEnd};
pub use request::StartRequest;
pub use run::{Run, RunStatus, Unfinished};
pub use shared::ServiceShared;
pub use writer_share::WriterShareOptions;

use crate::host_check::HostCheck;
use bound::Listening;
use lock::Lock;
use parking_lot::Mutex;
use records::{RunRecord, RunRecords};
use run::RunContext;
use sink::RunSink;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use threads::named;
use tries::Tries;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_file::{journal, run_files};
use varve_detector_stream::token::Published;
use varve_detector_stream::{ErrorCode, StreamRefusal};
use varve_detector_writer::join::{Coordinator, Joined};
use varve_env::reserve::Reserve;
use writer_share::{CoordinatorHandle, WriterShare};

/// How long a stop waits for clients to receive the notification.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(3);
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
            fields_unknown: AtomicU64::new(0),
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
        let kept = journal::read_head(&run_files::journal_of(&path)).map_err(|error| elsewhere(error.to_string()))?;
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

    /// Receives frames from the PV `target`, one run per acquisition, until the service stops. If the server is absent,
    /// the service waits for it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn take_pva(&mut self, target: PvaTarget) -> io::Result<()> {
        self.threads.push(pva::start(&self.shared, target)?);
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

/// A run that exists when the service starts.
enum KnownRun {
    Record(Box<RunRecord>),
    Share(String, Arc<Run>),
}
