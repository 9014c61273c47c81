//! Destination of a run's frames: a file that this process commits, or a share of a file that another process commits.

use super::writer_share::WriterShare;
use std::ops::{Deref, Range};
use std::sync::Arc;
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_stream::{ErrorCode, StreamRefusal};
use varve_detector_writer::join::Joined;
use varve_detector_writer::{Pipeline, WriteError, Writer, WriterProgress};

pub enum RunSink {
    Own(Writer),
    Share(Joined, Arc<WriterShare>),
}

impl Deref for RunSink {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        match self {
            RunSink::Own(writer) => writer,
            RunSink::Share(share, _) => share,
        }
    }
}

impl RunSink {
    /// Progress, including the reason for a failure here or at the coordinator.
    pub fn state(&self) -> WriterProgress {
        let mut progress = self.progress();
        if let RunSink::Share(_, coordinator) = self {
            progress.failure = progress.failure.or_else(|| coordinator.failure());
        }
        progress
    }

    /// The connection to the service that keeps the run, if this is a share.
    pub fn coordinator(&self) -> Option<Arc<WriterShare>> {
        match self {
            RunSink::Own(_) => None,
            RunSink::Share(_, coordinator) => Some(Arc::clone(coordinator)),
        }
    }

    /// Whether the run that this is a share of is being ended.
    pub fn is_asked_to_leave(&self) -> bool {
        matches!(self, RunSink::Share(_, coordinator) if coordinator.is_asked_to_leave())
    }

    pub fn grant(&self, bytes: u64) -> Result<Range<u64>, StreamRefusal> {
        match self {
            RunSink::Own(writer) => writer
                .grant(bytes)
                .map_err(|error| StreamRefusal::new(ErrorCode::Failed, format!("cannot allocate an extent: {error}"))),
            RunSink::Share(..) => Err(not_here()),
        }
    }

    pub fn report(&self, entries: Vec<JournalEntry>) -> Result<(), StreamRefusal> {
        match self {
            RunSink::Own(writer) => writer.report(entries).map_err(|error| {
                let code = match error {
                    WriteError::Frame { .. } => ErrorCode::Limit,
                    _ => ErrorCode::Failed,
                };
                StreamRefusal::new(code, error.to_string())
            }),
            RunSink::Share(..) => Err(not_here()),
        }
    }
}

fn not_here() -> StreamRefusal {
    StreamRefusal::new(
        ErrorCode::Unknown,
        "this process has only a share of the run; join at the service that started it",
    )
}
