//! The files of runs: created, or taken up again after a previous service.

use super::board;
use super::records::{EndKind, RunEnd, RunRecord, Tallied};
use super::request::StartRequest;
use super::run::Run;
use super::shared::ServiceShared;
use super::sink::RunSink;
use crate::board::ProgressBoard;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{AckLevel, FrameStatus};
use varve_detector_dataset::ranges::Ranges;
use varve_detector_file::recover::{self, RecoverError};
use varve_detector_file::report;
use varve_detector_file::run_files::{self, remove_unnamed, unnamed};
use varve_detector_stream::{ErrorCode, FinishedHead, StreamRefusal};
use varve_detector_writer::{Settings, WriteError, Writer, WriterProgress};

impl ServiceShared {
    pub(super) fn create(&self, mut record: RunRecord, path: PathBuf) -> Result<Arc<Run>, StreamRefusal> {
        // The record and the run name the arrays only. Their elements go to the file.
        let whole = record.request.description.clone();
        record.request.description.take_array_data();
        let request = &record.request;
        // Checked before the record is written; otherwise a restart after a crash would take up a file that is not this
        // run's.
        let files = [path.clone(), run_files::journal_of(&path), unnamed(&path)];
        let taken = files.into_iter().find(|path| path.symlink_metadata().is_ok());
        if let Some(taken) = taken {
            let text = format!("{} exists; a run never overwrites a file", taken.display());
            return Err(StreamRefusal::new(ErrorCode::Description, text));
        }
        let (frame, queue) = (request.description.frame_bytes(), self.config.settings.queue_bytes);
        if frame > queue {
            tracing::warn!(
                run = request.name,
                "a frame has {frame} bytes, the queue {queue} (--queue): it holds one frame at a time"
            );
        }
        let keep =
            |error: io::Error| StreamRefusal::new(ErrorCode::Failed, format!("cannot store the run's record: {error}"));
        self.home.keep(&record).map_err(keep)?;
        match self.open(&record, whole, &path) {
            Ok(run) => Ok(run),
            Err(error) => {
                if let Err(error) = self.home.forget(&request.name) {
                    tracing::warn!("cannot remove the record of a run that could not start: {error}");
                }
                let code = match error {
                    WriteError::Io { .. } => ErrorCode::Failed,
                    _ => ErrorCode::Description,
                };
                Err(StreamRefusal::new(code, error.to_string()))
            }
        }
    }

    /// `description`: that of the record, with the elements of its arrays.
    fn open(&self, record: &RunRecord, description: DatasetSpec, path: &Path) -> Result<Arc<Run>, WriteError> {
        let request = &record.request;
        let description = match &self.config.metadata {
            Some(metadata) => metadata.complete(&request.name, &description),
            None => description,
        };
        let sets = vec![Ranges::default(); request.sets()];
        let board = Arc::new(ProgressBoard::with(sets));
        let settings = self.settings(request);
        let writer = Writer::create(path, description, settings, board.clone())?;
        let record = RunRecord { begun: true, ..record.clone() };
        if let Err(error) = self.home.keep(&record) {
            tracing::warn!(run = request.name, "cannot record that the run's file was created: {error}");
        }
        if request.has_regions() {
            board.distinguish(writer.reached());
        }
        Ok(self.made(record, path.to_owned(), (RunSink::Own(writer), board)))
    }

    /// The service's settings, modified by the run's advice.
    fn settings(&self, request: &StartRequest) -> Settings {
        let settings = self.config.settings.clone();
        match &request.description.advice {
            Some(advice) => settings.with_advice(advice),
            None => settings,
        }
    }

    fn made(&self, record: RunRecord, path: PathBuf, sink: (RunSink, Arc<ProgressBoard>)) -> Arc<Run> {
        Arc::new(Run::new(Arc::clone(&self.home), record, path, sink))
    }

    /// Continues a run that a previous service did not end.
    pub(super) fn take_up(&self, record: RunRecord) {
        let name = record.request.name.clone();
        if let Some(ended) = record.ended.clone() {
            let run = Run::ended(Arc::clone(&self.home), record, ended);
            self.runs.lock().insert(name, Arc::new(run));
            return;
        }
        let path = self.home.root.join(&record.request.file);
        match self.resume(&record, &path) {
            Ok(Some(run)) => {
                tracing::info!(run = name, file = %path.display(), "run resumed");
                self.runs.lock().insert(name, run);
            }
            // The run had ended without its record being updated, or its file was recovered while no service ran.
            Ok(None) => {
                let what = if path.exists() { "its file is finished" } else { "its file and journal were removed" };
                tracing::warn!(run = name, file = %path.display(), "a run has ended: {what}");
                if let Some(ended) = found_finished(&record.request, &path) {
                    let record = RunRecord { ended: Some(ended.clone()), ..record };
                    if let Err(error) = self.home.keep(&record) {
                        tracing::warn!(run = name, "cannot record how the run ended: {error}");
                    }
                    let run = Run::ended(Arc::clone(&self.home), record, ended);
                    self.runs.lock().insert(name, Arc::new(run));
                    return;
                }
                self.runs.lock().remove(&name);
                if let Err(error) = self.home.forget(&name) {
                    tracing::warn!("cannot remove the record of a run that has ended: {error}");
                }
            }
            Err(error) => {
                let why = format!(
                    "{error}; the service retries; `varve record recover {}` recovers its file, or reports why it \
                    cannot",
                    path.display()
                );
                let mut runs = self.runs.lock();
                match runs.get(&name) {
                    Some(run) if run.awaits().as_ref() == Some(&why) => return,
                    Some(run) => run.await_otherwise(why.clone()),
                    None => {
                        let waiting = Run::waiting(Arc::clone(&self.home), record, why.clone());
                        runs.insert(name.clone(), Arc::new(waiting));
                    }
                }
                tracing::error!(run = name, "cannot resume the run: {why}");
            }
        }
    }

