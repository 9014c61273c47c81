//! One run of the service: reception of frames from connections, and the end of the run. After any end the file is
//! valid, or the run's status says what is to be done.

mod end;
mod report;
mod status;
mod tallies;

pub use end::Unfinished;
pub use status::RunStatus;
pub use tallies::Tallies;

use super::board::ProgressBoard;
use super::clients::Clients;
use super::pva::PvaSource;
use super::records::{EndKind, RunEnd, RunRecord, RunRecords, TakenSeries};
use super::request::StartRequest;
use super::sink::RunSink;
use super::writer_share::WriterShare;
use parking_lot::{Condvar, Mutex, RwLock};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Duration;
use varve_detector_dataset::frame::{AckLevel, Blob, Frame};
use varve_detector_dataset::ranges::Ranges;
use varve_detector_dataset::structure::{DatasetPlace, places};
use varve_detector_dataset::time::{Nanoseconds, unix_nanos};
use varve_detector_stream::{ErrorCode, Notice, NoticeCode, StreamRefusal};
use varve_detector_writer::{InlineWrite, WaitPolicy, WriteError, WriterProgress};
use varve_env::reserve::Reserve;

/// Timeout for waiting while another thread ends the run.
const FOR_EVER: Duration = Duration::from_secs(365 * 86400);

/// State shared by the service's runs.
pub struct RunContext {
    pub root: PathBuf,
    /// `None` if another process keeps the run.
    pub records: Option<RunRecords>,
    /// Disk space that is released when the store is full, so that files can be made valid.
    pub reserve: Option<Reserve>,
}

impl RunContext {
    pub fn keep(&self, record: &RunRecord) -> io::Result<()> {
        self.records.as_ref().map_or(Ok(()), |records| records.write(record))
    }

    pub fn forget(&self, name: &str) -> io::Result<()> {
        self.records.as_ref().map_or(Ok(()), |records| records.remove(name))
    }
}

pub struct Run {
    pub request: StartRequest,
    /// The start message of a DECTRIS detector.
    pub series: Option<Box<TakenSeries>>,
    /// The PV that sends the frames.
    pub pva: Option<PvaSource>,
    /// Whether the run's file was created.
    begun: bool,
    /// Whether a client began the run.
    by_client: bool,
    pub path: PathBuf,
    datasets: Vec<DatasetPlace>,
    pub started: Nanoseconds,
    pub board: Arc<ProgressBoard>,
    pub clients: Mutex<Clients>,
    pub tallies: Tallies,
    home: Arc<RunContext>,
    sink: RwLock<Option<RunSink>>,
    /// Connection to the coordinating service, for a writer share.
    coordinator: Option<Arc<WriterShare>>,
    /// Frames taken or being taken; one set per source if sources send regions. The board of a share additionally has
    /// the frames of other processes.
    claims: Mutex<Vec<Ranges>>,
    state: Mutex<RunState>,
    changed: Condvar,
    /// Reads the progress while the writer is being ended.
    closing: Mutex<Option<Observer>>,
    /// Number of the last writer that was given a share.
    pub epoch: AtomicU32,
    /// Number of connections that send frames.
    pub feeders: AtomicUsize,
}

type Observer = Box<dyn Fn() -> WriterProgress + Send + Sync>;

enum RunState {
    /// The run cannot be taken up from a previous service's files yet, for this reason.
    Waiting(String),
    Running,
    /// Kind and reason of the end.
    Ending(EndKind, String),
    Ended(Box<RunEnd>),
}

impl Run {
    pub fn new(
        home: Arc<RunContext>,
        record: RunRecord,
        path: PathBuf,
        (sink, board): (RunSink, Arc<ProgressBoard>),
    ) -> Run {
        let claims = board.all_frames(AckLevel::Memory);
        let record = RunRecord { begun: true, ..record };
        Run::made(home, record, path, (Some(sink), board, claims, RunState::Running))
    }

    /// A run that ended before the service was started.
    pub fn ended(home: Arc<RunContext>, record: RunRecord, ended: RunEnd) -> Run {
        let path = home.root.join(&record.request.file);
        let mut frames = ended.ranges();
        // Records of earlier versions may have only the first source.
        frames.resize(frames.len().max(record.request.sets()), Ranges::default());
        let board = Arc::new(ProgressBoard::with(frames.clone()));
        let tallies = Tallies::of(ended.tallied);
        let made = Run::made(home, record, path, (None, board, frames, RunState::Ended(Box::new(ended))));
        Run { tallies, ..made }
    }

    /// A run that cannot be taken up yet, for the reason `why`.
    pub fn waiting(home: Arc<RunContext>, record: RunRecord, why: String) -> Run {
        let path = home.root.join(&record.request.file);
        let sets = vec![Ranges::default(); record.request.sets()];
        let board = Arc::new(ProgressBoard::with(sets.clone()));
        Run::made(home, record, path, (None, board, sets, RunState::Waiting(why)))
    }

