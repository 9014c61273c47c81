//! The end of a run: by request, by a failure, or by the absence of its clients. When the service stops, a run is left
//! unfinished.

use super::{FOR_EVER, Run, RunState};
use crate::records::{EndKind, RunEnd};
use crate::sink::RunSink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::ranges::Ranges;
use varve_detector_file::recover::{RecoverError, Recovered, recover};
use varve_detector_stream::{ErrorCode, FinishedHead, FromService, StreamRefusal};
use varve_detector_writer::WriterProgress;
use varve_env::reserve::Reserve;

/// A run that the service left unfinished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    pub run: String,
    pub file: PathBuf,
    /// Number of frames visible in the file if `trouble` is `None`.
    pub durable: u64,
    /// Why some frames could not be published.
    pub trouble: Option<String>,
}

impl Run {
    /// Refuses a request to start the same run anew.
    pub fn cannot_begin_again(&self, ended: &RunEnd) -> StreamRefusal {
        let how = ["finished", "aborted", "failed"][ended.how as usize];
        let text = format!(
            "a run `{}` has ended ({how}) and its file {} exists; give another name and file, or move that file",
            self.request.name,
            self.path.display()
        );
        StreamRefusal::new(ErrorCode::Ended, text)
    }

    /// The end of the run once it has ended; `None` after `wait`.
    pub fn wait_ended(&self, wait: Duration) -> Option<RunEnd> {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        loop {
            if let RunState::Ended(ended) = &*state {
                return Some(RunEnd::clone(ended));
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }

    /// Ends the run with all frames taken so far and notifies all clients. A concurrent second call waits for the
    /// first.
    pub fn end(&self, how: EndKind, why: &str) -> RunEnd {
        {
            let mut state = self.state.lock();
            if !matches!(*state, RunState::Running) {
                drop(state);
                return self.wait_ended(FOR_EVER).expect("what is ending ends");
            }
            *state = RunState::Ending(how, why.to_owned());
        }
        self.await_writers();
        if let Some(sink) = &*self.sink.read() {
            sink.close();
        }
        let sink = {
            let mut sink = self.sink.write();
            *self.closing.lock() = sink.as_ref().map(|sink| sink.observer());
            sink.take().expect("a running run has one")
        };
        let ended = self.close(sink, how, why);
        self.keep_end(&ended);
        *self.closing.lock() = None;
        ended
    }

    /// Ends a run that could not be taken up, with the frames in its journal.
    pub fn give_up(&self, how: EndKind) -> RunEnd {
        let Some(why) = self.awaits() else { return self.end(how, "") };
        let mut finished = FinishedHead::default();
        let why = self.rescue(&why, &mut finished);
        let how = if finished.file_bytes > 0 { how } else { EndKind::Failed };
        let failure = (how == EndKind::Failed).then(|| why.clone());
        let received = finished.received + finished.partial;
        let progress = WriterProgress {
            durable: received,
            written: received,
            published: finished.frames,
            failure,
            ..WriterProgress::default()
        };
        // This service has acknowledged no frames.
        let (frames, others) = (Vec::new(), vec![Vec::new(); self.request.sets() - 1]);
        let (tallied, clients) = (self.tallies.read(), Vec::new());
        let ended = RunEnd { how, why, finished, frames, others, progress, tallied, clients };
        self.keep_end(&ended);
        ended
    }

    /// Records the end for future services and notifies connected clients.
    fn keep_end(&self, ended: &RunEnd) {
        if let Err(error) = self.home.keep(&self.record(Some(ended.clone()))) {
            tracing::error!(run = self.request.name, "cannot record how the run ended: {error}");
        }
        *self.state.lock() = RunState::Ended(Box::new(ended.clone()));
        self.changed.notify_all();
        self.notify_end(ended);
        tracing::info!(run = self.request.name, file = %self.path.display(), "run ended: {:?}", ended.how);
    }

    /// Notifies all connected clients; the first final message counts.
    pub fn notify_end(&self, ended: &RunEnd) {
        self.board.each(|outbox| match ended.how {
            EndKind::Finished => outbox.finish(ended.finished),
            EndKind::Aborted | EndKind::Failed => outbox.refuse(self.over()),
        });
    }

    /// Waits for joined processes to report their writes.
    fn await_writers(&self) {
        const WRITERS_WAIT: Duration = Duration::from_secs(20);
        let deadline = Instant::now() + WRITERS_WAIT;
        let writers = self.clients.lock().writers();
        writers.iter().for_each(|outbox| outbox.answer(FromService::Leave));
        while !self.clients.lock().writers_are_complete() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn close(&self, sink: RunSink, how: EndKind, why: &str) -> RunEnd {
        let progress = sink.progress();
        let observer = sink.observer();
        let lost = self.tallies.lost.load(Relaxed);
        let mut finished = FinishedHead { dropped: progress.dropped + lost, ..FinishedHead::default() };
        // Another file that now has this name must not be changed.
        let away = sink.taken_away();
        let (how, why) = match sink {
            RunSink::Own(writer) => match writer.end(how == EndKind::Finished) {
                Ok(end) => {
                    finished.set(end.counts, end.file_bytes);
                    (how, why.to_owned())
                }
                Err(error) => (EndKind::Failed, away.unwrap_or_else(|| self.rescue(&error.to_string(), &mut finished))),
            },
            RunSink::Share(share, coordinator) => {
                let left = share.leave().map_err(|error| error.to_string());
                match left.and_then(|()| coordinator.leave().map_err(|error| error.to_string())) {
                    Ok(all) => {
                        finished = all;
                        (how, why.to_owned())
                    }
                    Err(error) => (EndKind::Failed, error),
                }
            }
        };
        let pairs = |frames: Ranges| frames.iter().map(|range| (range.start, range.end - range.start)).collect();
        let mut others: Vec<Vec<(u64, u64)>> =
            self.board.all_frames(AckLevel::Durable).into_iter().map(pairs).collect();
        let frames = others.remove(0);
        let failure = (how == EndKind::Failed).then(|| why.clone());
        let mut progress = WriterProgress { published: finished.frames, failure, ..observer() };
        if how == EndKind::Failed && finished.file_bytes > 0 {
            // A file that was made valid after the failure contains all written frames except those that the store has
            // lost.
            progress.durable = progress.written.min(finished.received + finished.partial);
        }
        let clients = self.clients.lock().known();
        RunEnd { how, why, finished, frames, others, progress, tallied: self.tallies.read(), clients }
    }

    /// After a failure: makes the file valid with all frames so far, from the journal, if the store permits it.
    fn rescue(&self, why: &str, finished: &mut FinishedHead) -> String {
        let mut rescued = recover_when_let_go(&self.path);
        if rescued.is_err() && self.home.reserve.as_ref().is_some_and(Reserve::release) {
            rescued = recover(&self.path);
        }
        match rescued {
            Ok(recovered) => {
                let file_bytes = std::fs::metadata(&self.path).map_or(0, |file| file.len());
                finished.set(recovered.counts, file_bytes);
                for (set, frames) in self.board.all_frames(AckLevel::Written).iter().enumerate() {
                    let whole = frames.iter().flatten().filter(|frame| recovered.whole.contains(*frame)).collect();
                    self.board.post_ranges(set, AckLevel::Durable, &whole);
                }
                let held = finished.received + finished.partial;
                match finished.damaged {
                    0 => format!("{why}; the file contains all {held} frames so far"),
                    damaged => format!("{why}; the file contains {held} frames so far, and {damaged} are damaged"),
                }
            }
            Err(error) => format!(
                "{why}; the file opens with the frames of its last commit; after fixing the cause, recover the others \
                with `varve record recover {}` ({error})",
                self.path.display()
            ),
        }
    }

    /// Ends the run if its writer has failed or its clients have been absent for too long. Uses a separate thread,
    /// because the store may be slow.
    pub fn look_after(self: &Arc<Self>) {
        if !self.is_running() {
            return;
        }
        let (failure, leaves) = match &*self.sink.read() {
            Some(sink) => (sink.state().failure, sink.is_asked_to_leave()),
            None => return,
        };
        let absence = Duration::from_secs_f64(self.request.absence_s);
        let (absent, given_up) = {
            let clients = self.clients.lock();
            (clients.absent(), clients.are_given_up(absence))
        };
        // A detector is not a client: its connection comes and goes with its images, and its series ends with its end
        // message or another series.
        let has_clients = self.series.is_none() && self.pva.is_none();
        let late = has_clients && (given_up || absent.is_some_and(|absent| absent > absence));
        let (how, why) = match failure {
            Some(failure) => (EndKind::Failed, failure),
            None if leaves => (EndKind::Finished, "the run was stopped where it was started".into()),
            None if late => {
                (EndKind::Finished, format!("its clients were disconnected for {} s", self.request.absence_s))
            }
            None => return,
        };
        self.end_beside(how, why);
    }

    pub fn end_beside(self: &Arc<Self>, how: EndKind, why: String) {
        let run = Arc::clone(self);
        let ended = std::thread::Builder::new().name("end".into()).spawn(move || drop(run.end(how, &why)));
        if let Err(error) = ended {
            tracing::error!(run = self.request.name, "cannot end the run now, retrying later: {error}");
        }
    }

    /// Publishes the received frames and ends the writer's threads without ending the run, which another service takes
    /// up. `None` if the run has ended.
    pub fn let_go(&self) -> Option<Unfinished> {
        self.clients.lock().cut();
        {
            let mut state = self.state.lock();
            match &*state {
                RunState::Waiting(why) => {
                    let (run, file) = (self.request.name.clone(), self.path.clone());
                    return Some(Unfinished { run, file, durable: 0, trouble: Some(why.clone()) });
                }
                RunState::Running => *state = RunState::Ending(EndKind::Finished, String::new()),
                RunState::Ending(..) => {
                    drop(state);
                    if let Some(coordinator) = &self.coordinator {
                        coordinator.depart();
                    }
                    self.wait_ended(FOR_EVER);
                    return None;
                }
                RunState::Ended(_) => return None,
            }
        }
        if let Some(sink) = &*self.sink.read() {
            sink.close();
        }
        let sink = self.sink.write().take()?;
        let observer = sink.observer();
        let left = match sink {
            RunSink::Own(writer) => writer.leave().map_err(|error| error.to_string()),
            // The share reports its writes when it ends.
            RunSink::Share(..) => Ok(()),
        };
        let (run, file) = (self.request.name.clone(), self.path.clone());
        Some(Unfinished { run, file, durable: observer().durable, trouble: left.err() })
    }
}

/// Same as [`recover`], with retries: a connection's thread that was about to write a frame when the run failed keeps
/// the journal locked until it notices the failure.
fn recover_when_let_go(path: &Path) -> Result<Recovered, RecoverError> {
    /// Time for one write on a full or failing store.
    const LET_GO_WAIT: Duration = Duration::from_secs(3);
    let deadline = Instant::now() + LET_GO_WAIT;
    loop {
        match recover(path) {
            Err(RecoverError::Running { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            recovered => return recovered,
        }
    }
}

#[cfg(test)]
mod tests;
