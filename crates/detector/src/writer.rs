//! One run being written: frames go through a bounded queue to threads that compress and write them, each to extents of
//! its own; a committer syncs what was written, says so in the journal, and publishes it.
//!
//! Invariants: a frame is in the journal only after its chunks were written; a mark in the journal covers only what was
//! synced before it; readers see only what a mark covers. The file is never locked, for readers lock it.

mod committer;
mod gather;
mod intake;
pub mod join;
mod queue;
mod resume;
mod split;

pub use resume::Resumed;

use crate::allocate::Allocator;
use crate::catalog::{Catalog, Counts};
use crate::commit;
use crate::description::{BadDescription, Description};
use crate::frame::{Frame, Level, Nanoseconds};
use crate::journal::{self, Entry, Journal};
use crate::length::{self, Length};
use crate::recover::RecoverError;
use join::Coordinator;
use parking_lot::{Condvar, Mutex};
use queue::Queue;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;
use varve_world::clock::{Clock, RealClock};

/// Extents begin at whole pages, which is what hosts must not share.
pub const ALIGN_BYTES: u64 = 4096;
/// The index of an array has 32 bits.
const CHUNKS_MAX: u64 = u32::MAX as u64;
/// How far a frame's number may be above all before it. A number read wrong must not make tables of that length.
const JUMP_MAX: u64 = 1 << 22;
/// Rows of scalars that wait for the committer, who takes them several times a second.
const ROWS_MAX: usize = 1 << 20;

/// How a run is written; not what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Threads that compress and write.
    pub threads: usize,
    /// Frames that wait take at most so many bytes; at least one frame is always taken.
    pub queue_bytes: usize,
    /// Chunks are gathered into writes of this length, which the store takes best: its stripe.
    pub stripe_bytes: u64,
    /// What a thread takes from the file at a time.
    pub extent_bytes: u64,
    /// How long what was written may wait to be synced and published.
    pub commit_interval: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Settings {
            threads,
            queue_bytes: 256 << 20,
            stripe_bytes: 4 << 20,
            extent_bytes: 64 << 20,
            commit_interval: Duration::from_millis(500),
        }
    }
}

/// Is told which frames have reached a level; called by the writer's threads, must not wait.
pub type Acknowledge = Arc<dyn Fn(Level, &[u64]) + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Description(#[from] BadDescription),
    #[error("{path} exists; a run never writes over a file: move it away or give another name")]
    Exists { path: PathBuf },
    #[error(
        "{path} is the journal of a run that did not end in order, or still runs; \
         run `varve record recover` on the file beside it first"
    )]
    Unfinished { path: PathBuf },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Resume(#[from] RecoverError),
    /// The run as a whole has failed and takes no more frames.
    #[error("the run has failed and takes no more frames: {0}")]
    Failed(String),
    /// This frame cannot be written; the run goes on.
    #[error("frame {number} is refused: {why}")]
    Frame { number: u64, why: String },
    /// No room within the time given.
    #[error("the queue stayed full: frames come faster than they are compressed and written")]
    Full,
}

/// A run's progress.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Progress {
    /// Frames taken, by the level that they have reached at least.
    pub taken: u64,
    pub written: u64,
    pub durable: u64,
    /// Frames refused because the queue was full.
    pub dropped: u64,
    pub stored_bytes: u64,
    /// The highest frame that readers find, plus one.
    pub published: u64,
    pub failure: Option<String>,
}

/// What a finished run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finished {
    #[serde(flatten)]
    pub counts: Counts,
    pub file_bytes: u64,
    pub dropped: u64,
}

/// What the threads share.
struct Shared {
    path: PathBuf,
    file: File,
    /// Which writer of the run this is: 0 made the file.
    epoch: u32,
    description: Description,
    settings: Settings,
    space: Space,
    queue: Queue,
    ledger: Mutex<Ledger>,
    rows: Mutex<Vec<Entry>>,
    highest: AtomicU64,
    progress: Mutex<Progress>,
    stop: Mutex<bool>,
    stopped: Condvar,
    acknowledge: Acknowledge,
}

/// Where extents come from.
enum Space {
    /// This process commits the file.
    Own { allocator: Allocator, length: Length },
    /// Another one does, and hands out extents that the file is long enough for.
    Granted(Arc<dyn Coordinator>),
}

/// What has been written and not yet synced, and the journal that says so; a process that joined has none.
struct Ledger {
    journal: Option<Journal>,
    unsynced: Vec<Entry>,
}