    fn made(
        home: Arc<RunContext>,
        RunRecord { request, series, pva, begun, by_client, .. }: RunRecord,
        path: PathBuf,
        (sink, board, claims, state): (Option<RunSink>, Arc<ProgressBoard>, Vec<Ranges>, RunState),
    ) -> Run {
        Run {
            datasets: places(&request.description),
            request,
            series,
            pva,
            begun,
            by_client,
            path,
            started: unix_nanos(),
            board,
            clients: Mutex::default(),
            tallies: Tallies::default(),
            home,
            coordinator: sink.as_ref().and_then(RunSink::coordinator),
            sink: RwLock::new(sink),
            claims: Mutex::new(claims),
            state: Mutex::new(state),
            changed: Condvar::new(),
            closing: Mutex::default(),
            epoch: AtomicU32::new(0),
            feeders: AtomicUsize::new(0),
        }
    }

    /// The record for future services.
    pub fn record(&self, ended: Option<RunEnd>) -> RunRecord {
        let (request, series, pva) = (self.request.clone(), self.series.clone(), self.pva.clone());
        RunRecord { request, series, pva, begun: self.begun, by_client: self.by_client, ended }
    }

    pub fn is_running(&self) -> bool {
        matches!(*self.state.lock(), RunState::Running)
    }

