//! Writer of one run. Frames pass through a bounded queue to threads that compress them and write them one after the
//! other. A committer syncs the written chunks, marks them in the journal, and publishes them.
//!
//! Invariants: a frame is entered in the journal only after its chunks were written. A mark in the journal covers only
//! what was synced before it. Readers see only what a mark covers. The writer holds a reader's lock on the file, which
//! excludes programs that would open it for writing and truncate it, but no readers.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

mod assemble;
mod buffers;
mod check;
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
mod rounds;
mod settings;
mod shared;
mod stripes;
mod tools;

pub use gather::InlineWrite;
pub use outcome::{Finished, ONE_WRITER, WriteError, WriterProgress};
pub use pipeline::Pipeline;
pub use queue::WaitPolicy;
pub use resume::Resumed;
pub use settings::{Listener, Settings};

use committer::CommitterState;
use extent_source::{ExtentSource, Own};
use shared::PipelineShared;
use std::fs::OpenOptions;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_file::allocate::Allocator;
use varve_detector_file::compact;
use varve_detector_file::journal::Journal;
use varve_detector_file::length::{self, Length};
use varve_detector_file::run_files::{self, give_name, remove_journal, sync_directory, unnamed};
use varve_detector_file::space_reservation::SpaceReservation;
use varve_detector_filters::Plugin;
use varve_detector_hdf5::lock::WrittenFile;

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
        description.complete_arrays();
        let arrays = description.take_array_data();
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let parent = run_files::parent(path);
        if !parent.is_dir() {
            let text = format!("directory {} does not exist: create it first", parent.display());
            return Err(io(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        let (beside, made) = (run_files::journal_of(path), unnamed(path));
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
        run_files::write_arrays(&file, &description, &arrays).map_err(io)?;
        let length = Length::new(bytes);
        let mut catalog = Catalog::new(description.clone());
        let room = SpaceReservation::new(&mut catalog).for_readers_of(settings.reader_age);
        let own = Own::new(allocator, length, journal, room);
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
        let committer = named.spawn(move || committer::run(&shared, shared.own(), committed))?;
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
        let end = committed.publish(file, self.shared.own()).map_err(|error| io(error.into()))?;
        let holes = self.shared.own().give_back(file, end).map_err(io)?;
        file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
        let path = &self.shared.path;
        let copied = match self.shared.settings.replaces_file {
            true => compact::copy_if_possible(path, file, &mut committed.catalog, (end, holes)),
            false => None,
        };
        remove_journal(path).map_err(io)?;
        let file_bytes = compact::take_name_if_possible(copied, path, file).unwrap_or(end);
        Ok(Finished { counts: committed.catalog.counts(), file_bytes, dropped: progress.dropped })
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
        let published = committed.publish(&self.shared.file, self.shared.own());
        published.map(drop).map_err(|error| io(error.into()))
    }

    fn join(&mut self) -> io::Result<CommitterState> {
        let committer = self.committer.take().expect("joined once");
        self.pipeline.end(committer)
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
