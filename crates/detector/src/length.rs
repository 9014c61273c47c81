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
pub struct Length(Mutex<LengthState>);

#[derive(Debug)]
struct LengthState {
    bytes: u64,
    /// Before it was last made longer, and when that was.
    before: u64,
    grown: Instant,
    /// What was needed then.
    end: u64,
    step: u64,
}

impl LengthState {
    fn check(&self, file: &File) -> io::Result<()> {
        let there = file.metadata()?.len();
        if there >= self.bytes {
            return Ok(());
        }
        let bytes = self.bytes;
        let text = format!(
            "the file was cut from {bytes} to {there} bytes while the run was under way, as a program does that has it \
             open for writing: frames are lost; `varve record recover` says how many, and keeps the others"
        );
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
    }

    /// The step after one that has lasted so long.
    fn next_step(&self, end: u64, lasted: Duration) -> u64 {
        if lasted >= STEP_LASTS {
            return self.step;
        }
        // Of the rate since then; doubled at least, for what came before the first frame was no rate.
        let needed = end.saturating_sub(self.end) as f64 * STEP_LASTS.as_secs_f64() / lasted.as_secs_f64();
        (needed as u64).max(2 * self.step).min(STEP_BYTES_MAX)
    }
}

impl Length {
    /// Of a file that has `bytes`.
    pub fn new(bytes: u64) -> Length {
        Length(Mutex::new(LengthState { bytes, before: bytes, grown: Instant::now(), end: bytes, step: STEP_BYTES }))
    }

    /// Makes room for writing up to `end`, and well before it is needed for what follows.
    pub fn ensure(&self, file: &File, end: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        if end + state.step / 2 > state.bytes {
            state.check(file)?;
            let step = state.next_step(end, state.grown.elapsed());
            let bytes = end + step.max(end / 8);
            file.set_len(bytes)?;
            *state = LengthState { bytes, before: state.bytes, grown: Instant::now(), end, step };
        }
        Ok(())
    }

    /// Whether the file is as long as it was made.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if it is not: what lay above is lost.
    pub fn check(&self, file: &File) -> io::Result<()> {
        self.0.lock().check(file)
    }

    /// How long to wait before a superblock may name `end`: until every reader that saw a shorter file has read its
    /// superblock too.
    pub fn unsettled(&self, end: u64) -> Duration {
        let state = self.0.lock();
        if end <= state.before { Duration::ZERO } else { READER_GAP.saturating_sub(state.grown.elapsed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that is too short would have a commit wait, and the end of the run with it.
    #[test]
    fn steps_are_as_long_as_the_rate_asks_for() {
        let mut state = LengthState { bytes: 0, before: 0, grown: Instant::now(), end: STEP_BYTES, step: STEP_BYTES };
        let tenth = Duration::from_millis(100);
        assert_eq!(state.next_step(STEP_BYTES / 2, tenth), 2 * STEP_BYTES, "nothing is known of the rate");
        assert_eq!(state.next_step(2 * STEP_BYTES, tenth), 10 * STEP_BYTES);
        assert_eq!(state.next_step(9 * STEP_BYTES, tenth), STEP_BYTES_MAX);
        assert_eq!(state.next_step(9 * STEP_BYTES, Duration::ZERO), STEP_BYTES_MAX);
        state.step = 4 * STEP_BYTES;
        assert_eq!(state.next_step(9 * STEP_BYTES, STEP_LASTS), 4 * STEP_BYTES, "it lasts");
    }

    #[test]
    fn file_is_extended_before_it_is_needed() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(STEP_BYTES).expect("its first length");
        let length = Length::new(STEP_BYTES);
        let bytes = || file.metadata().expect("the file").len();
        length.ensure(&file, STEP_BYTES / 4).expect("nothing to do");
        assert_eq!(bytes(), STEP_BYTES, "half a step is left");
        let end = STEP_BYTES * 3 / 4;
        length.ensure(&file, end).expect("longer");
        assert!(bytes() >= end + STEP_BYTES);
        assert!(length.unsettled(end).is_zero(), "who saw the length of before finds a superblock within it");
        length.check(&file).expect("as long as it was made");
        file.set_len(end).expect("shorter");
        length.check(&file).expect_err("cut");
        length.ensure(&file, 4 * STEP_BYTES).expect_err("what was cut off is not made up for by a hole");
    }
}
