//! Service state that connections and the HTTP interface use.

use super::config::Config;
use super::pva::PvaSource;
use super::records::{RunRecord, TakenSeries};
use super::request::{self, StartRequest};
use super::run::{Run, RunContext};
use super::tries::Tries;
use crate::host_check::HostCheck;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;
use varve_detector_stream::{ErrorCode, StreamRefusal, token};
use varve_env::reserve::Reserve;

/// How often the watch thread looks for failed writers and absent clients.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Number of watch rounds between attempts to take up waiting runs.
const TAKE_UP_ROUNDS: u64 = 25;
/// Number of ended runs that the service remembers.
const ENDED_MAX: usize = 100;

/// The state of one service.
pub struct ServiceShared {
    pub config: Config,
    pub(super) hosts: HostCheck,
    pub(super) tries: Tries,
    pub(super) home: Arc<RunContext>,
    pub(super) runs: Mutex<BTreeMap<String, Arc<Run>>>,
    /// Images of detectors that no run has kept.
    pub(super) images_passed_over: AtomicU64,
    /// Fields in messages of detectors that are not in the format's description, or could not be kept.
    pub(super) fields_unknown: AtomicU64,
    /// Held while a run begins.
    pub(super) beginning: Mutex<()>,
    pub(super) connections: AtomicUsize,
    /// Connections beyond the limit that are being refused.
    pub(super) turned_away: AtomicUsize,
    pub(super) stopping: AtomicBool,
}

/// The initiator of a run.
pub(super) enum Asker<'a> {
    Control,
    Client(&'a [u8; 16]),
    Detector(Box<TakenSeries>),
    Pva(PvaSource),
}

impl Asker<'_> {
    /// The record of a run that begins with this request.
    pub(super) fn record(&self, request: StartRequest) -> RunRecord {
        let record = RunRecord::of(request);
        match self {
            Asker::Detector(taken) => RunRecord { series: Some(taken.clone()), ..record },
            Asker::Pva(source) => RunRecord { pva: Some(source.clone()), ..record },
            Asker::Client(_) => RunRecord { by_client: true, ..record },
            Asker::Control => record,
        }
    }
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

    pub(super) fn begin_for(&self, request: StartRequest, asker: &Asker<'_>) -> Result<Arc<Run>, StreamRefusal> {
        let bad = |text: String| StreamRefusal::new(ErrorCode::Description, text);
        request.check().map_err(bad)?;
        let request = self.with_plugin_path(request);
        if self.is_stopping() {
            return Err(StreamRefusal::new(ErrorCode::Stopping, "the service is stopping"));
        }
        // Held until the run is created, so that of two equal requests one creates the run and the other finds it. A
        // store that hangs then blocks only the beginning of runs.
        let _beginning = self.beginning.lock();
        if let Some(run) = self.run(&request.name) {
            let (same, ended) = (run.request.is_same(&request), run.ended_as());
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
        if request.directories > 0 {
            request::create_directories(&self.home.root, &request.file, request.directories).map_err(bad)?;
        }
        let path = request::place(&self.home.root, &request.file).map_err(bad)?;
        let run = self.create(asker.record(request), path)?;
        let mut runs = self.runs.lock();
        runs.insert(run.request.name.clone(), Arc::clone(&run));
        self.forget_oldest(&mut runs);
        Ok(run)
    }

    /// Completes the bare name of a plug-in that lies in the directory for plug-ins.
    fn with_plugin_path(&self, mut request: StartRequest) -> StartRequest {
        let directory = self.config.plugins.as_ref().and_then(|directory| directory.canonicalize().ok());
        if let (Some(plugin), Some(directory)) = (&mut request.description.plugin, directory)
            && plugin.library.components().count() == 1
            && directory.join(&plugin.library).is_file()
        {
            plugin.library = directory.join(&plugin.library);
        }
        request
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
            "`library` {shown} is not in {}, the only directory for filter plug-ins of this service; put it there, and \
            give its name or its absolute path",
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
    pub(super) fn watch(&self) {
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