impl Shared {
    /// An extent of at least `bytes` that nobody else writes to.
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>> {
        match &self.space {
            Space::Own { allocator, length } => {
                let extent = allocator.extent(bytes);
                length.ensure(&self.file, extent.end)?;
                Ok(extent)
            }
            Space::Granted(coordinator) => coordinator.extent(bytes),
        }
    }

    fn publish(&self, catalog: &mut Catalog) -> io::Result<u64> {
        let Space::Own { allocator, length } = &self.space else {
            return Err(io::Error::other("only the process that made the file commits it"));
        };
        commit::publish(&self.file, length, allocator, catalog)
    }

    /// Takes note of what has been written to the file. Whether it is *written* already: it has a record in the journal.
    fn enter(&self, entries: Vec<Entry>) -> io::Result<bool> {
        let mut ledger = self.ledger.lock();
        if let Some(journal) = &mut ledger.journal {
            journal.append(&entries)?;
        }
        ledger.unsynced.extend(entries);
        Ok(ledger.journal.is_some())
    }

    /// Nothing more is taken; what has been published stays.
    fn fail(&self, why: String) {
        tracing::error!(path = %self.path.display(), "the run has failed: {why}");
        self.progress.lock().failure.get_or_insert(why);
        self.queue.close();
    }
}

/// Nanoseconds since 1970.
pub fn now() -> Nanoseconds {
    let now = RealClock::new().now();
    u64::try_from(now.seconds).unwrap_or(0) * 1_000_000_000 + u64::from(now.nanoseconds)
}

/// Removes the journal of the file at `path`, for good.
pub(crate) fn remove_journal(path: &Path) -> io::Result<()> {
    std::fs::remove_file(journal::path_beside(path))?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// A run being written, by the process that commits its file.
pub struct Writer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    committer: Option<JoinHandle<io::Result<Catalog>>>,
}

/// The threads that compress and write.
fn spawn_writing(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let spawn = |number| {
        let mine = Arc::clone(shared);
        std::thread::Builder::new().name(format!("write-{number}")).spawn(move || gather::run(&mine))
    };
    (0..shared.settings.threads.max(1)).map(spawn).collect()
}

impl Shared {
    fn new(
        (path, file): (&Path, File),
        description: Description,
        settings: Settings,
        (space, journal): (Space, Option<Journal>),
        acknowledge: Acknowledge,
    ) -> Shared {
        Shared {
            path: path.to_owned(),
            file,
            epoch: 0,
            queue: Queue::new(settings.queue_bytes),
            description,
            settings,
            space,
            ledger: Mutex::new(Ledger { journal, unsynced: Vec::new() }),
            rows: Mutex::new(Vec::new()),
            highest: AtomicU64::new(0),
            progress: Mutex::new(Progress::default()),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            acknowledge,
        }
    }

    /// Ends the writing threads, then the one that syncs.
    fn close<T>(&self, threads: &mut Vec<JoinHandle<()>>, syncing: JoinHandle<io::Result<T>>) -> io::Result<T> {
        self.queue.close();
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                self.fail("a writing thread has panicked".into());
            }
        }
        *self.stop.lock() = true;
        self.stopped.notify_all();
        syncing.join().unwrap_or_else(|_| {
            self.fail("the thread that syncs has panicked".into());
            Err(io::Error::other("the thread that syncs has panicked"))
        })
    }
}

