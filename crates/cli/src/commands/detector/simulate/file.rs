//! Frames into one HDF5 file, compressed and written as a real detector's.

use super::{Arguments, FrameSink, SeriesInfo, description};
use crate::problem::{Problem, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_dataset::time::unix_nanos;
use varve_detector_writer::{Finished, Settings, WriteError, Writer};

/// Limit of the wait for one frame. Without a rate, only a store that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct FileSink {
    path: PathBuf,
    writer: Writer,
    wait: Duration,
}

impl FileSink {
    pub fn begin(path: &Path, arguments: &Arguments, series: &SeriesInfo) -> Result<FileSink> {
        let description = description(arguments, series)?;
        // The settings are made from a valid spec.
        description.check().map_err(|error| failed(path, &error.into()))?;
        let mut settings = Settings::default();
        if let Some(advice) = &description.advice {
            settings = settings.with_advice(advice);
        }
        settings.threads = arguments.threads.unwrap_or(settings.threads);
        let writer = Writer::create(path, description, settings, Arc::new(())).map_err(|error| failed(path, &error))?;
        let wait = if series.rate.is_some() { Duration::ZERO } else { PATIENCE };
        Ok(FileSink { path: path.to_owned(), writer, wait })
    }
}

fn failed(path: &Path, error: &WriteError) -> Problem {
    let problem = Problem::new(format!("cannot write the run to {}", path.display())).caused_by(error);
    match error.is_full_store() {
        true => problem.next("Free space in the store, then start it again; no file of the failed start remains."),
        false => problem,
    }
}

/// For a run that had begun: its file and its journal stay.
fn broken_off(path: &Path, error: &WriteError) -> Problem {
    failed(path, error).next(format!(
        "Free space if the store is full; `varve record recover {}` then recovers the frames written so far.",
        path.display()
    ))
}

impl FrameSink for FileSink {
    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool> {
        let payload = Payload::Plain(std::mem::take(frame));
        match self.writer.submit(Frame { number, taken: unix_nanos(), payload }, self.wait) {
            Ok(()) => Ok(true),
            Err(WriteError::Full) if self.wait.is_zero() => Ok(false),
            Err(error) => Err(broken_off(&self.path, &error)),
        }
    }

    fn finish(self: Box<Self>, complete: bool) -> Result<Option<Finished>> {
        let FileSink { path, writer, .. } = *self;
        writer.end(complete).map(Some).map_err(|error| broken_off(&path, &error))
    }
}
