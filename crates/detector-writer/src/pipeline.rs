//! The pipeline that takes and writes frames. It is the same in the process that began the run and in joined processes.

use super::assemble::Shapes;
use super::check;
use super::extent_source::ExtentSource;
use super::gather::{self, InlineWrite};
use super::outcome::{WriteError, WriterProgress};
use super::queue::{FramePart, QueueRefused, WaitPolicy};
use super::shared::PipelineShared;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Scalar, ScalarColumn};
use varve_detector_dataset::frame::{AckLevel, Frame};
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_dataset::time::unix_nanos;
use varve_detector_filters::Encoder;

/// Entry point for frames.
pub struct Pipeline {
    pub(super) shared: Arc<PipelineShared>,
    pub(super) shapes: Shapes,
    threads: Vec<JoinHandle<()>>,
}

impl Pipeline {
    pub(super) fn start(shared: Arc<PipelineShared>) -> io::Result<Pipeline> {
        let mut threads = Vec::new();
        for number in 0..shared.settings.threads.max(1) {
            let mine = Arc::clone(&shared);
            let named = std::thread::Builder::new().name(format!("write-{number}"));
            threads.push(named.spawn(move || gather::run(&mine))?);
        }
        Ok(Pipeline { shapes: Shapes::new(&shared.description), shared, threads })
    }

    /// Submits a frame. Waits for queue space for at most `wait`. A frame that came before is not taken again, but its
    /// level is acknowledged again.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if this frame cannot be written. [`WriteError::Full`] if there was no space in time; the
    /// frame is counted as dropped. [`WriteError::Failed`] if the run has failed. [`WriteError::Closed`] if it is being
    /// ended.
    pub fn submit(&self, frame: Frame, wait: Duration) -> Result<(), WriteError> {
        self.submit_region(0, frame, wait)
    }

    /// Submits one source's region of a frame; otherwise the same as [`Pipeline::submit`]. Missing regions read as the
    /// fill value, and the frame is marked partial until they arrive.
    ///
    /// # Errors
    /// Same as [`Pipeline::submit`].
    pub fn submit_region(&self, source: u32, frame: Frame, patience: impl Into<WaitPolicy>) -> Result<(), WriteError> {
        self.hand_in(source, frame, patience.into())
            .map(|inline_write| inline_write.into_iter().for_each(InlineWrite::write))
    }

    /// Same as [`Pipeline::submit_region`], but if the caller must write the frame itself, returns the object that does
    /// so.
    ///
    /// # Errors
    /// Same as [`Pipeline::submit`].
    pub fn hand_in(&self, source: u32, frame: Frame, patience: WaitPolicy) -> Result<Option<InlineWrite>, WriteError> {
        let shared = &self.shared;
        let number = frame.number;
        shared
            .check_number(number, 0)
            .and_then(|()| check::frame(&shared.description, &self.shapes, source, &frame))
            .map_err(|why| WriteError::Frame { number, why })?;
        if let Some(level) = shared.levels.take(number, source) {
            self.mark_duplicate(number)?;
            shared.listener.reached(level, &[number]);
            return Ok(None);
        }
        let part = FramePart { frame, source, received: unix_nanos() };
        let taken = match patience {
            WaitPolicy::Writes { more } if !shared.queue.gathers() => {
                shared.queue.begin_own().map(|()| Some(InlineWrite::new(Arc::clone(shared), part, more)))
            }
            patience => shared.queue.push(vec![part], patience).map(|()| None),
        };
        let inline_write = taken.map_err(|refused| {
            shared.levels.give_back(number, source);
            self.refused(&refused, 1)
        })?;
        shared.took(&[number]);
        shared.highest.fetch_max(number, Ordering::Relaxed);
        shared.listener.reached(AckLevel::Memory, &[number]);
        Ok(inline_write)
    }

    /// Counts and converts a refusal of `frames` frames.
    pub(super) fn refused(&self, refused: &QueueRefused, frames: u64) -> WriteError {
        match refused {
            QueueRefused::Full => {
                self.shared.progress.lock().dropped += frames;
                WriteError::Full
            }
            QueueRefused::Closed => self.shared.failure().map_or(WriteError::Closed, WriteError::Failed),
        }
    }

    /// The level of `source`'s part of a frame; `None`: not received.
    pub fn level(&self, frame: u64, source: u32) -> Option<AckLevel> {
        self.shared.levels.get(frame, source)
    }

    /// [`Pipeline::level`] as a function that does not borrow the pipeline.
    pub fn reached(&self) -> Box<dyn Fn(u64, u32) -> Option<AckLevel> + Send + Sync> {
        let levels = Arc::clone(&self.shared.levels);
        Box::new(move |frame, source| levels.get(frame, source))
    }

    /// An encoder that filters frames of `source` block by block during reception. Available if a frame is one chunk
    /// that it shares with no other.
    pub fn encoder(&self, source: u32) -> Option<Encoder> {
        let shared = &self.shared;
        let filter = shared.description.filter;
        let is_alone = !shared.queue.gathers() && self.shapes.is_chunk(0, source);
        if !is_alone || !filter.takes_blocks() || shared.plugin.is_some() {
            return None;
        }
        Encoder::new(filter, shared.description.element.size()).ok()
    }

