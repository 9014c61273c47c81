//! Writer of one run. Frames pass through a bounded queue to threads that compress them and write them one after the
//! other. A committer syncs the written chunks, marks them in the journal, and publishes them.
//!
//! Invariants: a frame is entered in the journal only after its chunks were written. A mark in the journal covers only
//! what was synced before it. Readers see only what a mark covers. The writer holds a reader's lock on the file, which
//! excludes programs that would open it for writing and truncate it, but no readers.

mod assemble;
mod buffers;
pub(crate) mod check;
mod chunk_group;
mod committer;
mod coordinate;
mod extent_source;
mod gather;
pub mod join;
mod levels;
mod outcome;
mod pipeline;
mod queue;
mod resume;
mod stripes;

pub(crate) use coordinate::ONE_WRITER;
pub use gather::InlineWrite;
pub use outcome::{Finished, WriteError, WriterProgress};
pub use pipeline::Pipeline;
pub use queue::WaitPolicy;
pub use resume::Resumed;

use crate::allocate::Allocator;
use crate::catalog::Catalog;
use crate::dataset_spec::DatasetSpec;
use crate::filters::Plugin;
use crate::frame::{AckLevel, Nanoseconds};
use crate::hdf5::lock::WrittenFile;
use crate::journal::{self, Journal, JournalEntry};
use crate::length::{self, Length};
use crate::space_reservation::SpaceReservation;
use committer::CommitterState;
use extent_source::{ExtentSource, Own};
use pipeline::PipelineShared;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use varve_env::clock::{Clock, RealClock};

/// How a run is written, independent of its dataset spec.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of threads that compress and write.
    pub threads: usize,
    /// Upper limit for the bytes of queued frames; a single frame is always accepted.
    pub queue_bytes: usize,
    /// Stripe size of the store. Chunks are gathered into writes that end at stripe boundaries.
    pub stripe_bytes: u64,
    /// Size of an extent that a joined process requests once it has written much.
    pub extent_bytes: u64,
    /// Longest time between a write and its sync and publication.
    pub commit_interval: Duration,
    /// When taken but not durable frames exceed this many plain bytes and a client waits for them, the commit does not
    /// wait for its interval, because the client keeps its copies until then and has limited memory.
    pub pressing_bytes: u64,
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
            pressing_bytes: 32 << 20,
        }
    }
}

/// Receiver of progress notifications. The writer's threads call it, so it must not block.
pub trait Listener: Send + Sync {
    /// Called when these frames have reached the level. For a frame with several regions it is called each time some of
    /// its regions have reached the level; [`Pipeline::level`] says which.
    fn reached(&self, level: AckLevel, numbers: &[u64]);

    /// Whether any client keeps frames until they are at this level or a higher one.
    fn waits_for(&self, level: AckLevel) -> bool;
}

/// Ignores all notifications.
impl Listener for () {
    fn reached(&self, _: AckLevel, _: &[u64]) {}

    fn waits_for(&self, _: AckLevel) -> bool {
        false
    }
}

/// Waits for every level.
impl<F: Fn(AckLevel, &[u64]) + Send + Sync> Listener for F {
    fn reached(&self, level: AckLevel, numbers: &[u64]) {
        self(level, numbers);
    }

    fn waits_for(&self, _: AckLevel) -> bool {
        true
    }
}

/// Nanoseconds since 1970.
pub fn unix_nanos() -> Nanoseconds {
    let now = RealClock::new().now();
    u64::try_from(now.seconds).unwrap_or(0) * 1_000_000_000 + u64::from(now.nanoseconds)
}

/// Removes the journal of the file at `path` durably.
pub(crate) fn remove_journal(path: &Path) -> io::Result<()> {
    // Left behind if the run was killed after the file got its name by a hard link.
    let unnamed = unnamed(path);
    if unnamed.symlink_metadata().is_ok() && journal::is_same(&unnamed, path)? {
        std::fs::remove_file(&unnamed)?;
    }
    // Left behind if a service was killed while it took up the run.
    remove_if_there(&rewritten(path))?;
    std::fs::remove_file(journal::path_beside(path))?;
    sync_directory(path)
}

