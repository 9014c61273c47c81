//! Where a run's frames go: to the file that this process commits, or to its share of one that another commits.

use super::share::Share;
use crate::journal::Entry;
use crate::stream::{ErrorCode, Refusal};
use crate::writer::join::Joined;
use crate::writer::{Pipeline, Progress, WriteError, Writer};
use std::ops::{Deref, Range};
use std::sync::Arc;

pub enum Sink {
    Own(Writer),
    Share(Joined, Arc<Share>),
}

impl Deref for Sink {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        match self {
            Sink::Own(writer) => writer,
            Sink::Share(share, _) => share,
        }
    }
}

impl Sink {
    /// With why the run takes nothing more, wherever it failed.
    pub fn state(&self) -> Progress {
        let mut progress = self.progress();
        if let Sink::Share(_, coordinator) = self {
            progress.failure = progress.failure.or_else(|| coordinator.failure());
        }
        progress
    }

    /// Who keeps the run that this is a share of.
    pub fn coordinator(&self) -> Option<Arc<Share>> {
        match self {
            Sink::Own(_) => None,
            Sink::Share(_, coordinator) => Some(Arc::clone(coordinator)),
        }
    }

    /// Whether the run that this is a share of is being ended.
    pub fn is_asked_to_leave(&self) -> bool {
        matches!(self, Sink::Share(_, coordinator) if coordinator.is_asked_to_leave())
    }

    pub fn grant(&self, bytes: u64) -> Result<Range<u64>, Refusal> {
        match self {
            Sink::Own(writer) => {
                writer.grant(bytes).map_err(|error| Refusal::new(ErrorCode::Failed, format!("no extent: {error}")))
            }
            Sink::Share(..) => Err(not_here()),
        }
    }

    pub fn report(&self, entries: Vec<Entry>) -> Result<(), Refusal> {
        match self {
            Sink::Own(writer) => writer.report(entries).map_err(|error| {
                let code = match error {
                    WriteError::Frame { .. } => ErrorCode::Limit,
                    _ => ErrorCode::Failed,
                };
                Refusal::new(code, error.to_string())
            }),
            Sink::Share(..) => Err(not_here()),
        }
    }
}

fn not_here() -> Refusal {
    Refusal::new(ErrorCode::Unknown, "this process has itself a share of the run only; join where the run was started")
}
