//! Where the time of operations goes: sums of the time that this process spends in each stage, for `varve bench
//! profile`. While nobody profiles, a stage costs one look at a flag.
//!
//! Stages lie within each other: an operation passes a frontend, which calls the client, which calls a server. What is
//! a stage's own is its sum less those within it, which `bench` works out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Where time is spent, from the outside to the inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A request of the kernel's, until its reply is about to be written.
    Frontend,
    /// An operation of the client library.
    Client,
    /// A request of the client's to a server and back.
    Call,
    /// At the server: from a request's bytes being read until it is looked at.
    Queue,
    /// At the server: from the look at a request to its answer.
    Served,
    /// Within `Served`: getting the rows that a verb must see.
    Fetch,
    /// Within `Served`: from the decision until the log has it.
    Log,
    /// At the server: from answers being there until they are written to the connection.
    Reply,
}

const STAGES: usize = Stage::Reply as usize + 1;

static MEASURED: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: [AtomicU64; STAGES] = [const { AtomicU64::new(0) }; STAGES];
static TIMES: [AtomicU64; STAGES] = [const { AtomicU64::new(0) }; STAGES];

/// What was spent in a stage, by all threads of this process together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    pub time: Duration,
    pub times: u64,
}

/// Begins or ends to measure, for the whole process.
pub fn measure(on: bool) {
    MEASURED.store(on, Relaxed);
}

/// What was spent in `stage` since it was last taken.
pub fn take(stage: Stage) -> StageTime {
    let time = Duration::from_nanos(NANOSECONDS[stage as usize].swap(0, Relaxed));
    StageTime { time, times: TIMES[stage as usize].swap(0, Relaxed) }
}

/// The moment from which a stage is counted; `None` while nobody measures.
#[inline]
pub fn begin() -> Option<Instant> {
    MEASURED.load(Relaxed).then(Instant::now)
}

/// `stage` has lasted since `begun`.
#[inline]
pub fn end(stage: Stage, begun: Option<Instant>) {
    if let Some(begun) = begun {
        NANOSECONDS[stage as usize].fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        TIMES[stage as usize].fetch_add(1, Relaxed);
    }
}

/// A stage from now until this is dropped.
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

    /// Promise: nothing is counted unless somebody measures, and then each passage once.
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