/// `FILE.journal.new`: the new journal of a run that is being taken up. Only the holder of the current journal writes
/// it.
fn rewritten(path: &Path) -> PathBuf {
    unnamed(&journal::path_beside(path))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// `FILE.new`: a run's file before it can be opened. Only the holder of the journal creates it; an existing file of
/// this name is not the run's.
pub(crate) fn unnamed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Removes the remains of an interrupted start, in which the journal exists and the file does not.
pub(crate) fn remove_unnamed(path: &Path) -> io::Result<()> {
    remove_if_there(&unnamed(path))
}

/// Renames the file `made` to `path` unless that name is taken, with the first method that the store supports.
fn give_name(made: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    let renamed = renameat_with(CWD, made, CWD, path, RenameFlags::NOREPLACE).map_err(io::Error::from);
    if renamed.is_ok() || renamed.as_ref().is_err_and(taken) {
        return renamed;
    }
    match std::fs::hard_link(made, path) {
        // If this fails, the file is removed together with the journal.
        Ok(()) => std::fs::remove_file(made).or(Ok(())),
        Err(error) if taken(&error) => Err(error),
        // The journal excludes other runs, so the check and the rename need not be atomic.
        Err(_) if path.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(made, path),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Files of a run that has not started yet. Nothing has been acknowledged, so they are removed if the start fails.
struct New<'p>(Vec<&'p Path>);

impl Drop for New<'_> {
    fn drop(&mut self) {
        // The journal is removed last, because a file without a journal would be taken for finished.
        for path in self.0.iter().rev() {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!("cannot remove {} of a run that did not start: {error}", path.display());
            }
        }
    }
}

/// A run being written by the process that began it.
pub struct Writer {
    pipeline: Pipeline,
    committer: Option<JoinHandle<io::Result<CommitterState>>>,
}

