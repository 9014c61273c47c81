//! Where a run's frames go: to the file that this process commits, or to its share of one that another commits.

use crate::description::Description;
use crate::frame::Frame;
use crate::writer::join::Joined;
use crate::writer::{Progress, WriteError, Writer};
use std::time::Duration;

pub enum Sink {
    Own(Writer),
    Share(Joined),
}

impl Sink {
    pub fn description(&self) -> &Description {
        match self {
            Sink::Own(writer) => writer.description(),
            Sink::Share(share) => share.description(),
        }
    }

    pub fn submit(&self, frame: Frame, wait: Duration) -> Result<(), WriteError> {
        match self {
            Sink::Own(writer) => writer.submit(frame, wait),
            Sink::Share(share) => share.submit(frame, wait),
        }
    }

    pub fn scalars(&self, frame: u64, values: Vec<(u32, f64)>) -> Result<(), WriteError> {
        match self {
            Sink::Own(writer) => writer.scalars(frame, values),
            Sink::Share(share) => share.scalars(frame, values),
        }
    }

    pub fn mark_duplicate(&self, frame: u64) -> Result<(), WriteError> {
        match self {
            Sink::Own(writer) => writer.mark_duplicate(frame),
            Sink::Share(share) => share.mark_duplicate(frame),
        }
    }

    pub fn mark_damaged(&self, frame: u64) -> Result<(), WriteError> {
        match self {
            Sink::Own(writer) => writer.mark_damaged(frame),
            Sink::Share(share) => share.mark_damaged(frame),
        }
    }

    pub fn progress(&self) -> Progress {
        match self {
            Sink::Own(writer) => writer.progress(),
            Sink::Share(share) => share.progress(),
        }
    }

    /// Takes nothing more; who waits for room is refused.
    pub fn close(&self) {
        match self {
            Sink::Own(writer) => writer.close(),
            Sink::Share(share) => share.close(),
        }
    }
}
