//! A writing thread: compresses chunk groups, adds their chunks to the stripes that all threads write, and enters in
//! the journal what has been written. When no frame waits it writes what there is, so that gathering delays nothing.
//!
//! Where as many bring frames as write them, each who brings one is its writing thread ([`InlineWrite`]): it has the
//! frame in its processor's cache, and nobody need be woken for it.

use super::assemble::Shapes;
use super::queue::{FramePart, Job, NextJob};
use super::stripes::StreamPosition;
use super::{PipelineShared, unix_nanos};
use crate::dataset_spec::Allocate;
use crate::filters::Encoder;
use crate::frame::{Blob, Payload};
use crate::hdf5::UNDEFINED;
use crate::hdf5::index::Element;
use crate::journal::{ChunkEntry, ChunkGroupEntry, FrameEntry};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const ABSENT: ChunkEntry = ChunkEntry { address: UNDEFINED, size: 0, mask: 0, checksum: 0 };

/// A chunk from this part of a stripe on is written as it comes, while it is in the cache, by who brought it.
const LARGE_PART: u64 = 8;

pub(super) fn run(shared: &PipelineShared) {
    match Tools::new(shared).and_then(|mut tools| Gather { shared, tools: &mut tools }.run()) {
        Ok(()) => {}
        Err(error) => fail(shared, &error),
    }
}

/// What others have written, or this thread before, is told of all the same: nobody else may come to do so.
fn fail(shared: &PipelineShared, error: &io::Error) {
    let entered = enter(shared);
    shared.fail_at("writing", error);
    if let Err(error) = entered {
        shared.fail_at("writing", &error);
    }
}

/// Writes what was left to be gathered with more that did not come.
pub(super) fn flush(shared: &PipelineShared) {
    if !shared.stripes.is_empty()
        && let Err(error) = shared.stripes.write(&shared.file, true).and_then(|()| enter(shared))
    {
        fail(shared, &error);
    }
}

/// A frame that the run has taken and that whoever holds this is to write.
pub struct InlineWrite {
    shared: Arc<PipelineShared>,
    /// `None` once it is written.
    job: Option<Job>,
    /// The next one is on its way already, so that small chunks are gathered.
    more: bool,
}

impl InlineWrite {
    /// [`Queue::begin_own`](super::queue::FrameQueue::begin_own) has been called for it.
    pub(super) fn new(shared: Arc<PipelineShared>, part: FramePart, more: bool) -> InlineWrite {
        InlineWrite { shared, job: Some(Job { chunk_group: part.frame.number, parts: vec![part] }), more }
    }

    /// Writes the frame. If that cannot be done the run has failed, which its state says.
    pub fn write(mut self) {
        let Some(job) = self.job.take() else { return };
        let shared = &self.shared;
        let spare = shared.tools.lock().pop();
        let written = spare.map_or_else(|| Tools::new(shared), Ok).and_then(|mut tools| {
            let bytes = Gather { shared, tools: &mut tools }.take(job)?;
            shared.tools.lock().push(tools);
            let all = !self.more || bytes >= shared.settings.stripe_bytes / LARGE_PART;
            shared.stripes.write(&shared.file, all)?;
            enter(shared)
        });
        if let Err(error) = written {
            fail(shared, &error);
        }
    }
}

impl Drop for InlineWrite {
    /// What is let go of unwritten, the writing threads write.
    fn drop(&mut self) {
        self.shared.queue.end_own(self.job.take());
    }
}

/// What a thread writes with.
pub(super) struct Tools {
    shapes: Shapes,
    encoder: Encoder,
    /// How far the stream must be written until the chunk group at work is.
    position: StreamPosition,
    plain: Vec<u8>,
    /// What a chunk takes, filtered, as far as is known.
    filtered_bytes: usize,
}

impl Tools {
    fn new(shared: &PipelineShared) -> io::Result<Tools> {
        let description = &shared.description;
        let encoder = Encoder::new(description.filter, description.element.size()).map_err(io::Error::other)?;
        Ok(Tools { shapes: Shapes::new(description), encoder, position: 0, plain: Vec::new(), filtered_bytes: 0 })
    }
}

