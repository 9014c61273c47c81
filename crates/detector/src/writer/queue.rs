//! The queue between those who bring frames and those who write them, bounded by bytes: when it is full, who brings
//! waits. Who may wait as long as it takes waits earlier, once enough waits to keep the writers busy, so that frames
//! are still in the processors' caches when they are written; what is above that is for writers that stand still.
//! Frames that share chunks, and regions of one frame, are gathered here until all are there; a slab that stays
//! incomplete is given out as it is when who brought it says so, when room is needed, when the run has gone on without
//! it, when nothing more has come of it for long, or at the run's end.

use crate::description::Description;
use crate::frame::{Frame, Nanoseconds};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A slab whose successors have come already, and to which nothing was added for so long, will hardly be completed.
pub const STALE: Duration = Duration::from_secs(2);
/// The last slab waits longer: what comes of it later is put together with it anew. But not for ever, for a client may end
/// its run only once the last frames are durable.
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
pub enum Patience {
    /// As long as it takes: it is brought no sooner than the writers need it.
    Unlimited,
    /// So long at most, and only if there is no room at all.
    Within(Duration),
    /// It waits for nobody, for who brings it writes it, where it shares chunks with no other. `more`: the next one is on its
    /// way already.
    Writes { more: bool },
}

impl From<Duration> for Patience {
    fn from(wait: Duration) -> Patience {
        Patience::Within(wait)
    }
}

/// What one source brought of one frame.
pub struct Part {
    pub frame: Frame,
    pub source: u32,
    pub received: Nanoseconds,
}

/// What has come of a slab.
pub struct Job {
    pub slab: u64,
    pub parts: Vec<Part>,
}

impl Job {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.frame.payload.bytes()).sum()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Full,
    Closed,
}

/// What a thread that asks gets.
pub enum Next {
    Job(Job),
    /// Nothing waits at this moment.
    Idle,
    /// Nothing will come any more.
    Closed,
}

pub struct Queue {
    bytes_max: usize,
    lead_jobs: usize,
    description: Description,
    /// Parts of a slab, except of the last, which the scan may end within.
    parts: usize,
    state: Mutex<State>,
    room: Condvar,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    gathering: BTreeMap<u64, Gathering>,
    /// Parts of slabs that were given out incomplete.
    given_out: HashMap<u64, usize>,
    /// Slabs that a thread is writing: what comes later is put together with what it writes.
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
    parts: Vec<Part>,
    /// Parts that are still to come.
    lacking: usize,
    last: Instant,
}

impl State {
    fn release_all(&mut self) {
        while let Some(slab) = self.gathering.keys().next().copied() {
            self.release(slab);
        }
    }

    /// So many parts of a slab, which has `all`, are in the file or on their way there.
    fn give_out(&mut self, slab: u64, parts: usize, all: usize) {
        let given_out = self.given_out.entry(slab).or_insert(0);
        *given_out += parts;
        if *given_out >= all {
            self.given_out.remove(&slab);
        }
    }

    /// Gives out a slab that may be incomplete.
    fn release(&mut self, slab: u64) {
        if let Some(gathering) = self.gathering.remove(&slab) {
            if gathering.lacking == 0 {
                self.given_out.remove(&slab);
            } else {
                *self.given_out.entry(slab).or_insert(0) += gathering.parts.len();
            }
            self.jobs.push_back(Job { slab, parts: gathering.parts });
        }
    }
}

