//! The queue between receivers and writing threads, bounded by bytes. When it is full, callers wait.
//!
//! Callers that may wait without limit wait earlier, once enough jobs are queued to keep the writers busy, so that
//! frames are still in CPU caches when they are written. The rest of the queue is used while the writers stall.
//!
//! Frames that share chunks, and regions of one frame, are gathered here until all are there. An incomplete chunk group
//! is released when its client asks for it, when space is needed, when the run has gone on without it, when nothing was
//! added to it for long, or at the end of the run.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::Frame;
use varve_detector_dataset::time::Nanoseconds;

/// A chunk group to which nothing was added for this long, while later chunk groups have begun, will probably not be
/// completed.
pub const STALE: Duration = Duration::from_secs(2);
/// The last chunk group waits longer, because later frames of a released chunk group cost another assembly. It does not
/// wait for ever, because a client may end its run only once the last frames are durable.
const LAST_STALE: Duration = Duration::from_secs(5);

/// Number of queued jobs per writing thread that keeps the threads busy, however unevenly jobs arrive.
const LEAD_JOBS: usize = 2;
/// Bytes that these jobs must have together; small jobs are written many at a time.
const LEAD_BYTES: usize = 8 << 20;
/// Writers that have taken nothing for this long are stalled: the store hangs, or one frame takes them long.
const LEAD_WAIT: Duration = Duration::from_millis(200);
/// Callers without a time limit wait for a store that hangs, because the detector is not at fault.
const FOR_EVER: Duration = Duration::from_secs(365 * 86400);

/// How long a caller waits for queue space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Without limit. Frames are accepted no sooner than the writers need them.
    Unlimited,
    /// At most this long, and only if the queue is full.
    Within(Duration),
    /// No wait: the caller writes the frame itself if it shares chunks with no other. `more`: the next frame is already
    /// arriving.
    Writes { more: bool },
}

impl From<Duration> for WaitPolicy {
    fn from(wait: Duration) -> WaitPolicy {
        WaitPolicy::Within(wait)
    }
}

/// One source's part of one frame.
pub struct FramePart {
    pub frame: Frame,
    pub source: u32,
    pub received: Nanoseconds,
}

/// The received parts of a chunk group.
pub struct Job {
    pub chunk_group: u64,
    pub parts: Vec<FramePart>,
}

impl Job {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.frame.payload.bytes()).sum()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum QueueRefused {
    Full,
    Closed,
}

/// Result of [`FrameQueue::pop`].
pub enum NextJob {
    Job(Job),
    /// The queue is empty now.
    Idle,
    /// No more jobs will come.
    Closed,
}

pub struct FrameQueue {
    bytes_max: usize,
    lead_jobs: usize,
    description: DatasetSpec,
    /// Parts of a complete chunk group. The last one may have fewer, because the scan may end within it.
    parts: usize,
    state: Mutex<QueueState>,
    room: Condvar,
    work: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    gathering: BTreeMap<u64, Gathering>,
    /// Number of released parts by incomplete chunk group.
    given_out: HashMap<u64, usize>,
    /// Chunk groups that a thread is writing. Parts that arrive meanwhile are added to the written chunks afterwards.
    busy: HashSet<u64>,
    bytes: usize,
    /// Number of frames that callers are writing themselves.
    own: usize,
    highest: u64,
    /// Set when no job was taken while a caller waited for it.
    stalled: bool,
    closed: bool,
}

struct Gathering {
    parts: Vec<FramePart>,
    /// Number of parts that have not arrived.
    lacking: usize,
    last: Instant,
}

impl QueueState {
    fn release_all(&mut self) {
        while let Some(chunk_group) = self.gathering.keys().next().copied() {
            self.release(chunk_group);
        }
    }

    /// Notes that further parts of a chunk group, which has `all` parts, are in the file or being written.
    fn give_out(&mut self, chunk_group: u64, parts: usize, all: usize) {
        let given_out = self.given_out.entry(chunk_group).or_insert(0);
        *given_out += parts;
        if *given_out >= all {
            self.given_out.remove(&chunk_group);
        }
    }

