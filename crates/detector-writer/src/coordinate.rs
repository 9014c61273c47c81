//! The committing process's work for joined processes ([`super::join`]): it grants them extents and enters their writes
//! in the journal. If several processes, including this one, send frames of one chunk, it assembles them.

use super::Writer;
use super::outcome::{ONE_WRITER, WriteError};
use super::queue::FramePart;
use super::shared::PipelineShared;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::Allocate;
use varve_detector_dataset::frame::{AckLevel, Blob, Frame, Payload};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry, JournalEntry};
use varve_detector_file::allocate::PAGE_BYTES;
use varve_detector_hdf5::UNDEFINED;
use xxhash_rust::xxh3::xxh3_64;

/// Poll interval while waiting for a chunk that is being assembled.
const LOOK: Duration = Duration::from_millis(2);

impl Writer {
    /// Grants an extent to another process that writes to this file.
    ///
    /// # Errors
    /// If the file cannot be extended, or the run does not allocate addresses.
    pub fn grant(&self, bytes: u64) -> io::Result<Range<u64>> {
        if self.shared.description.allocate == Allocate::Implicit {
            return Err(io::Error::other(ONE_WRITER));
        }
        let (own, stripe) = (self.shared.own(), self.shared.settings.stripe_bytes);
        let extent = own.allocator.extent(bytes.max(1).next_multiple_of(stripe.max(1)), stripe);
        own.length.ensure(&self.shared.file, extent.end)?;
        own.unnamed.lock().grant(extent.clone());
        own.note_grant(extent.end).inspect_err(|error| self.shared.fail_at("the journal of", error))?;
        Ok(extent)
    }

    /// Enters chunks that another process has written to its extents and synced. Returns once they are in the journal.
    /// If the run has failed because the store is full, or fails here for that reason, they are entered anyway if the
    /// journal has space, so that recovery finds them.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if a frame cannot belong to this run; nothing is entered then. [`WriteError::Failed`] if
    /// the run has failed, including by a failed write to the journal.
    pub fn report(&self, entries: Vec<JournalEntry>) -> Result<(), WriteError> {
        let shared = &self.shared;
        if let Some(failure) = shared.failure()
            && !shared.ran_full.load(Ordering::Relaxed)
        {
            return Err(WriteError::Failed(failure));
        }
        check_report(shared, &entries)?;
        let (mut chunk_groups, mut rest) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                JournalEntry::ChunkGroup(chunk_group) => chunk_groups.push(chunk_group),
                entry => rest.push(entry),
            }
        }
        let chunk_groups = without_superseded(chunk_groups);
        let failed = |error: io::Error| {
            shared.fail_at("writing the journal of", &error);
            WriteError::Failed(shared.failure().unwrap_or_else(|| error.to_string()))
        };
        let rows = shared.own().enter(&shared.file, rest);
        let (alone, shares): (Vec<ChunkGroupEntry>, Vec<ChunkGroupEntry>) =
            chunk_groups.into_iter().partition(|chunk_group| claim(shared, chunk_group));
        let entered = enter(shared, &alone);
        release(shared, &alone);
        rows.and(entered).map_err(failed)?;
        self.put_all_together(&shares)
    }

    /// Assembles chunk groups and waits until all are in the journal; as many at a time as fit the queue.
    fn put_all_together(&self, mut chunk_groups: &[ChunkGroupEntry]) -> Result<(), WriteError> {
        let room = self.shared.settings.queue_bytes as u64;
        while !chunk_groups.is_empty() {
            let (mut many, mut bytes) = (0, 0_u64);
            while many < chunk_groups.len() && (many == 0 || bytes < room) {
                self.put_together(&chunk_groups[many])?;
                bytes = bytes.saturating_add(chunk_groups[many].stored_bytes());
                many += 1;
            }
            let (few, rest) = chunk_groups.split_at(many);
            few.iter().try_for_each(|chunk_group| self.await_written(chunk_group))?;
            chunk_groups = rest;
        }
        Ok(())
    }

    /// Hands the new frames of a chunk group to the writing threads, in the chunks in which they were reported, because
    /// other frames share these chunks.
    fn put_together(&self, chunk_group: &ChunkGroupEntry) -> Result<(), WriteError> {
        let shared = &self.shared;
        if chunk_group.frames.iter().all(|frame| self.level(frame.number, 0).is_some()) {
            return Ok(());
        }
        let mut blobs = Vec::new();
        for chunk in &chunk_group.chunks {
            blobs.push(read(shared, chunk).map_err(|error| {
                let why = format!("cannot read its chunk at {}: {error}", chunk.address);
                WriteError::Frame { number: chunk_group.frames.first().map_or(0, |frame| frame.number), why }
            })?);
        }
        let new: Vec<_> =
            chunk_group.frames.iter().filter(|frame| shared.levels.take(frame.number, 0).is_none()).cloned().collect();
        let numbers: Vec<u64> = new.iter().map(|frame| frame.number).collect();
        let parts = new.into_iter().map(|frame| {
            let [taken, received, ..] = frame.times;
            // The first part has the chunks of all.
            let payload = Payload::Filtered(std::mem::take(&mut blobs));
            FramePart { frame: Frame { number: frame.number, taken, payload }, source: 0, received }
        });
        if let Err(refused) = shared.queue.push_beside(chunk_group.chunk_group, parts.collect()) {
            numbers.iter().for_each(|number| shared.levels.give_back(*number, 0));
            return Err(self.refused(&refused, 0));
        }
        count(shared, &numbers);
        shared.listener.reached(AckLevel::Memory, &numbers);
        Ok(())
    }

    /// Waits until the frames of a chunk group that the writing threads have are in the journal. A store that hangs
    /// blocks only the reporting process.
    fn await_written(&self, chunk_group: &ChunkGroupEntry) -> Result<(), WriteError> {
        while let Some(late) =
            chunk_group.frames.iter().find(|frame| self.level(frame.number, 0) < Some(AckLevel::Written))
        {
            if let Some(failure) = self.shared.failure() {
                return Err(WriteError::Failed(failure));
            }
            match self.level(late.number, 0) {
                Some(_) => std::thread::sleep(LOOK),
                // Another call was to submit it and failed.
                None => self.put_together(chunk_group)?,
            }
        }
        Ok(())
    }
}

