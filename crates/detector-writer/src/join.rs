//! A process that writes its share of the frames to a file that another process commits. It compresses and writes by
//! itself, to extents that the [`Coordinator`] grants. It syncs its writes before it reports them, so that the
//! coordinator, which may be on another host, can acknowledge them as durable.

pub use super::extent_source::Coordinator;

use super::extent_source::{ExtentSource, Joint};
use super::outcome::{ONE_WRITER, WriteError};
use super::pipeline::Pipeline;
use super::settings::{Listener, Settings};
use super::shared::{PipelineShared, reached};
use std::fs::OpenOptions;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use varve_detector_dataset::dataset_spec::{Allocate, DatasetSpec};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_hdf5::lock::WrittenFile;

/// A share of a run being written. Regions of one frame must be sent to one process, and frames that share chunks
/// should be.
pub struct Joined {
    pipeline: Pipeline,
    reporter: Option<JoinHandle<io::Result<()>>>,
}

impl Deref for Joined {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl Joined {
    /// Opens the file of a run, which the coordinator created, and starts the threads. `listener` is notified only of
    /// level memory; the other levels come from the coordinator.
    ///
    /// # Errors
    /// If the file cannot be opened for writing.
    pub fn join(
        path: &Path,
        description: DatasetSpec,
        settings: Settings,
        (epoch, coordinator): (u32, Arc<dyn Coordinator>),
        listener: Arc<dyn Listener>,
    ) -> Result<Joined, WriteError> {
        description.check()?;
        if description.allocate == Allocate::Implicit {
            return Err(WriteError::Failed(ONE_WRITER.into()));
        }
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).and_then(WrittenFile::new).map_err(io)?;
        let ground = ExtentSource::Joint(Joint::new(epoch, coordinator));
        let shared = Arc::new(PipelineShared::new((path, file), description, settings, ground, listener)?);
        let pipeline = Pipeline::start(Arc::clone(&shared)).map_err(io)?;
        let reporter = std::thread::Builder::new().name("report".into()).spawn(move || report(&shared)).map_err(io)?;
        Ok(Joined { pipeline, reporter: Some(reporter) })
    }

    /// Writes, syncs and reports all frames taken.
    ///
    /// # Errors
    /// If any frame was not reported: it is not in the file.
    pub fn leave(mut self) -> Result<(), WriteError> {
        self.end().map_err(|source| WriteError::Io { path: self.shared.path.clone(), source })?;
        self.shared.failure().map_or(Ok(()), |failure| Err(WriteError::Failed(failure)))
    }

    fn end(&mut self) -> io::Result<()> {
        match self.reporter.take() {
            Some(reporter) => self.pipeline.end(reporter),
            None => Ok(()),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(path = %self.shared.path.display(), "this share of the run ended with an error: {error}");
        }
    }
}

/// The reporting thread: syncs and reports written chunks at each interval and at the end.
fn report(shared: &PipelineShared) -> io::Result<()> {
    let ExtentSource::Joint(joint) = &shared.ground else {
        return Err(io::Error::other("only a process that joined reports"));
    };
    shared.rounds("reporting what was written to", |_last| round(shared, joint))
}

fn round(shared: &PipelineShared, joint: &Joint) -> io::Result<()> {
    let _reporting = joint.reporting.lock();
    let chunk_groups = std::mem::take(&mut *joint.waiting.lock());
    let rows = shared.rows.lock().take();
    if chunk_groups.is_empty() && rows.is_empty() {
        return Ok(());
    }
    if !chunk_groups.is_empty() {
        shared.file.sync_data()?;
    }
    let reached = reached(&chunk_groups);
    joint.coordinator.report(chunk_groups.into_iter().map(JournalEntry::ChunkGroup).chain(rows).collect())?;
    // A chunk group that was extended is reported again with all its frames.
    let new =
        reached.iter().filter(|(frame, missing)| shared.levels.raise(*frame, missing, AckLevel::Written) == Some(true));
    shared.progress.lock().written += new.count() as u64;
    Ok(())
}

impl Joint {
    /// Reports the waiting rows. On return, all rows that were waiting before are in the coordinator's journal.
    pub(super) fn report_rows(&self, shared: &PipelineShared) -> io::Result<()> {
        let _reporting = self.reporting.lock();
        let rows = shared.rows.lock().take();
        if rows.is_empty() { Ok(()) } else { self.coordinator.report(rows) }
    }
}
