//! The connection of one rank to its job: barriers, parts, and the word that the job ends early.

use super::part::PhasePart;
use crate::measure::Gate;
use crate::progress::ProgressDisplay;
use crate::{Error, Result};
use std::sync::{Mutex, PoisonError};

pub(crate) trait Link: Sync {
    /// Returns when all ranks have arrived.
    fn barrier(&self) -> Result<()>;

    fn report(&self, part: PhasePart) -> Result<()>;

    /// Whether the job ends early. One relaxed load.
    fn is_stopped(&self) -> bool;

    /// Progress, for the display.
    fn advance(&self, operations: u64);
}

/// The link of ranks that are threads of this process.
pub(crate) struct ThreadLink<'a> {
    pub gate: Gate,
    pub parts: Mutex<Vec<PhasePart>>,
    pub progress: &'a ProgressDisplay,
}

impl<'a> ThreadLink<'a> {
    pub(crate) fn new(ranks: usize, progress: &'a ProgressDisplay) -> ThreadLink<'a> {
        ThreadLink { gate: Gate::new(ranks), parts: Mutex::default(), progress }
    }
}

impl Link for ThreadLink<'_> {
    fn barrier(&self) -> Result<()> {
        if self.gate.wait() { Ok(()) } else { Err(Error::Interrupted) }
    }

    fn report(&self, part: PhasePart) -> Result<()> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).push(part);
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.gate.given_up()
    }

    fn advance(&self, operations: u64) {
        self.progress.advance(operations);
    }
}
