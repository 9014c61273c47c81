//! The pipeline that takes and writes frames. It is the same in the process that began the run and in joined processes.

use super::assemble::Shapes;
use super::extent_source::{ExtentSource, Own};
use super::gather::InlineWrite;
use super::levels::Levels;
use super::queue::{FramePart, FrameQueue, QueueRefused, WaitPolicy};
use super::stripes::Stripes;
use super::{Listener, Settings, WriteError, WriterProgress, check, gather, outcome, unix_nanos};
use crate::dataset_spec::{Allocate, DatasetSpec, Scalar, ScalarColumn};
use crate::filters::{Encoder, Plugin};
use crate::frame::{AckLevel, Frame};
use crate::hdf5::lock::WrittenFile;
use crate::journal::{self, ChunkGroupEntry, JournalEntry};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit for scalars that wait for the committer, which takes them several times a second.
const SCALARS_MAX: usize = 1 << 20;

/// Minimum time between rounds that do not wait for their interval.
const ROUNDS_GAP: Duration = Duration::from_millis(50);

/// State shared by the threads.
pub(super) struct PipelineShared {
    pub path: PathBuf,
    pub file: WrittenFile,
    pub description: DatasetSpec,
    pub settings: Settings,
    pub ground: ExtentSource,
    /// A user's own filter.
    pub plugin: Option<Plugin>,
    pub queue: FrameQueue,
    /// Idle tools of threads that write their frames inline.
    pub tools: Mutex<Vec<gather::Tools>>,
    pub stripes: Stripes,
    pub levels: Arc<Levels>,
    /// Written chunk groups to which more frames may be added.
    pub incomplete: Mutex<HashMap<u64, ChunkGroupEntry>>,
    pub rows: Mutex<PendingRows>,
    pub highest: AtomicU64,
    pub progress: Arc<Mutex<WriterProgress>>,
    pub stop: Mutex<bool>,
    pub stopped: Condvar,
    /// Set if the run failed because the store was full: chunks already in the file can still be reported.
    pub ran_full: AtomicBool,
    pub listener: Arc<dyn Listener>,
}

/// Entries other than chunk groups that wait for the journal.
#[derive(Default)]
pub(super) struct PendingRows {
    columns: Vec<ScalarColumn>,
    entries: Vec<JournalEntry>,
    scalars: usize,
}

impl PendingRows {
    pub(super) fn take(&mut self) -> Vec<JournalEntry> {
        self.scalars = 0;
        std::mem::take(&mut self.entries)
    }
}

impl PipelineShared {
    pub(super) fn new(
        (path, file): (&Path, WrittenFile),
        description: DatasetSpec,
        settings: Settings,
        ground: ExtentSource,
        listener: Arc<dyn Listener>,
    ) -> Result<PipelineShared, WriteError> {
        let plugin = description.plugin.as_ref().map(Plugin::load).transpose()?;
        Ok(PipelineShared {
            plugin,
            path: path.to_owned(),
            file,
            queue: FrameQueue::new(settings.queue_bytes, settings.threads, &description),
            tools: Mutex::default(),
            stripes: Stripes::new(settings.stripe_bytes),
            levels: Arc::new(Levels::new(description.sources.len().max(1))),
            incomplete: Mutex::default(),
            rows: Mutex::new(PendingRows { columns: description.scalars.clone(), ..PendingRows::default() }),
            highest: AtomicU64::new(0),
            progress: Arc::default(),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            ran_full: AtomicBool::new(false),
            listener,
            description,
            settings,
            ground,
        })
    }

    /// Allocates an address for `bytes`; `extent` is the unused part of this process's extent.
    pub(super) fn place(&self, extent: &mut Range<u64>, bytes: u64) -> io::Result<u64> {
        self.ground.place(&self.file, &self.settings, extent, bytes)
    }

    /// Whether every chunk's address is independent of earlier chunks.
    pub(super) fn apart(&self) -> bool {
        self.description.allocate != Allocate::Packed
    }

    /// Enters the waiting rows in the journal, in the order of their arrival.
    pub(super) fn enter_rows(&self, own: &Own) -> io::Result<()> {
        let mut rows = self.rows.lock();
        if rows.entries.is_empty() {
            return Ok(());
        }
        own.enter(&self.file, rows.take())
    }

