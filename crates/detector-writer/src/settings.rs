//! Settings of a run's writer, and the receivers of its progress.

use std::time::Duration;
use varve_detector_dataset::advice::Advice;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_file::space_reservation::READER_AGE;

/// How a run is written, independent of its dataset spec.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of threads that compress and write.
    pub threads: usize,
    /// Upper limit for the bytes of queued frames; a single frame is always accepted.
    pub queue_bytes: usize,
    /// Stripe size of the store. Chunks are gathered into writes that end at stripe boundaries.
    pub stripe_bytes: u64,
    /// Size of an extent that a joined process requests once it has written much.
    pub extent_bytes: u64,
    /// Longest time between a write and its sync and publication.
    pub commit_interval: Duration,
    /// When taken but not durable frames exceed this many plain bytes and a client waits for them, the commit does not
    /// wait for its interval, because the client keeps its copies until then and has limited memory.
    pub pressing_bytes: u64,
    /// For so long space of an earlier commit is kept for readers that opened the file before.
    pub reader_age: Duration,
    /// Whether a smaller copy may replace the file at its end. Its journal does not describe that copy.
    pub replaces_file: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Settings {
            threads,
            queue_bytes: 256 << 20,
            stripe_bytes: 4 << 20,
            extent_bytes: 64 << 20,
            commit_interval: Duration::from_millis(500),
            pressing_bytes: 32 << 20,
            reader_age: READER_AGE,
            replaces_file: true,
        }
    }
}

impl Settings {
    /// The settings of a run that uses the recommendation.
    pub fn with_advice(self, advice: &Advice) -> Settings {
        Settings {
            threads: advice.writers.max(1),
            stripe_bytes: advice.alignment_bytes,
            extent_bytes: self.extent_bytes.next_multiple_of(advice.alignment_bytes),
            ..self
        }
    }
}

/// Receiver of progress notifications. The writer's threads call it, so it must not block.
pub trait Listener: Send + Sync {
    /// Called when these frames have reached the level. For a frame with several regions it is called each time some of
    /// its regions have reached the level; [`Pipeline::level`](super::Pipeline::level) says which.
    fn reached(&self, level: AckLevel, numbers: &[u64]);

    /// Whether any client keeps frames until they are at this level or a higher one.
    fn waits_for(&self, level: AckLevel) -> bool;
}

/// Ignores all notifications.
impl Listener for () {
    fn reached(&self, _: AckLevel, _: &[u64]) {}

    fn waits_for(&self, _: AckLevel) -> bool {
        false
    }
}

/// Waits for every level.
impl<F: Fn(AckLevel, &[u64]) + Send + Sync> Listener for F {
    fn reached(&self, level: AckLevel, numbers: &[u64]) {
        self(level, numbers);
    }

    fn waits_for(&self, _: AckLevel) -> bool {
        true
    }
}
