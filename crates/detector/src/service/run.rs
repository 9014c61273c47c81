//! One run of the service: what it takes from connections, and how it ends. Whatever ends it, its file is valid
//! afterwards, or its status says what is to be done.

use super::board::Board;
use super::clients::Clients;
use super::records::{Ended, How, Record, Records, Taken, Tallied};
use super::request::StartRequest;
use super::sink::Sink;
use crate::frame::{Blob, Frame, Level, Nanoseconds};
use crate::journal::Entry;
use crate::recover::recover;
use crate::stream::{ErrorCode, FinishedHead, FromService, Notice, NoticeCode, Ranges, Refusal};
use crate::writer::{Progress, WriteError, now};
use parking_lot::{Condvar, Mutex, RwLock};
use serde::Serialize;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_world::reserve::Reserve;

/// A store that hangs is not the detector's fault: a client who says nothing else waits as long as it does.
const FOR_EVER: Duration = Duration::from_secs(365 * 86400);

/// What the service's runs share.
pub struct Home {
    pub root: PathBuf,
    /// None where another process keeps the run.
    pub records: Option<Records>,
    /// Given up when the store is full, so that files can be made valid.
    pub reserve: Option<Reserve>,
}

impl Home {
    pub fn keep(&self, record: &Record) -> io::Result<()> {
        self.records.as_ref().map_or(Ok(()), |records| records.write(record))
    }

    pub fn forget(&self, name: &str) -> io::Result<()> {
        self.records.as_ref().map_or(Ok(()), |records| records.remove(name))
    }
}

pub struct Run {
    pub request: StartRequest,
    /// What a DECTRIS detector said of it.
    pub series: Option<Box<Taken>>,
    pub path: PathBuf,
    pub started: Nanoseconds,
    pub board: Arc<Board>,
    pub clients: Mutex<Clients>,
    pub tallies: Tallies,
    home: Arc<Home>,
    sink: RwLock<Option<Sink>>,
    /// Frames that are being taken or were, by source where sources bring regions.
    claims: Mutex<Vec<Ranges>>,
    state: Mutex<State>,
    changed: Condvar,
    /// What is known of the progress while the writer is being ended.
    closing: Mutex<Option<Observer>>,
    /// The last writer that was given a share.
    pub epoch: AtomicU32,
}

type Observer = Box<dyn Fn() -> Progress + Send + Sync>;

enum State {
    Running,
    Ending,
    Ended(Box<Ended>),
}

/// What is counted beside the writer.
#[derive(Debug, Default)]
pub struct Tallies {
    /// Dropped by clients before they could send them.
    pub lost: AtomicU64,
    pub damaged: AtomicU64,
    pub duplicate: AtomicU64,
    pub refused: AtomicU64,
    pub received_bytes: AtomicU64,
}

/// What `GET /runs/NAME` answers.
#[derive(Debug, Serialize)]
pub struct Status {
    pub name: String,
    pub file: PathBuf,
    /// `running`, `ending`, `finished`, `aborted`, `failed`. A run that takes nothing more because of a failure is `ending`
    /// until its file has been made valid, which makes it `failed`.
    pub state: &'static str,
    pub why: Option<String>,
    pub started_ns: Nanoseconds,
    pub connections: usize,
    #[serde(flatten)]
    pub progress: Progress,
    /// Dropped by the service or its clients.
    pub dropped_frames: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub refused: u64,
    pub received_bytes: u64,
    /// The highest durable frame, if there is one.
    pub latest_durable: Option<u64>,
    /// How the run ended.
    pub finished: Option<FinishedHead>,
}

impl Tallies {
    fn of(tallied: Tallied) -> Tallies {
        Tallies {
            lost: AtomicU64::new(tallied.lost),
            damaged: AtomicU64::new(tallied.damaged),
            duplicate: AtomicU64::new(tallied.duplicate),
            refused: AtomicU64::new(tallied.refused),
            received_bytes: AtomicU64::new(tallied.received_bytes),
        }
    }

    fn read(&self) -> Tallied {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        Tallied {
            lost: count(&self.lost),
            damaged: count(&self.damaged),
            duplicate: count(&self.duplicate),
            refused: count(&self.refused),
            received_bytes: count(&self.received_bytes),
        }
    }
}

