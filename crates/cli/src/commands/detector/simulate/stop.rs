//! Handling of SIGINT and SIGTERM in the simulator. The first signal ends the file in good order; the second one leaves
//! it as it is.

use crate::problem::{Exit, Result};
use crate::signals;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whether the simulator must stop.
#[derive(Debug, Default)]
pub struct StopFlag {
    asked: Mutex<bool>,
    reported: Condvar,
}

impl StopFlag {
    /// Sets the flag on signals from now on.
    pub fn on_signals() -> Result<Arc<StopFlag>> {
        let stop = Arc::new(StopFlag::default());
        let mine = Arc::clone(&stop);
        signals::listen()?.on_stop(move || mine.ask())?;
        Ok(stop)
    }

    fn ask(&self) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if *asked {
            std::process::exit(Exit::BrokenOff.code().into());
        }
        tracing::info!(
            "interrupted: finishing the file; a second signal stops at once, and `varve record recover` \
            must finish it"
        );
        *asked = true;
        self.reported.notify_all();
    }

    /// Waits for `time`, or until a stop is requested. Returns whether it was.
    pub fn wait(&self, time: Duration) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.reported.wait_timeout_while(asked, time, |asked| !*asked);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