    /// Retries runs that could not be taken up.
    pub(super) fn take_up_waiting(&self) {
        for run in self.runs() {
            // Excludes ending or beginning a run meanwhile.
            let _beginning = self.beginning.lock();
            if run.awaits().is_some() {
                self.take_up(run.record(None));
            }
        }
    }

    /// Ends a run on request.
    pub fn end(&self, run: &Arc<Run>, how: EndKind) {
        {
            let _beginning = self.beginning.lock();
            if run.awaits().is_some() {
                run.give_up(how);
                return;
            }
        }
        // The run may just have been taken up.
        let run = self.run(&run.request.name).unwrap_or_else(|| Arc::clone(run));
        run.end(how, "");
    }

    /// Returns `None` if the run is over.
    fn resume(&self, record: &RunRecord, path: &Path) -> Result<Option<Arc<Run>>, WriteError> {
        let request = &record.request;
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let beside = run_files::journal_of(path);
        if !path.try_exists().map_err(io)? {
            // The journal is created first. If the run was killed before the file was created, nothing had been
            // acknowledged. A journal that refers to frames belongs to a file that was moved away.
            if beside.try_exists().map_err(io)? {
                recover::taken_away(path, &std::fs::read(&beside).map_err(io)?)?;
                remove_unnamed(path).map_err(io)?;
                std::fs::remove_file(&beside).map_err(io)?;
            } else if record.begun {
                return Ok(None);
            }
            let mut description = request.description.clone();
            if !description.arrays.is_empty() {
                description.arrays.clear();
                tracing::error!(
                    run = request.name,
                    "the run's arrays (masks, flatfields) were lost: the service ended before the run's file was made"
                );
            }
            let run = self.open(record, description, path)?;
            if record.by_client {
                run.clients.lock().await_return();
            }
            return Ok(Some(run));
        }
        let sets = request.sets();
        let board = Arc::new(ProgressBoard::with(vec![Ranges::default(); sets]));
        match Writer::resume(path, self.settings(request), board.clone()) {
            Ok((writer, resumed)) => {
                let reached = writer.reached();
                for set in 0..sets {
                    let frames = resumed.frames.iter().flatten();
                    let frames = frames.filter(|number| sets == 1 || reached(*number, set as u32).is_some()).collect();
                    board::LEVELS.into_iter().for_each(|level| board.post_ranges(set, level, &frames));
                }
                if request.has_regions() {
                    board.distinguish(reached);
                }
                let run = self.made(record.clone(), path.to_owned(), (RunSink::Own(writer), board));
                run.epoch.store(resumed.epoch, SeqCst);
                // A run with frames also had clients.
                if record.by_client || run.board.end(AckLevel::Memory) > 0 {
                    run.clients.lock().await_return();
                }
                Ok(Some(run))
            }
            Err(WriteError::Resume(RecoverError::NothingToDo { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reconstructs the end of a run whose file is finished although its record says otherwise, as far as the file allows.
/// `None` if the file cannot be read.
fn found_finished(request: &StartRequest, path: &Path) -> Option<RunEnd> {
    let file_bytes = path.metadata().ok()?.len();
    let bytes = report::status(path).ok()?;
    // Another file may have this name now.
    if bytes.iter().any(|byte| usize::from(*byte) >= FrameStatus::NAMES.len()) {
        return None;
    }
    let status: Vec<FrameStatus> = bytes.into_iter().map(FrameStatus::from_byte).collect();
    let count = |wanted: &dyn Fn(FrameStatus) -> bool| status.iter().filter(|status| wanted(**status)).count() as u64;
    let of = |wanted: FrameStatus| count(&|status| status == wanted);
    let finished = FinishedHead {
        frames: status.len() as u64,
        received: count(&FrameStatus::is_whole),
        missing: of(FrameStatus::Missing),
        damaged: of(FrameStatus::Damaged),
        duplicate: of(FrameStatus::Duplicate),
        late: of(FrameStatus::Late),
        partial: of(FrameStatus::Partial),
        dropped: 0,
        file_bytes,
    };
    let there = (0..).zip(&status).filter(|(_, status)| status.is_whole()).map(|(number, _)| number);
    let frames: Vec<(u64, u64)> =
        there.collect::<Ranges>().iter().map(|range| (range.start, range.end - range.start)).collect();
    // The file does not record which regions of a partial frame are present.
    let others = vec![frames.clone(); request.sets() - 1];
    let held = finished.received + finished.partial;
    let progress = WriterProgress {
        taken: held,
        written: held,
        durable: held,
        published: finished.frames,
        ..WriterProgress::default()
    };
    let why = "its file was finished when the service was started".to_owned();
    let (tallied, clients) = (Tallied::default(), Vec::new());
    Some(RunEnd { how: EndKind::Finished, why, finished, frames, others, progress, tallied, clients })
}
