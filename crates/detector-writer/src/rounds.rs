//! Rounds of the thread that syncs: the committer's, or the reporter's of a joined process.

use super::extent_source::ExtentSource;
use super::gather;
use super::shared::PipelineShared;
use std::io;
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;

/// Minimum time between rounds that do not wait for their interval.
pub(super) const ROUNDS_GAP: Duration = Duration::from_millis(50);

impl PipelineShared {
    /// Calls `round` at every interval, sooner while much data waits for a sync, and a last time when the writing
    /// threads have ended.
    pub(super) fn rounds(&self, what: &str, mut round: impl FnMut(bool) -> io::Result<()>) -> io::Result<()> {
        loop {
            let last = self.wait_for_round();
            if self.failure().is_none() {
                match self.taken_away() {
                    Some(why) => self.fail(why),
                    None => gather::flush(self),
                }
            }
            self.queue.release_stale();
            match round(last) {
                Ok(()) if last => return Ok(()),
                Ok(()) => {}
                Err(error) => {
                    self.fail_at(what, &error);
                    return Err(error);
                }
            }
        }
    }

    /// Whether much data waits for a sync while a client waits for that data.
    fn is_pressing(&self) -> bool {
        let progress = self.progress.lock();
        let (level, synced) = match self.ground {
            ExtentSource::Own(_) => (AckLevel::Durable, progress.durable),
            ExtentSource::Joint(_) => (AckLevel::Written, progress.written),
        };
        let waiting = progress.taken.saturating_sub(synced);
        drop(progress);
        self.listener.waits_for(level)
            && waiting.saturating_mul(self.description.frame_bytes() as u64) >= self.settings.pressing_bytes
    }

    /// Waits for the next round, and returns whether it is the last.
    fn wait_for_round(&self) -> bool {
        let (begun, interval) = (Instant::now(), self.settings.commit_interval);
        let mut stop = self.stop.lock();
        while !*stop {
            let left = interval.saturating_sub(begun.elapsed());
            if left.is_zero() || begun.elapsed() >= ROUNDS_GAP && self.is_pressing() {
                break;
            }
            self.stopped.wait_for(&mut stop, left.min(ROUNDS_GAP));
        }
        *stop
    }
}