    /// Enters written chunk groups in the journal, after the scalars that arrived before them.
    pub(super) fn enter(&self, chunk_groups: Vec<ChunkGroupEntry>) -> io::Result<()> {
        match &self.ground {
            ExtentSource::Own(own) => {
                let rows = self.enter_rows(own);
                let reached: Vec<(u64, Vec<u32>)> = reached(&chunk_groups);
                // They at least go to the journal, even if the rows failed.
                let chunk_groups =
                    own.enter(&self.file, chunk_groups.into_iter().map(JournalEntry::ChunkGroup).collect());
                rows.and(chunk_groups)?;
                self.reach(AckLevel::Written, reached);
            }
            ExtentSource::Joint(joint) => joint.waiting.lock().extend(chunk_groups),
        }
        Ok(())
    }

    pub(super) fn remember_incomplete(&self, chunk_groups: &[ChunkGroupEntry]) {
        if !self.queue.gathers() {
            return;
        }
        let mut incomplete = self.incomplete.lock();
        for chunk_group in chunk_groups {
            let whole = chunk_group.frames.iter().all(|frame| frame.missing.is_empty())
                && chunk_group.frames.len() == self.description.frames_of(chunk_group.chunk_group).count();
            match whole {
                true => incomplete.remove(&chunk_group.chunk_group),
                false => incomplete.insert(chunk_group.chunk_group, chunk_group.clone()),
            };
        }
    }

    /// Checks a frame number. `more`: number of frames received in addition to those already counted.
    pub(super) fn check_number(&self, frame: u64, more: u64) -> Result<(), String> {
        check::number(&self.description, frame, self.highest.load(Ordering::Relaxed))?;
        let taken = self.progress.lock().taken;
        check::density(frame, taken + more)?;
        match self.ground {
            ExtentSource::Own(_) => check::gaps(&self.description, frame, taken + more),
            // The committing process has the index and knows of frames from all processes.
            ExtentSource::Joint(_) => Ok(()),
        }
    }

    /// Counts frames of which some part has been taken; each is counted once.
    pub(super) fn took(&self, frames: &[u64]) {
        let new = frames.iter().filter(|frame| self.levels.count_taken(**frame)).count();
        self.progress.lock().taken += new as u64;
    }

    /// Whether much data waits for a sync while a client waits for that data.
    fn is_pressing(&self) -> bool {
        let progress = self.progress.lock();
        let (level, synced) = match self.ground {
            ExtentSource::Own(_) => (AckLevel::Durable, progress.durable),
            ExtentSource::Joint(_) => (AckLevel::Written, progress.written),
        };
        let waiting = progress.taken.saturating_sub(synced);
        drop(progress);
        self.listener.waits_for(level)
            && waiting.saturating_mul(self.description.frame_bytes() as u64) >= self.settings.pressing_bytes
    }

    /// Waits for the next round, and returns whether it is the last.
    fn wait_for_round(&self) -> bool {
        let (begun, interval) = (Instant::now(), self.settings.commit_interval);
        let mut stop = self.stop.lock();
        while !*stop {
            let left = interval.saturating_sub(begun.elapsed());
            if left.is_zero() || begun.elapsed() >= ROUNDS_GAP && self.is_pressing() {
                break;
            }
            self.stopped.wait_for(&mut stop, left.min(ROUNDS_GAP));
        }
        *stop
    }

    /// Notes that frames, except for their missing sources, have reached a level.
    pub(super) fn reach(&self, level: AckLevel, frames: Vec<(u64, Vec<u32>)>) {
        if level == AckLevel::Durable {
            // The writing thread may not have reported the lower level yet, and some clients subscribe only to that
            // one.
            self.reach(AckLevel::Written, frames.clone());
        }
        let (mut numbers, mut counted) = (Vec::new(), 0);
        for (frame, missing) in frames {
            if let Some(whole) = self.levels.raise(frame, &missing, level) {
                numbers.push(frame);
                counted += u64::from(whole);
            }
        }
        if numbers.is_empty() {
            return;
        }
        let mut progress = self.progress.lock();
        match level {
            AckLevel::Memory => {}
            AckLevel::Written => progress.written += counted,
            AckLevel::Durable => progress.durable += counted,
        }
        drop(progress);
        self.listener.reached(level, &numbers);
    }

