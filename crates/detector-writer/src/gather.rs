//! A writing thread. It compresses chunk groups, adds their chunks to the stripes that all threads write, and enters
//! written chunk groups in the journal. When no frame is queued it writes all gathered chunks, so that gathering delays
//! nothing.
//!
//! If at least as many connections send frames as there are writing threads, each receiving thread writes its own
//! frames ([`InlineWrite`]): the frame is in its CPU cache, and no other thread must be woken.

use super::queue::{FramePart, Job, NextJob};
use super::shared::PipelineShared;
use super::tools::Tools;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use varve_detector_dataset::dataset_spec::Allocate;
use varve_detector_dataset::frame::{Blob, Payload};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry};
use varve_detector_dataset::time::unix_nanos;
use varve_detector_filters::Encoder;
use varve_detector_hdf5::UNDEFINED;
use varve_detector_hdf5::index::Element;
use xxhash_rust::xxh3::xxh3_64;

const ABSENT: ChunkEntry = ChunkEntry { address: UNDEFINED, size: 0, mask: 0, checksum: 0 };

/// Chunks of at least this fraction of a stripe are written at once by the thread that produced them, while they are in
/// the cache.
const LARGE_PART: u64 = 8;

pub(super) fn run(shared: &PipelineShared) {
    match Tools::new(&shared.description).and_then(|mut tools| Gather { shared, tools: &mut tools }.run()) {
        Ok(()) => {}
        Err(error) => fail(shared, &error),
    }
}

/// Fails the run, but first enters chunks that other threads or this one have written, because no other thread may do
/// so later.
fn fail(shared: &PipelineShared, error: &io::Error) {
    let entered = enter(shared);
    shared.fail_at("writing", error);
    if let Err(error) = entered {
        shared.fail_at("writing", &error);
    }
}

/// Writes chunks that were waiting to be gathered with more.
pub(super) fn flush(shared: &PipelineShared) {
    if !shared.stripes.is_empty()
        && let Err(error) = shared.stripes.write(&shared.file, true).and_then(|()| enter(shared))
    {
        fail(shared, &error);
    }
}

/// A frame that the run has taken and that the holder of this object must write.
pub struct InlineWrite {
    shared: Arc<PipelineShared>,
    /// `None` once it is written.
    job: Option<Job>,
    /// Whether the next frame is already arriving, so that small chunks are gathered.
    more: bool,
}

impl InlineWrite {
    /// The caller has called [`Queue::begin_own`](super::queue::FrameQueue::begin_own).
    pub(super) fn new(shared: Arc<PipelineShared>, part: FramePart, more: bool) -> InlineWrite {
        InlineWrite { shared, job: Some(Job { chunk_group: part.frame.number, parts: vec![part] }), more }
    }

    /// Writes the frame. On an error the run has failed, as its state shows.
    pub fn write(mut self) {
        let Some(job) = self.job.take() else { return };
        let shared = &self.shared;
        let spare = shared.tools.lock().pop();
        let written = spare.map_or_else(|| Tools::new(&shared.description), Ok).and_then(|mut tools| {
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
    /// The writing threads write a frame that is dropped unwritten.
    fn drop(&mut self) {
        self.shared.queue.end_own(self.job.take());
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
            // A thread that has added to the stripes gets here before it waits, so nothing is left unwritten.
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

    /// Processes a job and returns the size of the chunk group's chunks.
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

    /// Processes a frame that shares its chunks with no other, without unnecessary copies.
    fn whole_frame(&mut self, part: &mut FramePart, chunks: &mut [ChunkEntry]) -> io::Result<()> {
        match std::mem::replace(&mut part.frame.payload, Payload::Plain(Vec::new())) {
            Payload::Filtered(blobs) => {
                // The source's region may be a part of the frame.
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

    /// Builds chunk `number` of a chunk group from all parts that have arrived.
    fn assemble(
        &mut self,
        chunk_group: u64,
        parts: &mut [FramePart],
        number: u64,
        chunk: &mut ChunkEntry,
    ) -> io::Result<()> {
        let (shapes, sources) = (&self.tools.shapes, self.tools.shapes.regions.len());
        // A source may have sent very many parts.
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
                // Copies only the frames that arrived with this chunk.
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

    /// The chunk as a source has filtered it; [`super::check`] has verified that only this source contributes to the
    /// chunk.
    fn blob(&self, parts: &mut [FramePart], number: u64) -> Option<Blob> {
        parts.iter_mut().find_map(|part| {
            let Payload::Filtered(blobs) = &mut part.frame.payload else { return None };
            // The other frames of the chunk have no blobs.
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

    /// Entries of the chunk group's frames, updated with the new parts.
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
        // The next chunk is unlikely to be larger by more than an eighth.
        self.tools.filtered_bytes = filtered.len() + filtered.len() / 8;
        self.place(chunk_group, number, filtered.into())
    }

    /// Assigns an address to a chunk's bytes and passes them on for writing.
    fn place(&mut self, chunk_group: u64, number: u64, Blob { bytes, xxh3 }: Blob) -> io::Result<ChunkEntry> {
        let (size, checksum) = (bytes.len() as u64, xxh3.unwrap_or_else(|| xxh3_64(&bytes)));
        let address = if self.shared.apart() {
            self.write_apart(chunk_group, number, bytes)?
        } else {
            let (address, position) =
                self.shared.stripes.push(bytes, |extent, bytes| self.shared.place(extent, bytes))?;
            self.tools.position = self.tools.position.max(position);
            address
        };
        self.shared.progress.lock().stored_bytes += size;
        Ok(ChunkEntry { address, size, mask: 0, checksum })
    }

    /// Writes a chunk at its own address without gathering; gaps between chunks are never written.
    fn write_apart(&self, chunk_group: u64, number: u64, bytes: Vec<u8>) -> io::Result<u64> {
        let (shared, description) = (self.shared, &self.shared.description);
        let address = match description.allocate {
            Allocate::Implicit => description.implicit_address(chunk_group * self.tools.shapes.count() + number),
            _ => shared.stripes.apart(description.chunk_bytes().max(bytes.len()) as u64, |extent, bytes| {
                shared.place(extent, bytes)
            })?,
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

/// Filters a chunk and appends the result to `out`.
fn filter(shared: &PipelineShared, encoder: &mut Encoder, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let Some(plugin) = &shared.plugin else {
        return encoder.encode(plain, out).map_err(io::Error::other);
    };
    let (from, mut between) = (out.len(), Vec::new());
    encoder.encode(plain, &mut between).map_err(io::Error::other)?;
    plugin.encode(&between, out).map_err(io::Error::other)?;
    fits(out.len() - from, shared)
}

/// A plug-in may enlarge a chunk, but the index must be able to record its size.
fn fits(bytes: usize, shared: &PipelineShared) -> io::Result<()> {
    let most = Element::new(true, shared.description.chunk_bytes() as u64).size_max();
    match bytes as u64 <= most {
        true => Ok(()),
        false => Err(io::Error::other(format!("the plug-in produced {bytes} bytes for a chunk, more than {most}"))),
    }
}
