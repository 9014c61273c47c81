//! A process that writes its share of the frames into a file that another one commits. It compresses and writes by itself,
//! into extents that the [`Coordinator`] grants; it syncs what it wrote before it reports it, so that the coordinator,
//! who may be on another host, can say *durable* truthfully.

use super::{Acknowledge, Progress, Settings, Shared, Space, WriteError, spawn_writing};
use crate::description::Description;
use crate::frame::Frame;
use crate::journal::Entry;
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The process that commits the file, as one that joined sees it.
pub trait Coordinator: Send + Sync {
    /// An extent of at least `bytes` that nobody else is given ever, within the file's length.
    ///
    /// # Errors
    /// If there is none to be had: the run has ended, or the coordinator does not come back.
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>>;

    /// Tells what lies in the file and has been synced. Returns once it is in the coordinator's journal.
    ///
    /// # Errors
    /// As of [`Coordinator::extent`].
    fn report(&self, entries: Vec<Entry>) -> io::Result<()>;
}

/// A share of a run being written.
pub struct Joined {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    reporter: Option<JoinHandle<io::Result<()>>>,
}

impl Joined {
    /// Opens the file of a run, which the coordinator made, and starts the threads. `acknowledge` is told of level
    /// memory only: the others come from the coordinator.
    ///
    /// # Errors
    /// If the file cannot be opened for writing.
    pub fn join(
        path: &Path,
        description: Description,
        settings: Settings,
        (epoch, coordinator): (u32, Arc<dyn Coordinator>),
        acknowledge: Acknowledge,
    ) -> Result<Joined, WriteError> {
        description.check()?;
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let granted = (Space::Granted(coordinator), None);
        let shared = Shared { epoch, ..Shared::new((path, file), description, settings, granted, acknowledge) };
        let shared = Arc::new(shared);
        let threads = spawn_writing(&shared).map_err(io)?;
        let mine = Arc::clone(&shared);
        let reporter = std::thread::Builder::new().name("report".into()).spawn(move || report(&mine)).map_err(io)?;
        Ok(Joined { shared, threads, reporter: Some(reporter) })
    }

    /// As [`super::Writer::submit`].
    ///
    /// # Errors
    /// As of it.
    pub fn submit(&self, frame: Frame, wait: Duration) -> Result<(), WriteError> {
        self.shared.submit(frame, wait)
    }

    /// As [`super::Writer::scalars`].
    ///
    /// # Errors
    /// As of it.
    pub fn scalars(&self, frame: u64, values: Vec<(u32, f64)>) -> Result<(), WriteError> {
        self.shared.scalars(frame, values)
    }

    /// A mark on a frame, for the coordinator.
    ///
    /// # Errors
    /// As of [`super::Writer::scalars`].
    pub fn mark(&self, frame: u64, entry: Entry) -> Result<(), WriteError> {
        self.shared.row(frame, entry)
    }

    /// As [`super::Writer::close`].
    pub fn close(&self) {
        self.shared.queue.close();
    }

    pub fn progress(&self) -> Progress {
        self.shared.progress.lock().clone()
    }

    pub fn description(&self) -> &Description {
        &self.shared.description
    }

    /// Writes, syncs and reports all frames taken.
    ///
    /// # Errors
    /// If any was not reported: it is not in the file.
    pub fn leave(mut self) -> Result<(), WriteError> {
        self.end().map_err(|source| WriteError::Io { path: self.shared.path.clone(), source })?;
        self.shared.progress.lock().failure.clone().map_or(Ok(()), |failure| Err(WriteError::Failed(failure)))
    }

    fn end(&mut self) -> io::Result<()> {
        match self.reporter.take() {
            Some(reporter) => self.shared.close(&mut self.threads, reporter),
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

/// The reporting thread: syncs what was written and reports it, at each interval and at the end.
fn report(shared: &Shared) -> io::Result<()> {
    let round = |_last| {
        let mut entries = std::mem::take(&mut shared.ledger.lock().unsynced);
        let frames = entries.len() as u64;
        entries.append(&mut shared.rows.lock());
        if entries.is_empty() {
            return Ok(());
        }
        if frames > 0 {
            shared.file.sync_data()?;
        }
        let Space::Granted(coordinator) = &shared.space else {
            return Err(io::Error::other("only a process that joined reports"));
        };
        coordinator.report(entries)?;
        shared.progress.lock().written += frames;
        Ok(())
    };
    shared.rounds("reporting what was written to", round)
}