    /// Releases a chunk group that may be incomplete.
    fn release(&mut self, chunk_group: u64) {
        if let Some(gathering) = self.gathering.remove(&chunk_group) {
            if gathering.lacking == 0 {
                self.given_out.remove(&chunk_group);
            } else {
                *self.given_out.entry(chunk_group).or_insert(0) += gathering.parts.len();
            }
            self.jobs.push_back(Job { chunk_group, parts: gathering.parts });
        }
    }
}

impl FrameQueue {
    /// `threads`: number of writing threads.
    pub fn new(bytes_max: usize, threads: usize, description: &DatasetSpec) -> FrameQueue {
        FrameQueue {
            bytes_max,
            lead_jobs: LEAD_JOBS * threads.max(1),
            description: description.clone(),
            parts: description.chunk_group_frames() as usize * description.sources.len().max(1),
            state: Mutex::default(),
            room: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// Whether chunk groups have several parts.
    pub fn gathers(&self) -> bool {
        self.parts > 1
    }

    /// Queues parts of one chunk group, or a single part.
    pub fn push(&self, parts: Vec<FramePart>, patience: WaitPolicy) -> Result<(), QueueRefused> {
        let begun = Instant::now();
        let bytes = parts.iter().map(|part| part.frame.payload.bytes()).sum::<usize>();
        let mut state = self.state.lock();
        let deadline = match patience {
            WaitPolicy::Unlimited | WaitPolicy::Writes { .. } => {
                self.await_writers(&mut state, begun + LEAD_WAIT);
                begun + FOR_EVER
            }
            WaitPolicy::Within(wait) => begun + wait,
        };
        // A frame larger than the whole queue is accepted when the queue is empty.
        while !state.closed && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            // If incomplete chunk groups use all the space, the oldest one is released.
            if state.jobs.is_empty()
                && let Some(oldest) = state.gathering.keys().next().copied()
            {
                state.release(oldest);
                self.work.notify_one();
            }
            if self.room.wait_until(&mut state, deadline).timed_out() {
                return Err(QueueRefused::Full);
            }
        }
        if state.closed {
            return Err(QueueRefused::Closed);
        }
        state.bytes += bytes;
        if self.gathers() {
            parts.into_iter().for_each(|part| self.gather(&mut state, part));
        } else if let Some(chunk_group) = parts.first().map(|part| part.frame.number) {
            state.jobs.push_back(Job { chunk_group, parts });
            self.work.notify_one();
        }
        Ok(())
    }

    /// Registers that the caller writes a frame itself. Threads do not end before [`FrameQueue::end_own`].
    pub fn begin_own(&self) -> Result<(), QueueRefused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(QueueRefused::Closed);
        }
        state.own += 1;
        Ok(())
    }

    /// Ends [`FrameQueue::begin_own`]. The writing threads get the job if it was not written.
    pub fn end_own(&self, unwritten: Option<Job>) {
        let mut state = self.state.lock();
        state.own -= 1;
        if let Some(job) = unwritten {
            state.bytes += job.bytes();
            state.jobs.push_back(job);
        }
        let wakes = state.closed || !state.jobs.is_empty();
        drop(state);
        if wakes {
            self.work.notify_all();
        }
    }

    fn await_writers(&self, state: &mut MutexGuard<'_, QueueState>, deadline: Instant) {
        let is_ahead = |state: &QueueState| state.jobs.len() >= self.lead_jobs && state.bytes >= LEAD_BYTES;
        while !state.closed && !state.stalled && is_ahead(state) {
            state.stalled = self.room.wait_until(state, deadline).timed_out();
        }
    }

    fn gather(&self, state: &mut QueueState, part: FramePart) {
        let (chunk_group, _) = self.description.chunk_group_of(part.frame.number);
        state.highest = state.highest.max(chunk_group);
        let given_out = state.given_out.get(&chunk_group).copied().unwrap_or(0);
        let gathering = state.gathering.entry(chunk_group).or_insert_with(|| Gathering {
            parts: Vec::new(),
            lacking: self.parts_of(chunk_group) - given_out,
            last: Instant::now(),
        });
        gathering.parts.push(part);
        gathering.lacking -= 1;
        gathering.last = Instant::now();
        if gathering.lacking == 0 {
            state.release(chunk_group);
            self.work.notify_one();
        }
    }

    /// Notes that parts of the chunk group are in the file, from before the run was taken up or from another process.
    pub fn came(&self, chunk_group: u64, parts: usize) {
        if self.gathers() {
            self.state.lock().give_out(chunk_group, parts, self.parts_of(chunk_group));
        }
    }

    fn parts_of(&self, chunk_group: u64) -> usize {
        self.description.frames_of(chunk_group).count() * self.description.sources.len().max(1)
    }

    /// Claims a chunk group of which no part is queued, until [`FrameQueue::done`]; `false`: parts are queued, or it is
    /// claimed already.
    pub fn claim(&self, chunk_group: u64) -> bool {
        let mut state = self.state.lock();
        let waits =
            state.gathering.contains_key(&chunk_group) || state.jobs.iter().any(|job| job.chunk_group == chunk_group);
        !waits && state.busy.insert(chunk_group)
    }

    /// Queues parts of one chunk group that another process filtered together. They are written separately, whatever
    /// else is being gathered, and are combined with that in the file.
    pub fn push_beside(&self, chunk_group: u64, parts: Vec<FramePart>) -> Result<(), QueueRefused> {
        if parts.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.closed {
            return Err(QueueRefused::Closed);
        }
        let job = Job { chunk_group, parts };
        state.bytes += job.bytes();
        if let Some(gathering) = state.gathering.get_mut(&chunk_group) {
            gathering.lacking -= job.parts.len();
            let complete = gathering.lacking == 0;
            state.give_out(chunk_group, job.parts.len(), self.parts_of(chunk_group));
            if complete {
                state.release(chunk_group);
            }
        } else {
            state.give_out(chunk_group, job.parts.len(), self.parts_of(chunk_group));
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Releases the chunk groups that will probably not be completed.
    pub fn release_stale(&self) {
        let mut state = self.state.lock();
        let highest = state.highest;
        let stale = |(chunk_group, gathering): (&u64, &Gathering)| {
            let wait = if *chunk_group < highest { STALE } else { LAST_STALE };
            (gathering.last.elapsed() >= wait).then_some(*chunk_group)
        };
        let chunk_groups: Vec<u64> = state.gathering.iter().filter_map(stale).collect();
        for chunk_group in chunk_groups {
            state.release(chunk_group);
            self.work.notify_one();
        }
    }

    /// Releases all chunk groups as they are.
    pub fn flush(&self) {
        self.state.lock().release_all();
        self.work.notify_all();
    }

    /// `wait`: whether to wait for work instead of returning [`NextJob::Idle`].
    pub fn pop(&self, wait: bool) -> NextJob {
        let mut state = self.state.lock();
        loop {
            let free = state.jobs.iter().position(|job| !state.busy.contains(&job.chunk_group));
            if let Some(job) = free.and_then(|at| state.jobs.remove(at)) {
                state.bytes -= job.bytes();
                state.stalled = false;
                if self.gathers() {
                    state.busy.insert(job.chunk_group);
                }
                self.room.notify_all();
                return NextJob::Job(job);
            }
            if state.closed && state.jobs.is_empty() && state.own == 0 {
                return NextJob::Closed;
            }
            if !wait {
                return NextJob::Idle;
            }
            self.work.wait(&mut state);
        }
    }

    /// Notes that these chunk groups have been written, so that parts received meanwhile can be written.
    pub fn done(&self, chunk_groups: impl Iterator<Item = u64>) {
        if self.gathers() {
            let mut state = self.state.lock();
            for chunk_group in chunk_groups {
                state.busy.remove(&chunk_group);
            }
            drop(state);
            self.work.notify_all();
        }
    }

    /// Takes no more frames and discards the queued ones.
    pub fn abandon(&self) {
        self.close();
        let mut state = self.state.lock();
        state.jobs.clear();
        state.bytes = 0;
        drop(state);
        self.work.notify_all();
    }

    /// Takes no more frames; queued ones are still handed out.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.release_all();
        drop(state);
        self.room.notify_all();
        self.work.notify_all();
    }
}

#[cfg(test)]
mod tests;
