//! A writing thread: compresses frames, gathers chunks into whole stripes within its own extents, writes them, and enters
//! them in the journal. When no frame waits it writes what it has, so that gathering delays nothing.

use super::queue::{Job, Next};
use super::split::Split;
use super::{Shared, now};
use crate::description::Allocate;
use crate::filters::Encoder;
use crate::frame::{Level, Payload};
use crate::journal::{ChunkEntry, Entry, FrameEntry};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

pub(super) fn run(shared: &Shared) {
    match Gather::new(shared).and_then(|mut gather| gather.run()) {
        Ok(()) => {}
        Err(error) => shared.fail(format!("writing {}: {error}", shared.path.display())),
    }
}

struct Gather<'s> {
    shared: &'s Shared,
    encoder: Encoder,
    split: Split,
    /// What is left of the extent, from where `buffer` will lie on.
    extent: Range<u64>,
    buffer: Vec<u8>,
    frames: Vec<FrameEntry>,
    plain: Vec<u8>,
    filtered: Vec<u8>,
}

impl<'s> Gather<'s> {
    fn new(shared: &'s Shared) -> io::Result<Gather<'s>> {
        let description = &shared.description;
        let element_bytes = description.element.size();
        let encoder = Encoder::new(description.filter, element_bytes).map_err(io::Error::other)?;
        let split = Split {
            frame: description.frame.clone(),
            chunk: description.chunk(),
            element_bytes,
            fill: description.fill_element(),
        };
        Ok(Gather {
            shared,
            encoder,
            split,
            extent: 0..0,
            buffer: Vec::new(),
            frames: Vec::new(),
            plain: Vec::new(),
            filtered: Vec::new(),
        })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            match self.shared.queue.pop(self.frames.is_empty()) {
                Next::Job(job) => self.take(job)?,
                Next::Idle => self.flush()?,
                Next::Closed => return self.flush(),
            }
            if self.buffer.len() as u64 >= self.shared.settings.stripe_bytes {
                self.flush()?;
            }
        }
    }

    fn take(&mut self, Job { frame, received }: Job) -> io::Result<()> {
        let mut chunks = Vec::new();
        match &frame.payload {
            Payload::Filtered(blobs) => {
                for blob in blobs {
                    chunks.push(self.place(blob)?);
                }
            }
            Payload::Plain(bytes) => {
                for number in 0..self.split.count() {
                    let mut filtered = std::mem::take(&mut self.filtered);
                    filtered.clear();
                    let chunk = if self.split.is_whole() {
                        bytes
                    } else {
                        self.split.copy(bytes, number, &mut self.plain);
                        &self.plain
                    };
                    self.encoder.encode(chunk, &mut filtered).map_err(io::Error::other)?;
                    chunks.push(self.place(&filtered)?);
                    self.filtered = filtered;
                }
            }
        }
        let times = [frame.taken, received, now(), 0];
        self.frames.push(FrameEntry { number: frame.number, epoch: self.shared.epoch, times, chunks });
        Ok(())
    }

    /// Puts a chunk where it will lie.
    fn place(&mut self, bytes: &[u8]) -> io::Result<ChunkEntry> {
        let length = match self.shared.description.allocate {
            Allocate::Packed => bytes.len(),
            Allocate::Sparse => self.shared.description.chunk_bytes().max(bytes.len()).next_multiple_of(4096),
        };
        if self.extent.end - self.extent.start < (self.buffer.len() + length) as u64 {
            self.write()?;
            self.extent = self.shared.extent(self.shared.settings.extent_bytes.max(length as u64))?;
        }
        if self.shared.description.allocate == Allocate::Sparse {
            // Nothing is gathered: what lies between is never written.
            self.write()?;
        }
        let entry = ChunkEntry {
            address: self.extent.start + self.buffer.len() as u64,
            size: bytes.len() as u64,
            mask: 0,
            checksum: xxh3_64(bytes),
        };
        if self.shared.description.allocate == Allocate::Sparse {
            self.shared.file.write_all_at(bytes, self.extent.start)?;
            self.extent.start += length as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.shared.progress.lock().stored_bytes += entry.size;
        Ok(entry)
    }

    /// Writes the buffer. Frames whose last chunk it held become entries only by [`Gather::flush`].
    fn write(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.shared.file.write_all_at(&self.buffer, self.extent.start)?;
            self.extent.start += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write()?;
        if self.frames.is_empty() {
            return Ok(());
        }
        let written = now();
        let mut frames = std::mem::take(&mut self.frames);
        for frame in &mut frames {
            frame.times[3] = written;
        }
        let numbers: Vec<u64> = frames.iter().map(|frame| frame.number).collect();
        if self.shared.enter(frames.into_iter().map(Entry::Frame).collect())? {
            self.shared.progress.lock().written += numbers.len() as u64;
            (self.shared.acknowledge)(Level::Written, &numbers);
        }
        Ok(())
    }
}