    /// Why the run cannot be taken up yet, if so.
    pub fn awaits(&self) -> Option<String> {
        match &*self.state.lock() {
            RunState::Waiting(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Changes the reason for waiting.
    pub fn await_otherwise(&self, why: String) {
        *self.state.lock() = RunState::Waiting(why);
    }

    pub fn ended_as(&self) -> Option<RunEnd> {
        match &*self.state.lock() {
            RunState::Ended(ended) => Some(RunEnd::clone(ended)),
            _ => None,
        }
    }

    /// Whether this client took part in the run.
    pub fn had(&self, client: &[u8; 16]) -> bool {
        self.clients.lock().known().contains(client)
            || matches!(&*self.state.lock(), RunState::Ended(ended) if ended.clients.contains(client))
    }

    /// Calls `work` with the run's sink while the run is running.
    pub fn with<T>(&self, work: impl FnOnce(&RunSink) -> Result<T, StreamRefusal>) -> Result<T, StreamRefusal> {
        match &*self.sink.read() {
            Some(sink) => work(sink),
            None => Err(self.over()),
        }
    }

    /// A buffer for received data.
    pub fn buffer(&self, bytes: u64) -> Vec<u8> {
        self.sink.read().as_ref().map_or_else(Vec::new, |sink| sink.buffer(bytes as usize))
    }

    /// Why the run accepts nothing any more.
    pub fn over(&self) -> StreamRefusal {
        let state = self.state.lock();
        let (how, why) = match &*state {
            RunState::Waiting(why) => {
                return StreamRefusal::new(ErrorCode::Stopping, format!("cannot resume the run yet: {why}"));
            }
            RunState::Running => (EndKind::Finished, ""),
            RunState::Ending(how, why) => (*how, why.as_str()),
            RunState::Ended(ended) => (ended.how, ended.why.as_str()),
        };
        match how {
            EndKind::Failed => StreamRefusal::new(ErrorCode::Failed, why),
            EndKind::Aborted => StreamRefusal::new(ErrorCode::Ended, "the run was aborted"),
            EndKind::Finished => StreamRefusal::new(ErrorCode::Ended, "the run has been finished or is being finished"),
        }
    }

    /// Takes a frame. `again`: whether its client may have sent it before; called only for a frame that came before.
    pub fn take(
        &self,
        source: u16,
        frame: Frame,
        again: impl Fn() -> bool,
        patience: WaitPolicy,
    ) -> Result<Result<(), Notice>, StreamRefusal> {
        let (number, set) = (frame.number, self.request.set_of(source));
        if !self.claim(&mut self.claims.lock(), set, number) {
            return self.repeated(set, number, again());
        }
        let taken = self.with(|sink| match sink.hand_in(set as u32, frame, patience) {
            Ok(inline_write) => {
                if self.request.has_regions() {
                    self.board.post_ranges(set, AckLevel::Memory, &std::iter::once(number).collect());
                }
                Ok(Ok(inline_write))
            }
            Err(WriteError::Full) => Ok(Err(NoticeCode::Dropped.of(number, "the queue had no room for it in time"))),
            Err(WriteError::Frame { why, .. }) => {
                self.tallies.refused.fetch_add(1, Relaxed);
                Ok(Err(NoticeCode::Refused.of(number, &why)))
            }
            Err(WriteError::Closed) => Err(self.over()),
            Err(error) => Err(StreamRefusal::new(ErrorCode::Failed, error.to_string())),
        });
        if !matches!(taken, Ok(Ok(_))) {
            self.claims.lock()[set].remove(number);
        }
        // Done after the sink's lock is released, so that ending the run does not wait for the write.
        taken.map(|taken| taken.map(|inline_write| inline_write.into_iter().for_each(InlineWrite::write)))
    }

    /// Takes frames that share pre-filtered chunks. `again`: see [`Run::take`].
    pub fn take_chunk_group(
        &self,
        source: u16,
        (numbers, taken): (Range<u64>, Nanoseconds),
        chunks: Vec<Blob>,
        again: impl Fn() -> bool,
        patience: WaitPolicy,
    ) -> Result<Vec<Notice>, StreamRefusal> {
        let set = self.request.set_of(source);
        let new: Vec<u64> = {
            let mut claims = self.claims.lock();
            numbers.clone().filter(|number| self.claim(&mut claims, set, *number)).collect()
        };
        let give_back = || new.iter().for_each(|number| self.claims.lock()[set].remove(*number));
        if new.is_empty() {
            let repeated = numbers.map(|number| self.repeated(set, number, again())).collect::<Result<Vec<_>, _>>()?;
            return Ok(repeated.into_iter().filter_map(Result::err).collect());
        }
        let frames = numbers.end - numbers.start;
        if new.len() as u64 != frames {
            give_back();
            self.tallies.refused.fetch_add(frames, Relaxed);
            let why = "some frames of its chunks arrived before; send the others uncompressed";
            return Ok(vec![NoticeCode::Refused.of(numbers.start, why)]);
        }
        let taken =
            self.with(|sink| match sink.submit_chunk_group(set as u32, (numbers.clone(), taken), chunks, patience) {
                Ok(()) => {
                    if self.request.has_regions() {
                        self.board.post_ranges(set, AckLevel::Memory, &numbers.clone().collect());
                    }
                    Ok(Vec::new())
                }
                Err(WriteError::Full) => {
                    let dropped =
                        |number| NoticeCode::Dropped.of(number, "the queue had no room for its chunk in time");
                    Ok(numbers.clone().map(dropped).collect())
                }
                Err(WriteError::Frame { why, .. }) => {
                    self.tallies.refused.fetch_add(frames, Relaxed);
                    Ok(vec![NoticeCode::Refused.of(numbers.start, &why)])
                }
                Err(WriteError::Closed) => Err(self.over()),
                Err(error) => Err(StreamRefusal::new(ErrorCode::Failed, error.to_string())),
            });
        if !matches!(&taken, Ok(notices) if notices.is_empty()) {
            give_back();
        }
        taken
    }

    /// Claims a frame; `false` if it came before. A share also knows frames of other processes once they are in the
    /// file.
    fn claim(&self, claims: &mut [Ranges], set: usize, number: u64) -> bool {
        claims[set].insert(number) && !self.board.has(set, number)
    }

    /// Handles a repeated frame: the first copy is kept, and its levels are acknowledged again.
    fn repeated(&self, set: usize, number: u64, again: bool) -> Result<Result<(), Notice>, StreamRefusal> {
        self.board.repeat(set, number);
        if again {
            return Ok(Ok(()));
        }
        self.tallies.duplicate.fetch_add(1, Relaxed);
        self.with(|sink| Ok(sink.mark_duplicate(number)))?
            .map_err(|error| StreamRefusal::new(ErrorCode::Failed, error.to_string()))?;
        Ok(Err(NoticeCode::Duplicate.of(number, "the first copy is kept")))
    }

    /// Marks frames that were damaged in transmission.
    pub fn damaged(&self, source: u16, numbers: impl Iterator<Item = u64>) -> Result<(), StreamRefusal> {
        let set = self.request.set_of(source);
        for number in numbers {
            self.tallies.damaged.fetch_add(1, Relaxed);
            // The number itself may be damaged and is then not marked.
            if !self.claims.lock()[set].contains(number)
                && let Err(error) = self.with(|sink| Ok(sink.mark_damaged(number)))?
            {
                tracing::debug!(run = self.request.name, number, "cannot mark a damaged frame: {error}");
            }
        }
        Ok(())
    }

    /// Grants an extent to a joined process.
    pub fn grant(&self, bytes: u64) -> Result<Range<u64>, StreamRefusal> {
        /// A writer requests space for many chunks; far more than that is an error.
        const EXTENT_BYTES_MAX: u64 = 4 << 30;
        if bytes > EXTENT_BYTES_MAX {
            return Err(StreamRefusal::new(
                ErrorCode::Limit,
                format!("an extent has {bytes} bytes; at most {EXTENT_BYTES_MAX} are allowed"),
            ));
        }
        self.with(|sink| sink.grant(bytes))
    }
}
