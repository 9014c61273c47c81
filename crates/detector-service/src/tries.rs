//! Limit for guessing tokens: each reply to a wrong token is delayed, and wrong tokens are logged.

use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};

/// Delay of the reply to a wrong token. Together with the limit on connections it bounds the attempts per second.
pub const DELAY: Duration = Duration::from_millis(500);
/// All wrong tokens within this interval share one log line.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Tries(Mutex<State>);

#[derive(Default)]
struct State {
    /// Wrong tokens since the last log line.
    untold: u64,
    reported: Option<Instant>,
}

impl Tries {
    /// Counts a wrong token. `from`: the peer's address; `what`: text from the peer, which is escaped.
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