impl Deref for Writer {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl Writer {
    /// Creates the file and its journal, both valid from then on, and starts the threads.
    ///
    /// # Errors
    /// If the dataset spec is invalid, `FILE`, `FILE.new` or a journal exists, or they cannot be created.
    pub fn create(
        path: &Path,
        mut description: DatasetSpec,
        settings: Settings,
        listener: Arc<dyn Listener>,
    ) -> Result<Writer, WriteError> {
        description.check()?;
        description.check_begin()?;
        if let Some(choice) = &mut description.plugin {
            let plugin = Plugin::load(choice)?;
            choice.registered = Some(plugin.registered.clone());
            if !plugin.decodes && (description.chunk_group_frames() > 1 || !description.sources.is_empty()) {
                return Err(WriteError::Failed(
                    "the plug-in cannot decompress, which chunks of several frames or sources need: let a chunk hold \
                    one frame of one source"
                        .into(),
                ));
            }
        }
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let parent = parent(path);
        if !parent.is_dir() {
            let text = format!("directory {} does not exist: create it first", parent.display());
            return Err(io(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        let (beside, made) = (journal::path_beside(path), unnamed(path));
        let mut appended = OpenOptions::new();
        appended.append(true).create_new(true);
        if path.try_exists().map_err(io)? {
            return Err(WriteError::Exists { path: path.to_owned() });
        }
        let journal = appended.open(&beside).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::Unfinished { path: beside.clone() },
            _ => WriteError::Io { path: beside.clone(), source },
        })?;
        let mut new = New(vec![&beside]);
        let mut journal = Journal::lock(journal).map_err(io)?;
        journal
            .write_head(&description)
            .and_then(|()| journal.append(&[JournalEntry::Granted { end: 0 }]))
            .and_then(|()| journal.handle()?.sync_all())
            .map_err(io)?;
        // The file gets its name only when it can be opened, because a program that waits for the name opens it at
        // once.
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&made);
        let file = file.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::Exists { path: made.clone() },
            _ => io(source),
        })?;
        new.0.push(&made);
        let file = WrittenFile::new(file).map_err(io)?;
        let allocator = Allocator::new(description.first_address());
        // No reader has opened it before, so its first length needs no delay.
        let bytes = description.first_address() + length::STEP_BYTES;
        file.set_len(bytes).map_err(io)?;
        let length = Length::new(bytes);
        let mut catalog = Catalog::new(description.clone());
        let own = Own::new(allocator, length, journal, SpaceReservation::new(&mut catalog));
        let mut committed = CommitterState::new(catalog);
        committed.publish(&file, &own).map_err(|error| io(error.into()))?;
        give_name(&made, path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::Exists { path: path.to_owned() },
            _ => io(source),
        })?;
        new.0 = vec![&beside, path];
        sync_directory(path).map_err(io)?;
        let shared =
            PipelineShared::new((path, file), description, settings, ExtentSource::Own(Box::new(own)), listener)?;
        new.0.clear();
        Writer::start(Arc::new(shared), committed).map_err(io)
    }

    fn start(shared: Arc<PipelineShared>, committed: CommitterState) -> io::Result<Writer> {
        let pipeline = Pipeline::start(Arc::clone(&shared))?;
        let named = std::thread::Builder::new().name("commit".into());
        let committer = named.spawn(move || committer::run(&shared, own(&shared), committed))?;
        Ok(Writer { pipeline, committer: Some(committer) })
    }

    /// Writes, syncs and publishes all frames taken, truncates the file to its length and removes the journal. Frames
    /// of a bounded scan that did not arrive are missing, up to the scan's last frame.
    ///
    /// # Errors
    /// If the run failed. The file is then valid as of its last commit, and its journal remains for recovery.
    pub fn finish(self) -> Result<Finished, WriteError> {
        self.end(true)
    }

    /// Same as [`Writer::finish`], for a run that was given up: the file ends with the last received frame.
    ///
    /// # Errors
    /// Same as [`Writer::finish`].
    pub fn give_up(self) -> Result<Finished, WriteError> {
        self.end(false)
    }

    /// [`Writer::finish`] if `complete`, else [`Writer::give_up`].
    ///
    /// # Errors
    /// Same as [`Writer::finish`].
    pub fn end(mut self, complete: bool) -> Result<Finished, WriteError> {
        let committed = self.join();
        let io = |source| WriteError::Io { path: self.shared.path.clone(), source };
        let progress = self.progress();
        if let Some(failure) = progress.failure {
            return Err(WriteError::Failed(failure));
        }
        let mut committed = committed.map_err(io)?;
        if complete {
            committed.catalog.complete();
        }
        committed.catalog.keep_rows();
        let file = &self.shared.file;
        let end = committed.publish(file, own(&self.shared)).map_err(|error| io(error.into()))?;
        own(&self.shared).give_back(file, end).map_err(io)?;
        file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
        remove_journal(&self.shared.path).map_err(io)?;
        Ok(Finished { counts: committed.catalog.counts(), file_bytes: end, dropped: progress.dropped })
    }

    /// Writes, syncs and publishes all frames taken, and leaves the run unfinished for [`Writer::resume`].
    ///
    /// # Errors
    /// Same as [`Writer::finish`].
    pub fn leave(mut self) -> Result<(), WriteError> {
        let committed = self.join();
        if let Some(failure) = self.shared.failure() {
            return Err(WriteError::Failed(failure));
        }
        let io = |source| WriteError::Io { path: self.shared.path.clone(), source };
        let mut committed = committed.map_err(io)?;
        let published = committed.publish(&self.shared.file, own(&self.shared));
        published.map(drop).map_err(|error| io(error.into()))
    }

    fn join(&mut self) -> io::Result<CommitterState> {
        let committer = self.committer.take().expect("joined once");
        self.pipeline.end(committer)
    }
}

fn own(shared: &PipelineShared) -> &Own {
    match &shared.ground {
        ExtentSource::Own(own) => own,
        ExtentSource::Joint(_) => unreachable!("who began the run has its journal"),
    }
}

impl Drop for Writer {
    /// A run that is dropped without [`Writer::finish`] or [`Writer::leave`] is left as after a crash: valid, with its
    /// journal.
    fn drop(&mut self) {
        if self.committer.is_some()
            && let Err(error) = self.join()
        {
            tracing::warn!(path = %self.shared.path.display(), "the run ended with an error: {error}");
        }
    }
}
