//! The file's length. Readers first look at the length and then at the superblock, and refuse a file that is shorter
//! than the superblock states. The writer therefore extends the file, by holes, well before a superblock needs the
//! length. No process writes beyond the length set here, so setting it never truncates data.

use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Minimum extension; a hole takes no space.
pub const STEP_BYTES: u64 = 64 << 20;
/// Maximum extension. A run that continues after a crash leaves the rest of a step as a hole.
const STEP_BYTES_MAX: u64 = 1 << 30;
/// Longer than any reader takes from reading the length to reading the superblock.
const READER_GAP: Duration = Duration::from_millis(200);
/// Target duration of a step. The next step is added when half of this one is still unused, so that half lasts longer
/// than [`READER_GAP`].
const STEP_LASTS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Length(Mutex<LengthState>);

#[derive(Debug)]
struct LengthState {
    bytes: u64,
    /// The length before the last extension; `grown` is the time of that extension.
    before: u64,
    grown: Instant,
    /// The length that was required at the last extension.
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
            "the file was truncated from {bytes} to {there} bytes during the run, probably by a program that has it \
            open for writing: frames are lost; `varve record recover` reports how many, and recovers the others"
        );
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
    }

    /// Size of the next step, after a step that lasted `lasted`.
    fn next_step(&self, end: u64, lasted: Duration) -> u64 {
        if lasted >= STEP_LASTS {
            return self.step;
        }
        // Derived from the rate since the last extension, but at least doubled, because the first interval includes the
        // time before the first frame.
        let needed = end.saturating_sub(self.end) as f64 * STEP_LASTS.as_secs_f64() / lasted.as_secs_f64();
        (needed as u64).max(2 * self.step).min(STEP_BYTES_MAX)
    }
}

impl Length {
    /// State for a file of `bytes` bytes.
    pub fn new(bytes: u64) -> Length {
        Length(Mutex::new(LengthState { bytes, before: bytes, grown: Instant::now(), end: bytes, step: STEP_BYTES }))
    }

    /// Extends the file so that it can be written up to `end`, well before the following writes need it.
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

    /// Checks that the file still has the length that was set.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if it is shorter: the data beyond its end are lost.
    pub fn check(&self, file: &File) -> io::Result<()> {
        self.0.lock().check(file)
    }

    /// How long to wait before a superblock may contain `end`: until every reader that saw the shorter file has also
    /// read its superblock.
    pub fn unsettled(&self, end: u64) -> Duration {
        let state = self.0.lock();
        if end <= state.before { Duration::ZERO } else { READER_GAP.saturating_sub(state.grown.elapsed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that is too short would delay a commit, and with it the end of the run.
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
        assert!(length.unsettled(end).is_zero(), "a reader that saw the previous length finds a superblock within it");
        length.check(&file).expect("as long as it was made");
        file.set_len(end).expect("shorter");
        length.check(&file).expect_err("cut");
        length.ensure(&file, 4 * STEP_BYTES).expect_err("what was cut off is not made up for by a hole");
    }
}
