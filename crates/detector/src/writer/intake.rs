//! What a run takes: frames into the queue, scalars and marks into rows for the committer; and what it refuses.

use super::queue::{self, Job};
use super::{ALIGN_BYTES, CHUNKS_MAX, JUMP_MAX, ROWS_MAX, Shared, WriteError, now};
use crate::frame::{Frame, Level, Payload};
use crate::hdf5::index::Element;
use crate::journal::{ChunkEntry, Entry, FrameEntry};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Shared {
    /// As of [`super::Writer::submit`].
    pub(super) fn submit(&self, frame: Frame, wait: Duration) -> Result<(), WriteError> {
        let number = frame.number;
        self.check(&frame).map_err(|why| WriteError::Frame { number, why })?;
        let bytes = frame.payload.bytes();
        let mut progress = match self.queue.push(Job { frame, received: now() }, bytes, wait) {
            Ok(()) => self.progress.lock(),
            Err(queue::Refused::Full) => {
                self.progress.lock().dropped += 1;
                return Err(WriteError::Full);
            }
            Err(queue::Refused::Closed) => {
                let failure = self.progress.lock().failure.clone();
                return Err(WriteError::Failed(failure.unwrap_or_else(|| "it is being stopped".into())));
            }
        };
        progress.taken += 1;
        drop(progress);
        self.highest.fetch_max(number, Ordering::Relaxed);
        (self.acknowledge)(Level::Memory, &[number]);
        Ok(())
    }

    fn check_number(&self, number: u64) -> Result<(), String> {
        if let Some(frames) = self.description.frames_max()
            && number >= frames
        {
            return Err(format!("the scan has {frames} frames, numbered from 0"));
        }
        let highest = self.highest.load(Ordering::Relaxed);
        if number > highest + JUMP_MAX || number >= CHUNKS_MAX / self.description.chunks_per_frame() {
            return Err(format!("the highest number so far is {highest}; one so far above it is taken for damage"));
        }
        Ok(())
    }

    fn check(&self, frame: &Frame) -> Result<(), String> {
        let description = &self.description;
        let chunks = description.chunks_per_frame();
        self.check_number(frame.number)?;
        match &frame.payload {
            Payload::Plain(bytes) if bytes.len() != description.frame_bytes() => {
                Err(format!("it has {} bytes instead of {}", bytes.len(), description.frame_bytes()))
            }
            Payload::Filtered(blobs) if blobs.len() as u64 != chunks => {
                Err(format!("it has {} chunks instead of {chunks}", blobs.len()))
            }
            Payload::Filtered(blobs) => {
                let bytes = description.chunk_bytes();
                let most = if description.filter.is_raw() {
                    bytes as u64
                } else {
                    Element::new(true, bytes as u64).size_max()
                };
                let unfit = |blob: &Vec<u8>| {
                    blob.is_empty() || blob.len() as u64 > most || (description.filter.is_raw() && blob.len() != bytes)
                };
                match blobs.iter().find(|blob| unfit(blob)) {
                    Some(blob) => Err(format!("a chunk of {} bytes cannot be one of {bytes} filtered", blob.len())),
                    None => Ok(()),
                }
            }
            Payload::Plain(_) => Ok(()),
        }
    }

    /// As of [`super::Writer::scalars`].
    pub(super) fn scalars(&self, frame: u64, values: Vec<(u32, f64)>) -> Result<(), WriteError> {
        let columns = self.description.scalars.len();
        if let Some((column, _)) = values.iter().find(|(column, _)| *column as usize >= columns) {
            return Err(WriteError::Frame {
                number: frame,
                why: format!("it has a scalar {column}, the run has {columns}"),
            });
        }
        self.row(frame, Entry::Scalars { frame, values })
    }

    /// Takes a row for the committer.
    pub(super) fn row(&self, frame: u64, entry: Entry) -> Result<(), WriteError> {
        self.check_number(frame).map_err(|why| WriteError::Frame { number: frame, why })?;
        let mut rows = self.rows.lock();
        if rows.len() >= ROWS_MAX {
            return Err(WriteError::Full);
        }
        rows.push(entry);
        Ok(())
    }

    /// As of [`super::Writer::report`].
    pub(super) fn report(&self, entries: Vec<Entry>) -> Result<(), WriteError> {
        if let Some(failure) = self.progress.lock().failure.clone() {
            return Err(WriteError::Failed(failure));
        }
        let mut numbers = Vec::new();
        for entry in &entries {
            let (number, refused) = match entry {
                Entry::Frame(frame) => {
                    numbers.push(frame.number);
                    (frame.number, self.check_entry(frame).err())
                }
                Entry::Scalars { frame, values } => {
                    let columns = self.description.scalars.len();
                    let unknown = values.iter().any(|(column, _)| *column as usize >= columns);
                    (*frame, unknown.then(|| "it has a scalar that the run has not".to_owned()))
                }
                Entry::Duplicate { frame } | Entry::Damaged { frame } => (*frame, None),
                Entry::Durable { .. } => (0, Some("only who commits marks what is durable".to_owned())),
            };
            if let Some(why) = refused.or_else(|| self.check_number(number).err()) {
                return Err(WriteError::Frame { number, why });
            }
        }
        self.enter(entries).map_err(|error| {
            self.fail(format!("writing the journal of {}: {error}", self.path.display()));
            WriteError::Failed(error.to_string())
        })?;
        let many = numbers.len() as u64;
        let mut progress = self.progress.lock();
        progress.taken += many;
        progress.written += many;
        drop(progress);
        for number in &numbers {
            self.highest.fetch_max(*number, Ordering::Relaxed);
        }
        (self.acknowledge)(Level::Memory, &numbers);
        (self.acknowledge)(Level::Written, &numbers);
        Ok(())
    }

    /// Chunks that another process wrote: as many as a frame has, within the file.
    fn check_entry(&self, frame: &FrameEntry) -> Result<(), String> {
        let chunks = self.description.chunks_per_frame();
        if frame.chunks.len() as u64 != chunks {
            return Err(format!("it has {} chunks instead of {chunks}", frame.chunks.len()));
        }
        let length = self.file.metadata().map_err(|error| error.to_string())?.len();
        let outside = |chunk: &ChunkEntry| {
            chunk.address < ALIGN_BYTES || chunk.address.checked_add(chunk.size).is_none_or(|end| end > length)
        };
        match frame.chunks.iter().find(|chunk| outside(chunk)) {
            Some(chunk) => Err(format!("its chunk at {} of {} bytes is not in the file", chunk.address, chunk.size)),
            None => Ok(()),
        }
    }
}