impl Writer {
    /// Makes the file and its journal, both valid from then on, and starts the threads.
    ///
    /// # Errors
    /// If the description is bad, the file or a journal exists, or they cannot be made.
    pub fn create(
        path: &Path,
        description: Description,
        settings: Settings,
        acknowledge: Acknowledge,
    ) -> Result<Writer, WriteError> {
        description.check()?;
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let beside = journal::path_beside(path);
        let mut new = OpenOptions::new();
        new.append(true).create_new(true);
        if path.try_exists().map_err(io)? {
            return Err(WriteError::Exists { path: path.to_owned() });
        }
        let journal = new.open(&beside).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::Unfinished { path: beside.clone() },
            _ => WriteError::Io { path: beside.clone(), source },
        })?;
        let mut journal = Journal::lock(journal).map_err(io)?;
        journal.write_head(&description).and_then(|()| journal.handle()?.sync_all()).map_err(io)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(io)?;
        let allocator = Allocator::new(ALIGN_BYTES, ALIGN_BYTES);
        // No reader has opened it before: its first length needs no time to settle.
        file.set_len(length::STEP_BYTES).map_err(io)?;
        let length = Length::new(length::STEP_BYTES);
        let mut catalog = Catalog::new(description.clone());
        commit::publish(&file, &length, &allocator, &mut catalog).and_then(|_| sync_directory(path)).map_err(io)?;
        let own = (Space::Own { allocator, length }, Some(journal));
        let shared = Shared::new((path, file), description, settings, own, acknowledge);
        Writer::start(Arc::new(shared), catalog).map_err(io)
    }

    fn start(shared: Arc<Shared>, catalog: Catalog) -> io::Result<Writer> {
        let threads = spawn_writing(&shared)?;
        let mine = Arc::clone(&shared);
        let committer =
            std::thread::Builder::new().name("commit".into()).spawn(move || committer::run(&mine, catalog))?;
        Ok(Writer { shared, threads, committer: Some(committer) })
    }

    /// Gives a frame to the run. Waits until there is room for it, but not longer than `wait`.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if this frame cannot be written, [`WriteError::Full`] if there was no room in time: it is
    /// counted as dropped; [`WriteError::Failed`] if the run has failed.
    pub fn submit(&self, frame: Frame, wait: Duration) -> Result<(), WriteError> {
        self.shared.submit(frame, wait)
    }

    /// Scalars of a frame, by column; they may come before the frame, after it, or without it, until the run is finished.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if there is no such column or frame, [`WriteError::Full`] if a million rows wait already.
    pub fn scalars(&self, frame: u64, values: Vec<(u32, f64)>) -> Result<(), WriteError> {
        self.shared.scalars(frame, values)
    }

    /// A frame came again, and the first is kept.
    ///
    /// # Errors
    /// As of [`Writer::scalars`].
    pub fn mark_duplicate(&self, frame: u64) -> Result<(), WriteError> {
        self.shared.row(frame, Entry::Duplicate { frame })
    }

    /// A frame came, but not whole; it may come again.
    ///
    /// # Errors
    /// As of [`Writer::scalars`].
    pub fn mark_damaged(&self, frame: u64) -> Result<(), WriteError> {
        self.shared.row(frame, Entry::Damaged { frame })
    }

    /// An extent for another process that writes into this file; see [`join`].
    ///
    /// # Errors
    /// If the file cannot be made longer.
    pub fn grant(&self, bytes: u64) -> io::Result<Range<u64>> {
        self.shared.extent(bytes)
    }

    /// Enters what another process has written to its extents and synced.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if a frame cannot be one of this run; nothing is entered then. [`WriteError::Failed`] if the
    /// run has failed, as it has if the journal cannot be written.
    pub fn report(&self, entries: Vec<Entry>) -> Result<(), WriteError> {
        self.shared.report(entries)
    }

    pub fn description(&self) -> &Description {
        &self.shared.description
    }

    /// Takes nothing more; who waits for room is refused. What was taken is still written.
    pub fn close(&self) {
        self.shared.queue.close();
    }

    pub fn progress(&self) -> Progress {
        self.shared.progress.lock().clone()
    }

    /// Writes, syncs and publishes all frames taken, cuts the file to its length and removes the journal.
    ///
    /// # Errors
    /// If the run failed: the file is valid as of its last commit, and its journal, which stays, recovers the rest.
    pub fn finish(mut self) -> Result<Finished, WriteError> {
        let catalog = self.join();
        let io = |source| WriteError::Io { path: self.shared.path.clone(), source };
        let progress = self.progress();
        if let Some(failure) = progress.failure {
            return Err(WriteError::Failed(failure));
        }
        let mut catalog = catalog.map_err(io)?;
        let file = &self.shared.file;
        let end = self.shared.publish(&mut catalog).map_err(io)?;
        file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
        remove_journal(&self.shared.path).map_err(io)?;
        Ok(Finished { counts: catalog.counts(), file_bytes: end, dropped: progress.dropped })
    }

    fn join(&mut self) -> io::Result<Catalog> {
        let committer = self.committer.take().expect("joined once");
        self.shared.close(&mut self.threads, committer)
    }
}

impl Drop for Writer {
    /// A run that is let go without [`Writer::finish`] is left as after a crash: valid, with its journal.
    fn drop(&mut self) {
        if self.committer.is_some()
            && let Err(error) = self.join()
        {
            tracing::warn!(path = %self.shared.path.display(), "the run ended with an error: {error}");
        }
    }
}