impl Queue {
    /// For so many writing threads.
    pub fn new(bytes_max: usize, threads: usize, description: &Description) -> Queue {
        Queue {
            bytes_max,
            lead_jobs: LEAD_JOBS * threads.max(1),
            description: description.clone(),
            parts: description.slab_frames() as usize * description.sources.len().max(1),
            state: Mutex::default(),
            room: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// Whether slabs have several parts.
    pub fn gathers(&self) -> bool {
        self.parts > 1
    }

    /// Parts of one slab, or one part.
    pub fn push(&self, parts: Vec<Part>, patience: Patience) -> Result<(), Refused> {
        let begun = Instant::now();
        let bytes = parts.iter().map(|part| part.frame.payload.bytes()).sum::<usize>();
        let mut state = self.state.lock();
        let deadline = match patience {
            Patience::Unlimited | Patience::Writes { .. } => {
                self.await_writers(&mut state, begun + LEAD_WAIT);
                begun + FOR_EVER
            }
            Patience::Within(wait) => begun + wait,
        };
        // A frame larger than the whole queue is taken when nothing else waits.
        while !state.closed && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            // Only if all room is taken by slabs that wait for more, one of them must go without.
            if state.jobs.is_empty()
                && let Some(oldest) = state.gathering.keys().next().copied()
            {
                state.release(oldest);
                self.work.notify_one();
            }
            if self.room.wait_until(&mut state, deadline).timed_out() {
                return Err(Refused::Full);
            }
        }
        if state.closed {
            return Err(Refused::Closed);
        }
        state.bytes += bytes;
        if self.gathers() {
            parts.into_iter().for_each(|part| self.gather(&mut state, part));
        } else if let Some(slab) = parts.first().map(|part| part.frame.number) {
            state.jobs.push_back(Job { slab, parts });
            self.work.notify_one();
        }
        Ok(())
    }

    /// Whoever asks writes a frame itself, and nothing is closed until it has said that this has ended.
    pub fn begin_own(&self) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
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

    fn await_writers(&self, state: &mut MutexGuard<'_, State>, deadline: Instant) {
        let is_ahead = |state: &State| state.jobs.len() >= self.lead_jobs && state.bytes >= LEAD_BYTES;
        while !state.closed && !state.stalled && is_ahead(state) {
            state.stalled = self.room.wait_until(state, deadline).timed_out();
        }
    }

    fn gather(&self, state: &mut State, part: Part) {
        let (slab, _) = self.description.slab_of(part.frame.number);
        state.highest = state.highest.max(slab);
        let given_out = state.given_out.get(&slab).copied().unwrap_or(0);
        let gathering = state.gathering.entry(slab).or_insert_with(|| Gathering {
            parts: Vec::new(),
            lacking: self.parts_of(slab) - given_out,
            last: Instant::now(),
        });
        gathering.parts.push(part);
        gathering.lacking -= 1;
        gathering.last = Instant::now();
        if gathering.lacking == 0 {
            state.release(slab);
            self.work.notify_one();
        }
    }

    /// Parts of the slab are in the file: they came before the run was taken up, or another process wrote them.
    pub fn came(&self, slab: u64, parts: usize) {
        if self.gathers() {
            self.state.lock().give_out(slab, parts, self.parts_of(slab));
        }
    }

    fn parts_of(&self, slab: u64) -> usize {
        self.description.frames_of(slab).count() * self.description.sources.len().max(1)
    }

    /// Has a slab of which nothing is here be somebody else's, until [`Queue::done`]; `false`: something is.
    pub fn claim(&self, slab: u64) -> bool {
        let mut state = self.state.lock();
        let waits = state.gathering.contains_key(&slab) || state.jobs.iter().any(|job| job.slab == slab);
        !waits && state.busy.insert(slab)
    }

    /// Parts of one slab that another process filtered together: they are written by themselves, whatever else waits to be
    /// gathered, and put together with that in the file.
    pub fn push_beside(&self, slab: u64, parts: Vec<Part>) -> Result<(), Refused> {
        if parts.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let job = Job { slab, parts };
        state.bytes += job.bytes();
        if let Some(gathering) = state.gathering.get_mut(&slab) {
            gathering.lacking -= job.parts.len();
            let complete = gathering.lacking == 0;
            state.give_out(slab, job.parts.len(), self.parts_of(slab));
            if complete {
                state.release(slab);
            }
        } else {
            state.give_out(slab, job.parts.len(), self.parts_of(slab));
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Gives out the slabs that will hardly be completed.
    pub fn release_stale(&self) {
        let mut state = self.state.lock();
        let highest = state.highest;
        let stale = |(slab, gathering): (&u64, &Gathering)| {
            let wait = if *slab < highest { STALE } else { LAST_STALE };
            (gathering.last.elapsed() >= wait).then_some(*slab)
        };
        let slabs: Vec<u64> = state.gathering.iter().filter_map(stale).collect();
        for slab in slabs {
            state.release(slab);
            self.work.notify_one();
        }
    }

    /// Gives out all slabs as they are.
    pub fn flush(&self) {
        self.state.lock().release_all();
        self.work.notify_all();
    }

    /// `wait`: whether to wait for work rather than to answer [`Next::Idle`].
    pub fn pop(&self, wait: bool) -> Next {
        let mut state = self.state.lock();
        loop {
            let free = state.jobs.iter().position(|job| !state.busy.contains(&job.slab));
            if let Some(job) = free.and_then(|at| state.jobs.remove(at)) {
                state.bytes -= job.bytes();
                state.stalled = false;
                if self.gathers() {
                    state.busy.insert(job.slab);
                }
                self.room.notify_all();
                return Next::Job(job);
            }
            if state.closed && state.jobs.is_empty() && state.own == 0 {
                return Next::Closed;
            }
            if !wait {
                return Next::Idle;
            }
            self.work.wait(&mut state);
        }
    }

    /// These slabs have been written: what came of them since may be.
    pub fn done(&self, slabs: impl Iterator<Item = u64>) {
        if self.gathers() {
            let mut state = self.state.lock();
            for slab in slabs {
                state.busy.remove(&slab);
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
