//! Profiling of operations: sums of the time that this process spends in each stage, for `varve bench profile`. While
//! no profile runs, a stage costs one read of a flag.
//!
//! Stages are nested: an operation passes a frontend, which calls the client, which calls a server. A stage's own time
//! is its sum minus the sums of the stages within it; `bench` computes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The stages, from the outermost to the innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A request from the kernel, until its reply is about to be written.
    Frontend,
    /// An operation of the client library.
    Client,
    /// A request from the client to a server, and its reply.
    Call,
    /// At the server: from reading a request's bytes until it is handled.
    Queue,
    /// At the server: handling a request, until its reply.
    Served,
    /// Within `Served`: fetching the rows that a verb needs.
    Fetch,
    /// Within `Served`: from the decision until the change is in the log.
    Log,
    /// At the server: from the replies being ready until they are written to the connection.
    Reply,
}

const STAGES: usize = Stage::Reply as usize + 1;

static MEASURED: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: [AtomicU64; STAGES] = [const { AtomicU64::new(0) }; STAGES];
static TIMES: [AtomicU64; STAGES] = [const { AtomicU64::new(0) }; STAGES];

/// Time spent in a stage, by all threads of this process together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    pub time: Duration,
    pub times: u64,
}

/// Starts or stops measuring, for the whole process.
pub fn measure(on: bool) {
    MEASURED.store(on, Relaxed);
}

/// Time spent in `stage` since the last call.
pub fn take(stage: Stage) -> StageTime {
    let time = Duration::from_nanos(NANOSECONDS[stage as usize].swap(0, Relaxed));
    StageTime { time, times: TIMES[stage as usize].swap(0, Relaxed) }
}

/// The start time of a stage; `None` while nothing is measured.
#[inline]
pub fn begin() -> Option<Instant> {
    MEASURED.load(Relaxed).then(Instant::now)
}

/// Records the end of `stage`, which began at `begun`.
#[inline]
pub fn end(stage: Stage, begun: Option<Instant>) {
    if let Some(begun) = begun {
        NANOSECONDS[stage as usize].fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        TIMES[stage as usize].fetch_add(1, Relaxed);
    }
}

/// A stage that lasts from now until this is dropped.
#[must_use]
pub struct Passage(Stage, Option<Instant>);

#[inline]
pub fn enter(stage: Stage) -> Passage {
    Passage(stage, begin())
}

impl Drop for Passage {
    #[inline]
    fn drop(&mut self) {
        end(self.0, self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: stages are counted only while measuring is on, and then each passage once.
    #[test]
    fn stages_are_counted_while_measured() {
        drop(enter(Stage::Queue));
        assert_eq!(take(Stage::Queue), StageTime::default());
        measure(true);
        let passage = enter(Stage::Queue);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(50) {}
        drop(passage);
        measure(false);
        let spent = take(Stage::Queue);
        assert_eq!(spent.times, 1);
        assert!(spent.time >= Duration::from_micros(50), "{spent:?}");
        assert_eq!(take(Stage::Queue), StageTime::default());
    }
}