    /// Number of chunks per frame from `source`, if its region consists of whole chunks.
    pub fn chunks_of(&self, source: u32) -> Option<usize> {
        self.shapes.chunks_of(source).map(|chunks| chunks.len())
    }

    /// Adds a column of scalars or finds an existing one, and returns its number.
    ///
    /// # Errors
    /// [`WriteError::Column`] if the name is invalid or belongs to a column of another kind. [`WriteError::Failed`] if
    /// the run has failed, which accepts no new columns.
    pub fn column(&self, column: ScalarColumn) -> Result<u32, WriteError> {
        let refused = |why: String| WriteError::Column { name: column.name.clone(), why };
        let mut rows = self.shared.rows.lock();
        if let Some(at) = rows.columns.iter().position(|other| other.name == column.name) {
            return match rows.columns[at].kind == column.kind {
                true => Ok(at as u32),
                false => Err(refused(format!("there is already one of {}", rows.columns[at].kind))),
            };
        }
        if let Some(failure) = self.shared.failure() {
            return Err(WriteError::Failed(failure));
        }
        if matches!(self.shared.ground, ExtentSource::Joint(_)) {
            return Err(refused("only the writer that began the run adds columns".into()));
        }
        let mut with = self.shared.description.clone();
        with.scalars = rows.columns.iter().cloned().chain([column.clone()]).collect();
        with.check().map_err(|bad| refused(bad.0))?;
        rows.entries.push(JournalEntry::Column { name: column.name.clone(), kind: column.kind });
        rows.columns.push(column);
        Ok(rows.columns.len() as u32 - 1)
    }

    /// The columns of scalars so far. A column's position is its number.
    pub fn columns(&self) -> Vec<ScalarColumn> {
        self.shared.rows.lock().columns.clone()
    }

    /// Submits scalars of a frame, by column. They may come before the frame, after it, or without it, until the run is
    /// finished.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if the column or frame does not exist or the value does not fit the column's kind.
    /// [`WriteError::Full`] if a million values are already queued.
    pub fn scalars<V: Into<Scalar>>(&self, frame: u64, values: Vec<(u32, V)>) -> Result<(), WriteError> {
        let values: Vec<(u32, Scalar)> = values.into_iter().map(|(column, value)| (column, value.into())).collect();
        self.shared.check_scalars(&values).map_err(|why| WriteError::Frame { number: frame, why })?;
        let count = values.len();
        self.shared.row(frame, JournalEntry::Scalars { frame, values }, count)
    }

    /// Writes all scalars so far to the journal, so that they survive this process. A joined process reports them
    /// instead.
    ///
    /// # Errors
    /// [`WriteError::Failed`] if the journal cannot be written: the run has failed.
    pub fn keep_scalars(&self) -> Result<(), WriteError> {
        let kept = match &self.shared.ground {
            ExtentSource::Own(own) => self.shared.enter_rows(own),
            ExtentSource::Joint(joint) => joint.report_rows(&self.shared),
        };
        kept.map_err(|error| {
            let why = format!("the journal of {}: {error}", self.shared.path.display());
            self.shared.fail(why.clone());
            WriteError::Failed(why)
        })
    }

    /// Marks a frame as received again; the first copy is kept.
    ///
    /// # Errors
    /// Same as [`Pipeline::scalars`].
    pub fn mark_duplicate(&self, frame: u64) -> Result<(), WriteError> {
        self.shared.row(frame, JournalEntry::Duplicate { frame }, 1)
    }

    /// Marks a frame as received incomplete; it may come again.
    ///
    /// # Errors
    /// Same as [`Pipeline::scalars`].
    pub fn mark_damaged(&self, frame: u64) -> Result<(), WriteError> {
        self.shared.row(frame, JournalEntry::Damaged { frame }, 1)
    }

    /// Why the file at the run's path is not the run's any more, if so.
    pub fn taken_away(&self) -> Option<String> {
        self.shared.taken_away()
    }

    /// Writes frames that wait for others of their chunks now. Their chunks are assembled again when the others arrive.
    pub fn flush(&self) {
        self.shared.queue.flush();
    }

    /// Takes no more frames and refuses waiting callers. Frames already taken are still written.
    pub fn close(&self) {
        self.shared.queue.close();
    }

    /// A buffer for a frame of `bytes`, reused if possible; it may contain old data.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        self.shared.stripes.buffers.get(bytes)
    }

    pub fn progress(&self) -> WriterProgress {
        self.shared.progress.lock().clone()
    }

    /// A function that reads the progress, even after the pipeline has been ended.
    pub fn observer(&self) -> Box<dyn Fn() -> WriterProgress + Send + Sync> {
        let progress = Arc::clone(&self.shared.progress);
        Box::new(move || progress.lock().clone())
    }

    pub fn description(&self) -> &DatasetSpec {
        &self.shared.description
    }

    /// Ends the writing threads and then the syncing thread.
    pub(super) fn end<T>(&mut self, syncing: JoinHandle<io::Result<T>>) -> io::Result<T> {
        self.shared.queue.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.fail("a writer thread panicked".into());
            }
        }
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        syncing.join().unwrap_or_else(|_| {
            self.shared.fail("the sync thread panicked".into());
            Err(io::Error::other("the sync thread panicked"))
        })
    }
}

#[cfg(test)]
mod tests;