struct Gather<'s> {
    shared: &'s PipelineShared,
    tools: &'s mut Tools,
}

impl Gather<'_> {
    fn run(&mut self) -> io::Result<()> {
        let shared = self.shared;
        loop {
            // Who has added to the stripes comes here before it waits, so that nothing is left unwritten.
            let (all, closed) = match shared.queue.pop(shared.stripes.is_empty()) {
                NextJob::Job(job) => {
                    self.take(job)?;
                    (false, false)
                }
                NextJob::Idle => (true, false),
                NextJob::Closed => (true, true),
            };
            shared.stripes.write(&shared.file, all)?;
            enter(shared)?;
            if closed {
                return Ok(());
            }
        }
    }

    /// Answers the bytes of the chunk group's chunks.
    fn take(&mut self, Job { chunk_group, mut parts }: Job) -> io::Result<u64> {
        self.tools.position = 0;
        let before = self.shared.incomplete.lock().remove(&chunk_group);
        let mut chunks = match &before {
            Some(entry) => entry.chunks.clone(),
            None => vec![ABSENT; self.tools.shapes.count() as usize],
        };
        if let [part] = parts.as_mut_slice()
            && self.tools.shapes.regions.len() == 1
            && self.shared.description.chunk_group_frames() == 1
        {
            self.whole_frame(part, &mut chunks)?;
        } else {
            for (number, chunk) in chunks.iter_mut().enumerate() {
                self.assemble(chunk_group, &mut parts, number as u64, chunk)?;
            }
        }
        let again = before.is_some();
        let frames = self.frames(before.map(|entry| entry.frames).unwrap_or_default(), &parts);
        let bytes = chunks.iter().map(|chunk| chunk.size).sum();
        let entry = ChunkGroupEntry { chunk_group, epoch: self.shared.ground.epoch(), again, frames, chunks };
        self.shared.stripes.enter(entry, self.tools.position);
        Ok(bytes)
    }

    /// A frame that shares its chunks with no other: nothing is copied that need not be.
    fn whole_frame(&mut self, part: &mut FramePart, chunks: &mut [ChunkEntry]) -> io::Result<()> {
        match std::mem::replace(&mut part.frame.payload, Payload::Plain(Vec::new())) {
            Payload::Filtered(blobs) => {
                // Its region may be a part of the frame.
                let numbers = self.tools.shapes.chunks_of(part.source).unwrap_or_default().to_vec();
                for (number, blob) in numbers.into_iter().zip(blobs) {
                    chunks[number as usize] = self.place(part.frame.number, number, blob)?;
                }
            }
            Payload::Plain(bytes) if self.tools.shapes.is_chunk(0, 0) => {
                chunks[0] = match self.shared.description.is_unfiltered() {
                    true => self.place(part.frame.number, 0, bytes.into())?,
                    false => {
                        let chunk = self.encode(part.frame.number, 0, &bytes)?;
                        self.shared.stripes.buffers.put(bytes);
                        chunk
                    }
                };
            }
            Payload::Plain(bytes) => {
                for (number, chunk) in chunks.iter_mut().enumerate() {
                    let mut plain = std::mem::take(&mut self.tools.plain);
                    self.tools.shapes.prepare(number as u64, true, self.tools.shapes.chunk_frame_bytes, &mut plain);
                    self.tools.shapes.copy(&bytes, part, number as u64, 0, &mut plain);
                    *chunk = self.encode(part.frame.number, number as u64, &plain)?;
                    self.tools.plain = plain;
                }
                self.shared.stripes.buffers.put(bytes);
            }
        }
        Ok(())
    }

    /// Chunk `number` of a chunk group, from all that has come of it.
    fn assemble(
        &mut self,
        chunk_group: u64,
        parts: &mut [FramePart],
        number: u64,
        chunk: &mut ChunkEntry,
    ) -> io::Result<()> {
        let (shapes, sources) = (&self.tools.shapes, self.tools.shapes.regions.len());
        // A source may have brought very many parts.
        let touching: Vec<bool> = if parts.len() > sources {
            let by_source: Vec<bool> = (0..sources as u32).map(|source| shapes.touches(number, source)).collect();
            parts.iter().map(|part| by_source[part.source as usize]).collect()
        } else {
            parts.iter().map(|part| shapes.touches(number, part.source)).collect()
        };
        if !touching.contains(&true) {
            return Ok(());
        }
        let blob = self.blob(parts, number);
        let is_plain = |part: &FramePart| matches!(part.frame.payload, Payload::Plain(_));
        let mut touch = parts.iter().zip(&touching).filter_map(|(part, touches)| touches.then_some(part));
        let alone = chunk.address == UNDEFINED && !touch.any(is_plain);
        let blob = match blob {
            Some(blob) if alone => {
                *chunk = self.place(chunk_group, number, blob)?;
                return Ok(());
            }
            blob => blob,
        };
        let mut plain = std::mem::take(&mut self.tools.plain);
        let bytes = self.shared.description.chunk_bytes();
        if chunk.address == UNDEFINED {
            let all = self.tools.shapes.regions.len() * self.shared.description.chunk_group_frames() as usize;
            self.tools.shapes.prepare(number, parts.len() == all && parts.iter().all(is_plain), bytes, &mut plain);
        } else {
            plain = self.read_back(chunk)?;
        }
        let filtered = blob.map(|blob| self.shared.decode(blob.bytes)).transpose()?;
        for part in parts.iter().zip(&touching).filter_map(|(part, touches)| touches.then_some(part)) {
            let (_, slot) = self.shared.description.chunk_group_of(part.frame.number);
            match (&part.frame.payload, &filtered) {
                (Payload::Plain(from), _) => self.tools.shapes.copy(from, part, number, slot, &mut plain),
                // Of frames that share a chunk, those are taken that came with it.
                (Payload::Filtered(_), Some(from)) => {
                    let frame = self.tools.shapes.chunk_frame_bytes;
                    let at = slot as usize * frame..(slot as usize + 1) * frame;
                    plain[at.clone()].copy_from_slice(&from[at]);
                }
                (Payload::Filtered(_), None) => {}
            }
        }
        *chunk = self.encode(chunk_group, number, &plain)?;
        self.tools.plain = plain;
        Ok(())
    }

    /// The chunk as a source has filtered it: [`super::check`] has seen to it that the chunk is the source's alone.
    fn blob(&self, parts: &mut [FramePart], number: u64) -> Option<Blob> {
        parts.iter_mut().find_map(|part| {
            let Payload::Filtered(blobs) = &mut part.frame.payload else { return None };
            // The other frames of its chunks have none.
            if blobs.is_empty() {
                return None;
            }
            let chunks = self.tools.shapes.chunks_of(part.source)?;
            let at = chunks.iter().position(|chunk| *chunk == number)?;
            blobs.get_mut(at).map(|blob| std::mem::replace(blob, Vec::new().into()))
        })
    }

    fn read_back(&self, chunk: &ChunkEntry) -> io::Result<Vec<u8>> {
        let mut filtered = vec![0; chunk.size as usize];
        self.shared.file.read_exact_at(&mut filtered, chunk.address)?;
        self.shared.decode(filtered)
    }

    /// What is known of the chunk group's frames: before, and with what has come.
    fn frames(&self, mut frames: Vec<FrameEntry>, parts: &[FramePart]) -> Vec<FrameEntry> {
        let compressed = unix_nanos();
        let mut known: HashMap<u64, usize> = frames.iter().enumerate().map(|(at, frame)| (frame.number, at)).collect();
        for part in parts {
            let number = part.frame.number;
            let at = *known.entry(number).or_insert_with(|| {
                let missing = (0..self.tools.shapes.regions.len() as u32).collect();
                frames.push(FrameEntry { number, times: [0; 4], missing });
                frames.len() - 1
            });
            let frame = &mut frames[at];
            frame.missing.retain(|source| *source != part.source);
            let [detector, received, ..] = frame.times;
            let taken = [detector, part.frame.taken].into_iter().filter(|time| *time > 0).min().unwrap_or(0);
            frame.times = [taken, received.max(part.received), compressed, 0];
        }
        frames
    }

    fn encode(&mut self, chunk_group: u64, number: u64, plain: &[u8]) -> io::Result<ChunkEntry> {
        let shared = self.shared;
        let mut filtered = shared.stripes.buffers.get(self.tools.filtered_bytes);
        filtered.clear();
        filter(shared, &mut self.tools.encoder, plain, &mut filtered)?;
        // The next chunk will hardly be larger by more than an eighth.
        self.tools.filtered_bytes = filtered.len() + filtered.len() / 8;
        self.place(chunk_group, number, filtered.into())
    }

    /// Puts bytes as they are where they will lie.
    fn place(&mut self, chunk_group: u64, number: u64, Blob { bytes, xxh3 }: Blob) -> io::Result<ChunkEntry> {
        let (size, checksum) = (bytes.len() as u64, xxh3.unwrap_or_else(|| xxh3_64(&bytes)));
        let address = if self.shared.apart() {
            self.write_apart(chunk_group, number, bytes)?
        } else {
            let (address, position) = self.shared.stripes.push(self.shared, bytes)?;
            self.tools.position = self.tools.position.max(position);
            address
        };
        self.shared.progress.lock().stored_bytes += size;
        Ok(ChunkEntry { address, size, mask: 0, checksum })
    }

    /// Nothing is gathered: what lies between is never written.
    fn write_apart(&self, chunk_group: u64, number: u64, bytes: Vec<u8>) -> io::Result<u64> {
        let (shared, description) = (self.shared, &self.shared.description);
        let address = match description.allocate {
            Allocate::Implicit => description.implicit_address(chunk_group * self.tools.shapes.count() + number),
            _ => shared.stripes.apart(shared, description.chunk_bytes().max(bytes.len()) as u64)?,
        };
        shared.file.write_all_at(&bytes, address)?;
        shared.stripes.buffers.put(bytes);
        Ok(address)
    }
}

