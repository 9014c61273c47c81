//! Lets tests end a repair between two batches, as if it were killed.

use super::FsckError;
use std::cell::Cell;

thread_local! {
    /// Batches that this thread's repairs may still write.
    pub static BATCHES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

pub fn check() -> Result<(), FsckError> {
    let left = BATCHES_LEFT.get();
    if left == Some(0) {
        return Err(FsckError::Io { doing: "broken off".into(), source: std::io::ErrorKind::Interrupted.into() });
    }
    BATCHES_LEFT.set(left.map(|left| left - 1));
    Ok(())
}
