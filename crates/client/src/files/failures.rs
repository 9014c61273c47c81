//! Failures to write acknowledged data of an open file to the store.

use crate::{Failure, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Failures of background write-back, or of an fsync. Each handle that was open at the time reports it once, at its
/// next flush or fsync, because its data may be lost. A failure that no handle has reported is also reported by a
/// handle opened later.
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

    /// The number of failures that a handle opened now need not report.
    pub fn known_to_new(&self) -> u64 {
        if self.reported { self.count } else { self.count.saturating_sub(1) }
    }

    /// Returns the last failure, if it is newer than `known`, and updates `known`.
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

    /// Promise: each handle that is open reports a failure to write to the store once, independently of the others. A
    /// handle opened later reports it only if no other handle did.
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