impl Run {
    pub fn new(
        home: Arc<Home>,
        (request, series): (StartRequest, Option<Box<Taken>>),
        path: PathBuf,
        (sink, board): (Sink, Arc<Board>),
    ) -> Run {
        let claims = board.all_frames(Level::Memory);
        let record = Record { request, series, ended: None };
        Run::made(home, record, path, (Some(sink), board, claims, State::Running))
    }

    /// A run that ended before the service was started.
    pub fn ended(home: Arc<Home>, record: Record, ended: Ended) -> Run {
        let path = home.root.join(&record.request.file);
        let board = Arc::new(Board::with(ended.ranges()));
        let tallies = Tallies::of(ended.tallied);
        let made = Run::made(home, record, path, (None, board, ended.ranges(), State::Ended(Box::new(ended))));
        Run { tallies, ..made }
    }

    fn made(
        home: Arc<Home>,
        Record { request, series, .. }: Record,
        path: PathBuf,
        (sink, board, claims, state): (Option<Sink>, Arc<Board>, Vec<Ranges>, State),
    ) -> Run {
        Run {
            request,
            series,
            path,
            started: now(),
            board,
            clients: Mutex::default(),
            tallies: Tallies::default(),
            home,
            sink: RwLock::new(sink),
            claims: Mutex::new(claims),
            state: Mutex::new(state),
            changed: Condvar::new(),
            closing: Mutex::default(),
            epoch: AtomicU32::new(0),
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(*self.state.lock(), State::Running)
    }

    pub fn ended_as(&self) -> Option<Ended> {
        match &*self.state.lock() {
            State::Ended(ended) => Some(Ended::clone(ended)),
            _ => None,
        }
    }

    /// Whether this client took part in the run.
    pub fn had(&self, client: &[u8; 16]) -> bool {
        self.clients.lock().known().contains(client)
            || matches!(&*self.state.lock(), State::Ended(ended) if ended.clients.contains(client))
    }

    /// To who asks for the same run anew.
    pub fn cannot_begin_again(&self, ended: &Ended) -> Refusal {
        let how = ["finished", "aborted", "failed"][ended.how as usize];
        let text = format!(
            "run `{}` has ended ({how}) and its file {} is there; give another name and file, or move that file away",
            self.request.name,
            self.path.display()
        );
        Refusal::new(ErrorCode::Ended, text)
    }

    /// How the run ended, once it has; `None` after `wait`.
    pub fn wait_ended(&self, wait: Duration) -> Option<Ended> {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        loop {
            if let State::Ended(ended) = &*state {
                return Some(Ended::clone(ended));
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }

    /// Does something with the run's sink, while the run is running.
    pub fn with<T>(&self, work: impl FnOnce(&Sink) -> Result<T, Refusal>) -> Result<T, Refusal> {
        match &*self.sink.read() {
            Some(sink) => work(sink),
            None => Err(self.over()),
        }
    }

    /// Memory for what a connection brings.
    pub fn buffer(&self, bytes: u64) -> Vec<u8> {
        self.sink.read().as_ref().map_or_else(Vec::new, |sink| sink.buffer(bytes as usize))
    }

    /// Why it takes nothing any more.
    fn over(&self) -> Refusal {
        match &*self.state.lock() {
            State::Ended(ended) if ended.how == How::Failed => Refusal::new(ErrorCode::Failed, ended.why.clone()),
            State::Ended(ended) if ended.how == How::Aborted => Refusal::new(ErrorCode::Ended, "the run was aborted"),
            _ => Refusal::new(ErrorCode::Ended, "the run has been finished or is being finished"),
        }
    }

    /// Takes a frame. `again`: its client may have sent it before.
    pub fn take(
        &self,
        source: u16,
        frame: Frame,
        again: bool,
        patience: Option<Duration>,
    ) -> Result<Result<(), Notice>, Refusal> {
        let (number, set) = (frame.number, self.request.set_of(source));
        if !self.claims.lock()[set].insert(number) {
            return self.repeated(number, again);
        }
        let wait = patience.unwrap_or(FOR_EVER);
        let taken = self.with(|sink| match sink.submit_region(set as u32, frame, wait) {
            Ok(()) => {
                if self.request.has_regions() {
                    self.board.post_ranges(set, Level::Memory, &std::iter::once(number).collect());
                }
                Ok(Ok(()))
            }
            Err(WriteError::Full) => Ok(Err(NoticeCode::Dropped.of(number, "it found no room in time"))),
            Err(WriteError::Frame { why, .. }) => {
                self.tallies.refused.fetch_add(1, Relaxed);
                Ok(Err(NoticeCode::Refused.of(number, &why)))
            }
            Err(error) => Err(Refusal::new(ErrorCode::Failed, error.to_string())),
        });
        if !matches!(taken, Ok(Ok(()))) {
            self.claims.lock()[set].remove(number);
        }
        taken
    }

    /// Takes frames that share chunks which are filtered already. `again`: their client may have sent them before.
    pub fn take_slab(
        &self,
        source: u16,
        (numbers, taken): (Range<u64>, Nanoseconds),
        chunks: Vec<Blob>,
        again: bool,
        patience: Option<Duration>,
    ) -> Result<Vec<Notice>, Refusal> {
        let set = self.request.set_of(source);
        let new: Vec<u64> = {
            let mut claims = self.claims.lock();
            numbers.clone().filter(|number| claims[set].insert(*number)).collect()
        };
        let give_back = || new.iter().for_each(|number| self.claims.lock()[set].remove(*number));
        if new.is_empty() {
            let repeated = numbers.map(|number| self.repeated(number, again)).collect::<Result<Vec<_>, _>>()?;
            return Ok(repeated.into_iter().filter_map(Result::err).collect());
        }
        let frames = numbers.end - numbers.start;
        if new.len() as u64 != frames {
            give_back();
            self.tallies.refused.fetch_add(frames, Relaxed);
            let why = "some of the frames of its chunks came before; send the others plain";
            return Ok(vec![NoticeCode::Refused.of(numbers.start, why)]);
        }
        let wait = patience.unwrap_or(FOR_EVER);
        let taken = self.with(|sink| match sink.submit_slab(set as u32, (numbers.clone(), taken), chunks, wait) {
            Ok(()) => {
                if self.request.has_regions() {
                    self.board.post_ranges(set, Level::Memory, &numbers.clone().collect());
                }
                Ok(Vec::new())
            }
            Err(WriteError::Full) => {
                let dropped = |number| NoticeCode::Dropped.of(number, "its chunk found no room in time");
                Ok(numbers.clone().map(dropped).collect())
            }
            Err(WriteError::Frame { why, .. }) => {
                self.tallies.refused.fetch_add(frames, Relaxed);
                Ok(vec![NoticeCode::Refused.of(numbers.start, &why)])
            }
            Err(error) => Err(Refusal::new(ErrorCode::Failed, error.to_string())),
        });
        if !matches!(&taken, Ok(notices) if notices.is_empty()) {
            give_back();
        }
        taken
    }

    fn repeated(&self, number: u64, again: bool) -> Result<Result<(), Notice>, Refusal> {
        if again {
            return Ok(Ok(()));
        }
        self.tallies.duplicate.fetch_add(1, Relaxed);
        self.with(|sink| Ok(sink.mark_duplicate(number)))?
            .map_err(|error| Refusal::new(ErrorCode::Failed, error.to_string()))?;
        Ok(Err(NoticeCode::Duplicate.of(number, "the first is kept")))
    }

    /// Frames came whose bytes were changed on their way.
    pub fn damaged(&self, source: u16, numbers: impl Iterator<Item = u64>) -> Result<(), Refusal> {
        let set = self.request.set_of(source);
        for number in numbers {
            self.tallies.damaged.fetch_add(1, Relaxed);
            // A number that cannot be one of the run is damage too, and is not marked.
            if !self.claims.lock()[set].contains(number)
                && let Err(error) = self.with(|sink| Ok(sink.mark_damaged(number)))?
            {
                tracing::debug!(run = self.request.name, number, "a damaged frame is not marked: {error}");
            }
        }
        Ok(())
    }

    /// Ends the run with all frames taken so far, and tells everybody how. Who comes second waits for the first.
    pub fn end(&self, how: How, why: &str) -> Ended {
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::Running) {
                drop(state);
                return self.wait_ended(FOR_EVER).expect("what is ending ends");
            }
            *state = State::Ending;
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
        let (request, series) = (self.request.clone(), self.series.clone());
        let record = Record { request, series, ended: Some(ended.clone()) };
        if let Err(error) = self.home.keep(&record) {
            tracing::error!(run = self.request.name, "cannot keep how the run ended: {error}");
        }
        *self.state.lock() = State::Ended(Box::new(ended.clone()));
        *self.closing.lock() = None;
        self.changed.notify_all();
        self.tell_end(&ended);
        tracing::info!(run = self.request.name, file = %self.path.display(), "the run has ended: {:?}", ended.how);
        ended
    }

    /// To everybody who is connected; the first last word counts.
    pub fn tell_end(&self, ended: &Ended) {
        self.board.each(|outbox| match ended.how {
            How::Finished => outbox.finish(ended.finished),
            How::Aborted | How::Failed => outbox.refuse(self.over()),
        });
    }

    /// Lets the processes that have a share report what they wrote.
    fn await_writers(&self) {
        const WRITERS_WAIT: Duration = Duration::from_secs(20);
        let deadline = Instant::now() + WRITERS_WAIT;
        let writers = self.clients.lock().writers();
        writers.iter().for_each(|outbox| outbox.answer(FromService::Leave));
        while !self.clients.lock().writers_are_complete() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An extent for a process that has a share.
    pub fn grant(&self, bytes: u64) -> Result<Range<u64>, Refusal> {
        /// A writer asks for what many chunks take; far more is an error.
        const EXTENT_BYTES_MAX: u64 = 4 << 30;
        if bytes > EXTENT_BYTES_MAX {
            return Err(Refusal::new(
                ErrorCode::Limit,
                format!("an extent of {bytes} bytes; {EXTENT_BYTES_MAX} at most"),
            ));
        }
        self.with(|sink| sink.grant(bytes))
    }

    /// What a process that has a share has written. A frame that another brought before becomes a duplicate, unless this
    /// is a report that may have come already.
    pub fn report(&self, entries: Vec<Entry>, again: bool) -> Result<(), Refusal> {
        let mut new = Vec::new();
        let mut claims = self.claims.lock();
        for entry in entries {
            match entry {
                Entry::Slab(slab) => {
                    // Each is claimed, whatever the others are.
                    let fresh = slab.frames.iter().filter(|frame| claims[0].insert(frame.number)).count();
                    if fresh > 0 || slab.again {
                        new.push(Entry::Slab(slab));
                    } else if !again {
                        self.tallies.duplicate.fetch_add(slab.frames.len() as u64, Relaxed);
                        new.extend(slab.frames.iter().map(|frame| Entry::Duplicate { frame: frame.number }));
                    }
                }
                Entry::Duplicate { .. } | Entry::Damaged { .. } if again => {}
                entry => new.push(entry),
            }
        }
        drop(claims);
        self.with(|sink| sink.report(new))
    }

    fn close(&self, sink: Sink, how: How, why: &str) -> Ended {
        let progress = sink.progress();
        let observer = sink.observer();
        let lost = self.tallies.lost.load(Relaxed);
        let mut finished = FinishedHead { dropped: progress.dropped + lost, ..FinishedHead::default() };
        let (how, why) = match sink {
            Sink::Own(writer) => match writer.end(how == How::Finished) {
                Ok(end) => {
                    finished.set(end.counts, end.file_bytes);
                    (how, why.to_owned())
                }
                Err(error) => (How::Failed, self.rescue(&error.to_string(), &mut finished)),
            },
            Sink::Share(share, coordinator) => {
                let left = share.leave().map_err(|error| error.to_string());
                match left.and_then(|()| coordinator.leave().map_err(|error| error.to_string())) {
                    Ok(all) => {
                        finished = all;
                        (how, why.to_owned())
                    }
                    Err(error) => (How::Failed, error),
                }
            }
        };
        let pairs = |frames: Ranges| frames.iter().map(|range| (range.start, range.end - range.start)).collect();
        let mut others: Vec<Vec<(u64, u64)>> = self.board.all_frames(Level::Durable).into_iter().map(pairs).collect();
        let frames = others.remove(0);
        let failure = (how == How::Failed).then(|| why.clone());
        let mut progress = Progress { published: finished.frames, failure, ..observer() };
        if how == How::Failed && finished.file_bytes > 0 {
            // What was made valid after the failure holds all that was written.
            progress.durable = progress.written;
        }
        let clients = self.clients.lock().known();
        Ended { how, why, finished, frames, others, progress, tallied: self.tallies.read(), clients }
    }

    /// After a failure: the journal makes the file valid with all frames so far, if the store lets it.
    fn rescue(&self, why: &str, finished: &mut FinishedHead) -> String {
        let mut rescued = recover(&self.path);
        if rescued.is_err() && self.home.reserve.as_ref().is_some_and(Reserve::release) {
            rescued = recover(&self.path);
        }
        match rescued {
            Ok(recovered) => {
                let file_bytes = std::fs::metadata(&self.path).map_or(0, |file| file.len());
                finished.set(recovered.counts, file_bytes);
                for (set, frames) in self.board.all_frames(Level::Written).iter().enumerate() {
                    self.board.post_ranges(set, Level::Durable, frames);
                }
                format!("{why}; the file holds all {} frames so far", finished.received + finished.late)
            }
            Err(error) => format!(
                "{why}; the file opens with the frames of its last commit, and once the cause is gone, \
                 `varve record recover {}` brings back the others ({error})",
                self.path.display()
            ),
        }
    }

    pub fn status(&self) -> Status {
        let sink = self.sink.read().as_ref().map(Sink::state);
        let sink = sink.or_else(|| self.closing.lock().as_ref().map(|observe| observe()));
        let state = self.state.lock();
        let (name, ended) = match &*state {
            State::Running => ("running", None),
            State::Ending => ("ending", None),
            State::Ended(ended) => (["finished", "aborted", "failed"][ended.how as usize], Some(ended.clone())),
        };
        drop(state);
        let tallied = self.tallies.read();
        let progress = match &ended {
            Some(ended) => ended.progress.clone(),
            None => sink.unwrap_or_default(),
        };
        // Clients hear of a failure before the run is ended because of it.
        let name = if name == "running" && progress.failure.is_some() { "ending" } else { name };
        let why = match &ended {
            Some(ended) => Some(ended.why.clone()).filter(|why| !why.is_empty()),
            None => progress.failure.clone(),
        };
        let dropped = ended.as_ref().map(|ended| ended.finished.dropped);
        Status {
            name: self.request.name.clone(),
            file: self.path.clone(),
            state: name,
            why,
            started_ns: self.started,
            connections: self.clients.lock().connections(),
            dropped_frames: dropped.unwrap_or(progress.dropped + tallied.lost),
            progress,
            damaged: tallied.damaged,
            duplicate: tallied.duplicate,
            refused: tallied.refused,
            received_bytes: tallied.received_bytes,
            latest_durable: self.board.end(Level::Durable).checked_sub(1),
            finished: ended.map(|ended| ended.finished),
        }
    }
}

impl Run {
    /// Ends the run if its writer has failed, or its clients have been gone for too long. In a thread of its own, for the
    /// store may take its time.
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
        let late = given_up || absent.is_some_and(|absent| absent > absence);
        let (how, why) = match failure {
            Some(failure) => (How::Failed, failure),
            None if leaves => (How::Finished, "the run was stopped where it was started".into()),
            None if late => (How::Finished, format!("its clients were gone for {} s", self.request.absence_s)),
            None => return,
        };
        self.end_beside(how, why);
    }

    pub fn end_beside(self: &Arc<Self>, how: How, why: String) {
        let run = Arc::clone(self);
        let ended = std::thread::Builder::new().name("end".into()).spawn(move || drop(run.end(how, &why)));
        if let Err(error) = ended {
            tracing::error!(run = self.request.name, "the run cannot be ended now, and will be later: {error}");
        }
    }

    /// Ends the writer's threads without ending the run, which another service takes up.
    pub fn let_go(&self) {
        self.clients.lock().cut();
        {
            let mut state = self.state.lock();
            match *state {
                State::Running => *state = State::Ending,
                State::Ending => {
                    drop(state);
                    self.wait_ended(FOR_EVER);
                    return;
                }
                State::Ended(_) => return,
            }
        }
        if let Some(sink) = &*self.sink.read() {
            sink.close();
        }
        drop(self.sink.write().take());
    }
}
