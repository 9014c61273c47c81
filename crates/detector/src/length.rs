//! The file's length. Readers look at it first and at the superblock after, and refuse a file that is shorter than the
//! superblock says: so the file is made longer well before a superblock needs it, by holes. Nobody writes past the length
//! that was set here, which is why setting it never cuts anything.

use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// How much longer at least; a hole costs nothing.
pub const STEP_BYTES: u64 = 64 << 20;
/// A run that is taken up after a crash leaves the rest of a step as a hole.
const STEP_BYTES_MAX: u64 = 1 << 30;
/// Longer than any reader takes from the length to the superblock.
const READER_GAP: Duration = Duration::from_millis(200);
/// A step is to last so long, that its half, which is still empty when the next one is made, lasts longer than that gap.
const STEP_LASTS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Length(Mutex<State>);

#[derive(Debug)]
struct State {
    bytes: u64,
    /// Before it was last made longer, and when that was.
    before: u64,
    grown: Instant,
    step: u64,
}

impl Length {
    /// Of a file that has `bytes`.
    pub fn new(bytes: u64) -> Length {
        Length(Mutex::new(State { bytes, before: bytes, grown: Instant::now(), step: STEP_BYTES }))
    }

    /// Makes room for writing up to `end`, and well before it is needed for what follows.
    pub fn ensure(&self, file: &File, end: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        if end + state.step / 2 > state.bytes {
            let fast = state.grown.elapsed() < STEP_LASTS;
            let step = if fast { (2 * state.step).min(STEP_BYTES_MAX) } else { state.step };
            let bytes = end + step.max(end / 8);
            file.set_len(bytes)?;
            *state = State { bytes, before: state.bytes, grown: Instant::now(), step };
        }
        Ok(())
    }

    /// How long to wait before a superblock may name `end`: until every reader that saw a shorter file has read its
    /// superblock too.
    pub fn unsettled(&self, end: u64) -> Duration {
        let state = self.0.lock();
        if end <= state.before { Duration::ZERO } else { READER_GAP.saturating_sub(state.grown.elapsed()) }
    }
}
