//! Wrong tokens: each answer is late, so that few can be tried, and the log says that somebody tries.

use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};

/// An answer to a wrong token comes so late. With the limit on connections this bounds the tries of a second.
pub const DELAY: Duration = Duration::from_millis(500);
/// A line of the log stands for all tries of this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Tries(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since the last line.
    untold: u64,
    reported: Option<Instant>,
}

impl Tries {
    /// Counts a wrong token. `from`: an address; `what`: text of the peer, which is escaped.
    pub fn add(&self, from: &dyn fmt::Display, what: &str) {
        let mut state = self.0.lock();
        state.untold += 1;
        if state.reported.is_some_and(|reported| reported.elapsed() < LOG_INTERVAL) {
            return;
        }
        let tries = std::mem::take(&mut state.untold);
        state.reported = Some(Instant::now());
        drop(state);
        tracing::warn!("{tries} requests with a wrong token, the latest from {from}: {}", what.escape_default());
    }
}