/// Enters all chunk groups that have been written.
fn enter(shared: &PipelineShared) -> io::Result<()> {
    let mut chunk_groups = shared.stripes.take_written();
    if chunk_groups.is_empty() {
        return Ok(());
    }
    let time = unix_nanos();
    for frame in chunk_groups.iter_mut().flat_map(|chunk_group| &mut chunk_group.frames) {
        if frame.times[3] == 0 {
            frame.times[3] = time;
        }
    }
    shared.remember_incomplete(&chunk_groups);
    let numbers: Vec<u64> = chunk_groups.iter().map(|chunk_group| chunk_group.chunk_group).collect();
    shared.enter(chunk_groups)?;
    shared.queue.done(numbers.into_iter());
    Ok(())
}

/// Appends a chunk, filtered, to `out`.
fn filter(shared: &PipelineShared, encoder: &mut Encoder, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let Some(plugin) = &shared.plugin else {
        return encoder.encode(plain, out).map_err(io::Error::other);
    };
    let (from, mut between) = (out.len(), Vec::new());
    encoder.encode(plain, &mut between).map_err(io::Error::other)?;
    plugin.encode(&between, out).map_err(io::Error::other)?;
    fits(out.len() - from, shared)
}

/// What a plug-in makes of a chunk may be larger, but the index must be able to say how large.
fn fits(bytes: usize, shared: &PipelineShared) -> io::Result<()> {
    let most = Element::new(true, shared.description.chunk_bytes() as u64).size_max();
    match bytes as u64 <= most {
        true => Ok(()),
        false => Err(io::Error::other(format!("the plug-in made {bytes} bytes of a chunk, more than {most}"))),
    }
}