    /// Fails the run: no more frames are taken, but written ones are still published.
    pub(super) fn fail(&self, why: String) {
        tracing::error!(path = %self.path.display(), "the run has failed: {why}");
        self.progress.lock().failure.get_or_insert(why);
        self.queue.abandon();
    }

    /// Calls [`PipelineShared::fail`] because `what` failed in the store.
    pub(super) fn fail_at(&self, what: &str, error: &io::Error) {
        if outcome::is_full(error) && self.failure().is_none() {
            self.ran_full.store(true, Ordering::Relaxed);
        }
        self.fail(format!("{what} {}: {error}{}", self.path.display(), outcome::advice(error)));
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.progress.lock().failure.clone()
    }

    /// Why the file at the run's path is not the run's any more, if so. Other errors of the store do not count.
    pub(super) fn taken_away(&self) -> Option<String> {
        if let ExtentSource::Own(own) = &self.ground
            && let Err(error) = own.length.check(&self.file)
            && error.kind() == io::ErrorKind::UnexpectedEof
        {
            return Some(format!("{}: {error}", self.path.display()));
        }
        let own = self.file.metadata().ok()?;
        let there = match self.path.metadata() {
            Ok(there) => Some((there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => return None,
        };
        if there == Some((own.dev(), own.ino())) {
            return None;
        }
        let (path, journal) = (self.path.display(), journal::path_beside(&self.path));
        let what = if own.nlink() == 0 { "removed" } else { "moved" };
        let beside = if there.is_some() { "; another file has its name now" } else { "" };
        Some(format!(
            "{path} was {what} during the run{beside}: put it back under its name and run `varve record recover \
            {path}`, or, if it is not needed any more, remove {}",
            journal.display()
        ))
    }

    /// Calls `round` at every interval, sooner while much data waits for a sync, and a last time when the writing
    /// threads have ended.
    pub(super) fn rounds(&self, what: &str, mut round: impl FnMut(bool) -> io::Result<()>) -> io::Result<()> {
        loop {
            let last = self.wait_for_round();
            if self.failure().is_none() {
                match self.taken_away() {
                    Some(why) => self.fail(why),
                    None => gather::flush(self),
                }
            }
            self.queue.release_stale();
            match round(last) {
                Ok(()) if last => return Ok(()),
                Ok(()) => {}
                Err(error) => {
                    self.fail_at(what, &error);
                    return Err(error);
                }
            }
        }
    }

    /// Checks that the values match the run's columns.
    pub(super) fn check_scalars(&self, values: &[(u32, Scalar)]) -> Result<(), String> {
        let rows = self.rows.lock();
        for (number, value) in values {
            let Some(column) = rows.columns.get(*number as usize) else {
                return Err(format!("it has a scalar {number}, the run has {}", rows.columns.len()));
            };
            column.kind.element(value).map_err(|why| format!("scalar `{}`: {why}", column.name))?;
        }
        Ok(())
    }

    /// Adds columns from journal entries of a run that is taken up.
    pub(super) fn add_columns(&self, entries: &[JournalEntry]) {
        let column = |entry: &JournalEntry| match entry {
            JournalEntry::Column { name, kind } => Some(ScalarColumn { name: name.clone(), kind: *kind }),
            _ => None,
        };
        self.rows.lock().columns.extend(entries.iter().filter_map(column));
    }

    /// Queues a row for the committer.
    fn row(&self, frame: u64, entry: JournalEntry, scalars: usize) -> Result<(), WriteError> {
        self.check_number(frame, 0).map_err(|why| WriteError::Frame { number: frame, why })?;
        let mut rows = self.rows.lock();
        if rows.scalars + scalars > SCALARS_MAX {
            return Err(WriteError::Full);
        }
        rows.scalars += scalars;
        rows.entries.push(entry);
        Ok(())
    }
}

/// Frames with their missing sources.
pub(super) fn reached(chunk_groups: &[ChunkGroupEntry]) -> Vec<(u64, Vec<u32>)> {
    let frames = chunk_groups.iter().flat_map(|chunk_group| &chunk_group.frames);
    frames.map(|frame| (frame.number, frame.missing.clone())).collect()
}

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
