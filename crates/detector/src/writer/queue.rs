//! The queue between those who bring frames and those who write them, bounded by bytes: when it is full, who brings
//! waits. Who may wait as long as it takes waits earlier, once enough waits to keep the writers busy, so that frames
//! are still in the processors' caches when they are written; what is above that is for writers that stand still.
//! Frames that share chunks, and regions of one frame, are gathered here until all are there; a chunk group that stays
//! incomplete is given out as it is when who brought it says so, when room is needed, when the run has gone on without
//! it, when nothing more has come of it for long, or at the run's end.

use crate::dataset_spec::DatasetSpec;
use crate::frame::{Frame, Nanoseconds};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A chunk group whose successors have come already, and to which nothing was added for so long, will hardly be
/// completed.
pub const STALE: Duration = Duration::from_secs(2);
/// The last chunk group waits longer: what comes of it later is put together with it anew. But not for ever, for a
/// client may end its run only once the last frames are durable.
const LAST_STALE: Duration = Duration::from_secs(5);

/// For each writing thread so many jobs keep it busy, however unevenly they are brought,
const LEAD_JOBS: usize = 2;
/// where they have so many bytes together: small ones are written in many at a time.
const LEAD_BYTES: usize = 8 << 20;
/// Writers that have taken nothing for so long stand still: the store hangs, or a frame takes them long.
const LEAD_WAIT: Duration = Duration::from_millis(200);
/// A store that hangs is not the detector's fault.
const FOR_EVER: Duration = Duration::from_secs(365 * 86400);

/// How long who brings a frame waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// As long as it takes: it is brought no sooner than the writers need it.
    Unlimited,
    /// So long at most, and only if there is no room at all.
    Within(Duration),
    /// It waits for nobody, for who brings it writes it, where it shares chunks with no other. `more`: the next one is on its
    /// way already.
    Writes { more: bool },
}

impl From<Duration> for WaitPolicy {
    fn from(wait: Duration) -> WaitPolicy {
        WaitPolicy::Within(wait)
    }
}

/// What one source brought of one frame.
pub struct FramePart {
    pub frame: Frame,
    pub source: u32,
    pub received: Nanoseconds,
}

/// What has come of a chunk group.
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

/// What a thread that asks gets.
pub enum NextJob {
    Job(Job),
    /// Nothing waits at this moment.
    Idle,
    /// Nothing will come any more.
    Closed,
}

pub struct FrameQueue {
    bytes_max: usize,
    lead_jobs: usize,
    description: DatasetSpec,
    /// Parts of a chunk group, except of the last, which the scan may end within.
    parts: usize,
    state: Mutex<QueueState>,
    room: Condvar,
    work: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    gathering: BTreeMap<u64, Gathering>,
    /// Parts of chunk groups that were given out incomplete.
    given_out: HashMap<u64, usize>,
    /// Chunk groups that a thread is writing: what comes later is put together with what it writes.
    busy: HashSet<u64>,
    bytes: usize,
    /// Frames that are being written by who brought them.
    own: usize,
    highest: u64,
    /// Nothing was given out while somebody waited for it.
    stalled: bool,
    closed: bool,
}

struct Gathering {
    parts: Vec<FramePart>,
    /// Parts that are still to come.
    lacking: usize,
    last: Instant,
}

impl QueueState {
    fn release_all(&mut self) {
        while let Some(chunk_group) = self.gathering.keys().next().copied() {
            self.release(chunk_group);
        }
    }

    /// So many parts of a chunk group, which has `all`, are in the file or on their way there.
    fn give_out(&mut self, chunk_group: u64, parts: usize, all: usize) {
        let given_out = self.given_out.entry(chunk_group).or_insert(0);
        *given_out += parts;
        if *given_out >= all {
            self.given_out.remove(&chunk_group);
        }
    }

    /// Gives out a chunk group that may be incomplete.
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
    /// For so many writing threads.
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

    /// Parts of one chunk group, or one part.
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
        // A frame larger than the whole queue is taken when nothing else waits.
        while !state.closed && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            // Only if all room is taken by chunk groups that wait for more, one of them must go without.
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

    /// Whoever asks writes a frame itself, and nothing is closed until it has said that this has ended.
    pub fn begin_own(&self) -> Result<(), QueueRefused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(QueueRefused::Closed);
        }
        state.own += 1;
        Ok(())
    }

    /// It has ended; with what was not written, which the writing threads get.
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

    /// Parts of the chunk group are in the file: they came before the run was taken up, or another process wrote them.
    pub fn came(&self, chunk_group: u64, parts: usize) {
        if self.gathers() {
            self.state.lock().give_out(chunk_group, parts, self.parts_of(chunk_group));
        }
    }

    fn parts_of(&self, chunk_group: u64) -> usize {
        self.description.frames_of(chunk_group).count() * self.description.sources.len().max(1)
    }

    /// Has a chunk group of which nothing is here be somebody else's, until [`FrameQueue::done`]; `false`: something
    /// is.
    pub fn claim(&self, chunk_group: u64) -> bool {
        let mut state = self.state.lock();
        let waits =
            state.gathering.contains_key(&chunk_group) || state.jobs.iter().any(|job| job.chunk_group == chunk_group);
        !waits && state.busy.insert(chunk_group)
    }

    /// Parts of one chunk group that another process filtered together: they are written by themselves, whatever else
    /// waits to be gathered, and put together with that in the file.
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

    /// Gives out the chunk groups that will hardly be completed.
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

    /// Gives out all chunk groups as they are.
    pub fn flush(&self) {
        self.state.lock().release_all();
        self.work.notify_all();
    }

    /// `wait`: whether to wait for work rather than to answer [`NextJob::Idle`].
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

    /// These chunk groups have been written: what came of them since may be.
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

    /// Takes nothing more, and gives nothing out any more.
    pub fn abandon(&self) {
        self.close();
        let mut state = self.state.lock();
        state.jobs.clear();
        state.bytes = 0;
        drop(state);
        self.work.notify_all();
    }

    /// Takes nothing more; what waits is still given out.
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
