//! A simulator that is broken off by SIGINT or SIGTERM ends its file well; the second signal ends it as it is.

use crate::problem::{Exit, Result};
use crate::signals;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whether the simulator is to go on.
#[derive(Debug, Default)]
pub struct StopFlag {
    asked: Mutex<bool>,
    reported: Condvar,
}

impl StopFlag {
    /// From now on signals ask.
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
        tracing::info!("broken off: the file is being ended; a second signal leaves it to `varve record recover`");
        *asked = true;
        self.reported.notify_all();
    }

    /// Waits so long, or until it is asked to stop, which it answers.
    pub fn wait(&self, time: Duration) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.reported.wait_timeout_while(asked, time, |asked| !*asked);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
