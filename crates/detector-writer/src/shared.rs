//! State shared by a run's threads.

use super::extent_source::{ExtentSource, Own};
use super::levels::Levels;
use super::outcome::{WriteError, WriterProgress};
use super::queue::FrameQueue;
use super::settings::{Listener, Settings};
use super::stripes::Stripes;
use super::tools::Tools;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use varve_detector_dataset::dataset_spec::{Allocate, DatasetSpec, Scalar, ScalarColumn};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::frame_numbers;
use varve_detector_dataset::journal_entry::{ChunkGroupEntry, JournalEntry};
use varve_detector_file::{run_files, store_error};
use varve_detector_filters::Plugin;
use varve_detector_hdf5::lock::WrittenFile;

/// Limit for scalars that wait for the committer, which takes them several times a second.
const SCALARS_MAX: usize = 1 << 20;

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
    pub tools: Mutex<Vec<Tools>>,
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
    pub columns: Vec<ScalarColumn>,
    pub entries: Vec<JournalEntry>,
    pub scalars: usize,
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

    /// The journal and the allocator of the process that began the run.
    pub(super) fn own(&self) -> &Own {
        match &self.ground {
            ExtentSource::Own(own) => own,
            ExtentSource::Joint(_) => unreachable!("the process that began the run has its journal"),
        }
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
        frame_numbers::number(&self.description, frame, self.highest.load(Ordering::Relaxed))?;
        let taken = self.progress.lock().taken;
        frame_numbers::density(frame, taken + more)?;
        match self.ground {
            ExtentSource::Own(_) => frame_numbers::gaps(&self.description, frame, taken + more),
            // The committing process has the index and knows of frames from all processes.
            ExtentSource::Joint(_) => Ok(()),
        }
    }

    /// Counts frames of which some part has been taken; each is counted once.
    pub(super) fn took(&self, frames: &[u64]) {
        let new = frames.iter().filter(|frame| self.levels.count_taken(**frame)).count();
        self.progress.lock().taken += new as u64;
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
        if store_error::is_full(error) && self.failure().is_none() {
            self.ran_full.store(true, Ordering::Relaxed);
        }
        self.fail(format!("{what} {}: {error}{}", self.path.display(), store_error::advice(error)));
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
        let (path, journal) = (self.path.display(), run_files::journal_of(&self.path));
        let what = if own.nlink() == 0 { "removed" } else { "moved" };
        let beside = if there.is_some() { "; another file has its name now" } else { "" };
        Some(format!(
            "{path} was {what} during the run{beside}: put it back under its name and run `varve record recover \
            {path}`, or, if it is not needed any more, remove {}",
            journal.display()
        ))
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
    pub(super) fn row(&self, frame: u64, entry: JournalEntry, scalars: usize) -> Result<(), WriteError> {
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