/// Drops superseded entries. A chunk group that was extended is reported again with all its frames, so only the last
/// entry in a report counts.
fn without_superseded(mut chunk_groups: Vec<ChunkGroupEntry>) -> Vec<ChunkGroupEntry> {
    let mut seen = HashSet::new();
    chunk_groups.reverse();
    chunk_groups.retain(|chunk_group| seen.insert((chunk_group.chunk_group, chunk_group.epoch)));
    chunk_groups.reverse();
    chunk_groups
}

fn check_report(shared: &PipelineShared, entries: &[JournalEntry]) -> Result<(), WriteError> {
    let chunk_groups = entries.iter().map(|entry| {
        if let JournalEntry::ChunkGroup(chunk_group) = entry { chunk_group.frames.len() as u64 } else { 0 }
    });
    let more = chunk_groups.sum();
    let number = |frame: u64| shared.check_number(frame, more);
    for entry in entries {
        let (frame, checked) = match entry {
            JournalEntry::ChunkGroup(chunk_group) => {
                let wrong = chunk_group
                    .frames
                    .iter()
                    .find_map(|frame| number(frame.number).err().map(|why| (frame.number, why)));
                let first = chunk_group.frames.first().map_or(0, |frame| frame.number);
                wrong
                    .map_or_else(|| (first, check_chunk_group(shared, chunk_group)), |(number, why)| (number, Err(why)))
            }
            JournalEntry::Scalars { frame, values } => {
                (*frame, shared.check_scalars(values).and_then(|()| number(*frame)))
            }
            JournalEntry::Duplicate { frame } | JournalEntry::Damaged { frame } => (*frame, number(*frame)),
            JournalEntry::Durable { .. } | JournalEntry::Column { .. } | JournalEntry::Granted { .. } => {
                let why = "only the committing process marks frames durable, adds columns and grants extents";
                (0, Err(why.to_owned()))
            }
        };
        checked.map_err(|why| WriteError::Frame { number: frame, why })?;
    }
    Ok(())
}

/// Checks chunks that another process wrote: their number must be that of a frame, and they must be within the file.
fn check_chunk_group(shared: &PipelineShared, chunk_group: &ChunkGroupEntry) -> Result<(), String> {
    let description = &shared.description;
    let chunks = description.chunks_per_frame();
    if chunk_group.chunks.len() as u64 != chunks {
        return Err(format!("it has {} chunks instead of {chunks}", chunk_group.chunks.len()));
    }
    if chunk_group.frames.is_empty() {
        return Err(format!("the report has no frames of chunk group {}", chunk_group.chunk_group));
    }
    if let Some(chunk) = chunk_group.chunks.iter().find(|chunk| !chunk.fits(description)) {
        return Err(format!("a chunk of {} bytes cannot be {} bytes filtered", chunk.size, description.chunk_bytes()));
    }
    if chunk_group.frames.iter().any(|frame| description.chunk_group_of(frame.number).0 != chunk_group.chunk_group) {
        return Err(format!("it does not lie in chunk group {}", chunk_group.chunk_group));
    }
    let length = shared.file.metadata().map_err(|error| error.to_string())?.len();
    let outside = |chunk: &&ChunkEntry| {
        let end = chunk.address.checked_add(chunk.size);
        chunk.address != UNDEFINED && (chunk.address < PAGE_BYTES || end.is_none_or(|end| end > length))
    };
    match chunk_group.chunks.iter().find(outside) {
        Some(chunk) => Err(format!("its chunk at {} of {} bytes is not in the file", chunk.address, chunk.size)),
        None => Ok(()),
    }
}

