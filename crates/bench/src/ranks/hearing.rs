//! When the ranks were last heard.

use std::time::{Duration, Instant};

/// A longer time between two looks is a pause of this process (Ctrl-Z, a loaded machine), in which it could hear nobody.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Finds silent ranks. A pause of this process is no silence of the ranks.
pub(super) struct Hearing {
    heard: Vec<Instant>,
    looked: Instant,
}

impl Hearing {
    pub(super) fn new(ranks: usize, now: Instant) -> Hearing {
        Hearing { heard: vec![now; ranks], looked: now }
    }

    pub(super) fn hears(&mut self, rank: usize, now: Instant) {
        self.heard[rank] = now;
    }

    /// The ranks that were silent for longer than `silence_max`.
    pub(super) fn silent(&mut self, now: Instant, silence_max: Duration) -> Vec<usize> {
        let since = now.saturating_duration_since(self.looked);
        self.looked = now;
        if since >= PAUSE_MIN {
            self.heard.iter_mut().for_each(|heard| *heard = (*heard + since).min(now));
        }
        let silent = |rank: &usize| now.saturating_duration_since(self.heard[*rank]) > silence_max;
        (0..self.heard.len()).filter(silent).collect()
    }
}
