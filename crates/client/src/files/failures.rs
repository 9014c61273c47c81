//! What of an open file could not be brought to the store after it had been acknowledged.

use crate::{Failure, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Failures of the background, or of somebody's fsync. Each handle that was there is told once, by its next flush or fsync, for it may
/// be its bytes that were lost; one that nobody has been told of, also a handle that comes later.
#[derive(Default)]
pub(crate) struct Failures {
    count: u64,
    last: Option<Failure>,
    reported: bool,
}

impl Failures {
    pub fn add(&mut self, failure: Failure) {
        self.count += 1;
        self.last = Some(failure);
        self.reported = false;
    }

    /// How many a handle that is opened now need not be told.
    pub fn known_to_new(&self) -> u64 {
        if self.reported { self.count } else { self.count.saturating_sub(1) }
    }

    /// The last one, if it came since `known`, which follows.
    pub fn report(&mut self, known: &AtomicU64) -> Result<()> {
        if known.swap(self.count, Relaxed) == self.count {
            return Ok(());
        }
        self.reported = true;
        self.last.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::Errno;

    /// Promise: who has a file open is told once of what could not be brought to the store, each by itself; who opens it later, only
    /// what nobody was told.
    #[test]
    fn each_handle_reports_a_failure_once() {
        let mut failures = Failures::default();
        let opened = |failures: &Failures| AtomicU64::new(failures.known_to_new());
        let handles = [opened(&failures), opened(&failures)];
        assert!(handles.iter().all(|known| failures.report(known).is_ok()));
        failures.add(Errno::EIO.into());
        let later = opened(&failures);
        for known in handles.iter().chain([&later]) {
            assert_eq!(failures.report(known), Err(Errno::EIO.into()));
            assert_eq!(failures.report(known), Ok(()));
        }
        assert_eq!(failures.report(&opened(&failures)), Ok(()));
        failures.add(Errno::ENOSPC.into());
        assert_eq!(failures.report(&later), Err(Errno::ENOSPC.into()));
    }
}