/// Whether nothing of a chunk group has arrived except from the reporting writer, so that its chunks can be used
/// unchanged. If so, the chunk group is claimed exclusively until [`release`].
fn claim(shared: &PipelineShared, chunk_group: &ChunkGroupEntry) -> bool {
    if !shared.queue.gathers() {
        return true;
    }
    if !shared.queue.claim(chunk_group.chunk_group) {
        return false;
    }
    let alone = match shared.incomplete.lock().get(&chunk_group.chunk_group) {
        // Two processes may have the same epoch if the service was restarted in between.
        Some(before) => before.epoch == chunk_group.epoch && has_all_of(chunk_group, before),
        // Either all of it came before, or nothing.
        None => chunk_group.frames.iter().all(|frame| shared.levels.get(frame.number, 0).is_none()),
    };
    if !alone {
        shared.queue.done(std::iter::once(chunk_group.chunk_group));
    }
    alone
}

/// Whether `chunk_group` contains every part of a frame that `before` contains.
fn has_all_of(chunk_group: &ChunkGroupEntry, before: &ChunkGroupEntry) -> bool {
    let missing: HashMap<u64, &[u32]> =
        chunk_group.frames.iter().map(|frame| (frame.number, &frame.missing[..])).collect();
    let there = |old: &FrameEntry| {
        missing.get(&old.number).is_some_and(|missing| missing.iter().all(|source| old.missing.contains(source)))
    };
    before.frames.iter().all(there)
}

fn release(shared: &PipelineShared, chunk_groups: &[ChunkGroupEntry]) {
    shared.queue.done(chunk_groups.iter().map(|chunk_group| chunk_group.chunk_group));
}

fn enter(shared: &PipelineShared, chunk_groups: &[ChunkGroupEntry]) -> io::Result<()> {
    let is_new = |number: &u64| shared.levels.take(*number, 0).is_none();
    let mut all = Vec::new();
    for chunk_group in chunk_groups {
        let new: Vec<u64> = chunk_group.frames.iter().map(|frame| frame.number).filter(is_new).collect();
        shared.queue.came(chunk_group.chunk_group, new.len());
        count(shared, &new);
        all.extend(chunk_group.frames.iter().map(|frame| frame.number));
    }
    let mut unnamed = shared.own().unnamed.lock();
    for chunk in chunk_groups.iter().flat_map(ChunkGroupEntry::stored) {
        unnamed.name(chunk.range());
    }
    drop(unnamed);
    let stored = chunk_groups.iter().map(ChunkGroupEntry::stored_bytes).fold(0, u64::saturating_add);
    let mut progress = shared.progress.lock();
    progress.stored_bytes = progress.stored_bytes.saturating_add(stored);
    drop(progress);
    shared.listener.reached(AckLevel::Memory, &all);
    shared.remember_incomplete(chunk_groups);
    shared.enter(chunk_groups.to_vec())
}

fn count(shared: &PipelineShared, new: &[u64]) {
    shared.took(new);
    if let Some(last) = new.iter().max() {
        shared.highest.fetch_max(*last, Ordering::Relaxed);
    }
}

/// Reads a chunk that another process wrote, and verifies that it can be decoded.
fn read(shared: &PipelineShared, chunk: &ChunkEntry) -> io::Result<Blob> {
    if chunk.address == UNDEFINED {
        return Err(io::Error::other("it has no data"));
    }
    if chunk.size > 2 * shared.description.chunk_bytes() as u64 + PAGE_BYTES {
        return Err(io::Error::other(format!("it has {} bytes", chunk.size)));
    }
    let mut bytes = vec![0; chunk.size as usize];
    shared.file.read_exact_at(&mut bytes, chunk.address)?;
    if xxh3_64(&bytes) != chunk.checksum {
        return Err(io::Error::other("its checksum differs from the written data"));
    }
    shared.decode(bytes.clone())?;
    Ok(Blob { bytes, xxh3: Some(chunk.checksum) })
}
