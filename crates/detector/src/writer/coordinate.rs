//! What the process that commits a file does for those that joined ([`super::join`]): it grants them extents, and enters what
//! they wrote there. Where several of them, or this process too, bring frames of one chunk, it puts these together.

use super::pipeline::Shared;
use super::queue::Part;
use super::{WriteError, Writer};
use crate::allocate::PAGE_BYTES;
use crate::description::Allocate;
use crate::frame::{Blob, Frame, Level, Payload};
use crate::hdf5::UNDEFINED;
use crate::journal::{ChunkEntry, Entry, FrameEntry, SlabEntry};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How often who waits for a chunk that is being put together looks for it.
const LOOK: Duration = Duration::from_millis(2);

/// Who else would write to the addresses of frames of which it does not know whether they came.
pub(crate) const ONE_WRITER: &str = "a run without an index has one writer; let it allocate packed or sparse";

impl Writer {
    /// An extent for another process that writes into this file.
    ///
    /// # Errors
    /// If the file cannot be made longer, or the addresses of its chunks are not handed out.
    pub fn grant(&self, bytes: u64) -> io::Result<Range<u64>> {
        if self.shared.description.allocate == Allocate::Implicit {
            return Err(io::Error::other(ONE_WRITER));
        }
        let (own, stripe) = (super::own(&self.shared), self.shared.settings.stripe_bytes);
        let extent = own.allocator.extent(bytes.max(1).next_multiple_of(stripe.max(1)), stripe);
        own.length.ensure(&self.shared.file, extent.end)?;
        own.unnamed.lock().grant(extent.clone());
        own.note_grant(extent.end).inspect_err(|error| self.shared.fail_at("the journal of", error))?;
        Ok(extent)
    }

    /// Enters what another process has written to its extents and synced. Returns once it is in the journal. Where the run has
    /// failed for want of room, or fails by this, it is entered all the same if the journal has room: recovery finds it.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if a frame cannot be one of this run; nothing is entered then. [`WriteError::Failed`] if the
    /// run has failed, as it has if the journal cannot be written.
    pub fn report(&self, entries: Vec<Entry>) -> Result<(), WriteError> {
        let shared = &self.shared;
        if let Some(failure) = shared.failure()
            && !shared.ran_full.load(Ordering::Relaxed)
        {
            return Err(WriteError::Failed(failure));
        }
        check_report(shared, &entries)?;
        let (mut slabs, mut rest) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Slab(slab) => slabs.push(slab),
                entry => rest.push(entry),
            }
        }
        let slabs = without_superseded(slabs);
        let failed = |error: io::Error| {
            shared.fail_at("writing the journal of", &error);
            WriteError::Failed(shared.failure().unwrap_or_else(|| error.to_string()))
        };
        let rows = super::own(shared).enter(&shared.file, rest);
        let (alone, shares): (Vec<SlabEntry>, Vec<SlabEntry>) = slabs.into_iter().partition(|slab| claim(shared, slab));
        let entered = enter(shared, &alone);
        release(shared, &alone);
        rows.and(entered).map_err(failed)?;
        self.put_all_together(&shares)
    }

    /// Until all are in the journal; as many at a time as the queue has room for.
    fn put_all_together(&self, mut slabs: &[SlabEntry]) -> Result<(), WriteError> {
        let room = self.shared.settings.queue_bytes as u64;
        while !slabs.is_empty() {
            let (mut many, mut bytes) = (0, 0_u64);
            while many < slabs.len() && (many == 0 || bytes < room) {
                self.put_together(&slabs[many])?;
                bytes = bytes.saturating_add(slabs[many].stored_bytes());
                many += 1;
            }
            let (few, rest) = slabs.split_at(many);
            few.iter().try_for_each(|slab| self.await_written(slab))?;
            slabs = rest;
        }
        Ok(())
    }

    /// Hands the frames of a slab that have not come yet to the writing threads, in the chunks that they came in, for they
    /// share these with others.
    fn put_together(&self, slab: &SlabEntry) -> Result<(), WriteError> {
        let shared = &self.shared;
        if slab.frames.iter().all(|frame| self.level(frame.number, 0).is_some()) {
            return Ok(());
        }
        let mut blobs = Vec::new();
        for chunk in &slab.chunks {
            blobs.push(read(shared, chunk).map_err(|error| {
                let why = format!("its chunk at {} cannot be read: {error}", chunk.address);
                WriteError::Frame { number: slab.frames.first().map_or(0, |frame| frame.number), why }
            })?);
        }
        let new: Vec<_> =
            slab.frames.iter().filter(|frame| shared.levels.take(frame.number, 0).is_none()).cloned().collect();
        let numbers: Vec<u64> = new.iter().map(|frame| frame.number).collect();
        let parts = new.into_iter().map(|frame| {
            let [taken, received, ..] = frame.times;
            // The first one has the chunks of all.
            let payload = Payload::Filtered(std::mem::take(&mut blobs));
            Part { frame: Frame { number: frame.number, taken, payload }, source: 0, received }
        });
        if let Err(refused) = shared.queue.push_beside(slab.slab, parts.collect()) {
            numbers.iter().for_each(|number| shared.levels.give_back(*number, 0));
            return Err(self.refused(&refused, 0));
        }
        count(shared, &numbers);
        shared.listener.reached(Level::Memory, &numbers);
        Ok(())
    }

    /// Until the frames of a slab that the writing threads have are in the journal. A store that hangs holds up who reported
    /// it.
    fn await_written(&self, slab: &SlabEntry) -> Result<(), WriteError> {
        while let Some(late) = slab.frames.iter().find(|frame| self.level(frame.number, 0) < Some(Level::Written)) {
            if let Some(failure) = self.shared.failure() {
                return Err(WriteError::Failed(failure));
            }
            match self.level(late.number, 0) {
                Some(_) => std::thread::sleep(LOOK),
                // Another one was to bring it, and could not.
                None => self.put_together(slab)?,
            }
        }
        Ok(())
    }
}

/// A slab to which more came is reported again, with all its frames: of those in one report the last says it all.
fn without_superseded(mut slabs: Vec<SlabEntry>) -> Vec<SlabEntry> {
    let mut seen = HashSet::new();
    slabs.reverse();
    slabs.retain(|slab| seen.insert((slab.slab, slab.epoch)));
    slabs.reverse();
    slabs
}

fn check_report(shared: &Shared, entries: &[Entry]) -> Result<(), WriteError> {
    let slabs = entries.iter().map(|entry| if let Entry::Slab(slab) = entry { slab.frames.len() as u64 } else { 0 });
    let more = slabs.sum();
    let number = |frame: u64| shared.check_number(frame, more);
    for entry in entries {
        let (frame, checked) = match entry {
            Entry::Slab(slab) => {
                let wrong =
                    slab.frames.iter().find_map(|frame| number(frame.number).err().map(|why| (frame.number, why)));
                let first = slab.frames.first().map_or(0, |frame| frame.number);
                wrong.map_or_else(|| (first, check_slab(shared, slab)), |(number, why)| (number, Err(why)))
            }
            Entry::Scalars { frame, values } => (*frame, shared.check_scalars(values).and_then(|()| number(*frame))),
            Entry::Duplicate { frame } | Entry::Damaged { frame } => (*frame, number(*frame)),
            Entry::Durable { .. } | Entry::Column { .. } | Entry::Granted { .. } => {
                let why = "only who commits marks what is durable, adds columns and grants extents";
                (0, Err(why.to_owned()))
            }
        };
        checked.map_err(|why| WriteError::Frame { number: frame, why })?;
    }
    Ok(())
}

/// Chunks that another process wrote: as many as a frame has, within the file.
fn check_slab(shared: &Shared, slab: &SlabEntry) -> Result<(), String> {
    let description = &shared.description;
    let chunks = description.chunks_per_frame();
    if slab.chunks.len() as u64 != chunks {
        return Err(format!("it has {} chunks instead of {chunks}", slab.chunks.len()));
    }
    if slab.frames.is_empty() {
        return Err(format!("nothing is said of the frames of slab {}", slab.slab));
    }
    if let Some(chunk) = slab.chunks.iter().find(|chunk| !chunk.fits(description)) {
        return Err(format!("a chunk of {} bytes cannot be one of {} filtered", chunk.size, description.chunk_bytes()));
    }
    if slab.frames.iter().any(|frame| description.slab_of(frame.number).0 != slab.slab) {
        return Err(format!("it does not lie in slab {}", slab.slab));
    }
    let length = shared.file.metadata().map_err(|error| error.to_string())?.len();
    let outside = |chunk: &&ChunkEntry| {
        let end = chunk.address.checked_add(chunk.size);
        chunk.address != UNDEFINED && (chunk.address < PAGE_BYTES || end.is_none_or(|end| end > length))
    };
    match slab.chunks.iter().find(outside) {
        Some(chunk) => Err(format!("its chunk at {} of {} bytes is not in the file", chunk.address, chunk.size)),
        None => Ok(()),
    }
}

/// Whether nothing of a slab has come but what its writer tells of, so that its chunks are the run's as they are. Nobody
/// else touches it then, until [`release`].
fn claim(shared: &Shared, slab: &SlabEntry) -> bool {
    if !shared.queue.gathers() {
        return true;
    }
    if !shared.queue.claim(slab.slab) {
        return false;
    }
    let alone = match shared.incomplete.lock().get(&slab.slab) {
        // Two processes may have one epoch, if the service was started anew in between.
        Some(before) => before.epoch == slab.epoch && has_all_of(slab, before),
        // All of it came before, or nothing.
        None => slab.frames.iter().all(|frame| shared.levels.get(frame.number, 0).is_none()),
    };
    if !alone {
        shared.queue.done(std::iter::once(slab.slab));
    }
    alone
}

/// Whether what has come of the frames of `before` has come of those of `slab`, too.
fn has_all_of(slab: &SlabEntry, before: &SlabEntry) -> bool {
    let missing: HashMap<u64, &[u32]> = slab.frames.iter().map(|frame| (frame.number, &frame.missing[..])).collect();
    let there = |old: &FrameEntry| {
        missing.get(&old.number).is_some_and(|missing| missing.iter().all(|source| old.missing.contains(source)))
    };
    before.frames.iter().all(there)
}

fn release(shared: &Shared, slabs: &[SlabEntry]) {
    shared.queue.done(slabs.iter().map(|slab| slab.slab));
}

fn enter(shared: &Shared, slabs: &[SlabEntry]) -> io::Result<()> {
    let is_new = |number: &u64| shared.levels.take(*number, 0).is_none();
    let mut all = Vec::new();
    for slab in slabs {
        let new: Vec<u64> = slab.frames.iter().map(|frame| frame.number).filter(is_new).collect();
        shared.queue.came(slab.slab, new.len());
        count(shared, &new);
        all.extend(slab.frames.iter().map(|frame| frame.number));
    }
    let mut unnamed = super::own(shared).unnamed.lock();
    for chunk in slabs.iter().flat_map(SlabEntry::stored) {
        unnamed.name(chunk.range());
    }
    drop(unnamed);
    let stored = slabs.iter().map(SlabEntry::stored_bytes).fold(0, u64::saturating_add);
    let mut progress = shared.progress.lock();
    progress.stored_bytes = progress.stored_bytes.saturating_add(stored);
    drop(progress);
    shared.listener.reached(Level::Memory, &all);
    shared.remember_incomplete(slabs);
    shared.enter(slabs.to_vec())
}

fn count(shared: &Shared, new: &[u64]) {
    shared.took(new);
    if let Some(last) = new.iter().max() {
        shared.highest.fetch_max(*last, Ordering::Relaxed);
    }
}

/// A chunk as its writer filtered it, which can be taken apart.
fn read(shared: &Shared, chunk: &ChunkEntry) -> io::Result<Blob> {
    if chunk.address == UNDEFINED {
        return Err(io::Error::other("nothing of it came"));
    }
    if chunk.size > 2 * shared.description.chunk_bytes() as u64 + PAGE_BYTES {
        return Err(io::Error::other(format!("it has {} bytes", chunk.size)));
    }
    let mut bytes = vec![0; chunk.size as usize];
    shared.file.read_exact_at(&mut bytes, chunk.address)?;
    if xxh3_64(&bytes) != chunk.checksum {
        return Err(io::Error::other("its bytes here are not those that were written"));
    }
    shared.decode(bytes.clone())?;
    Ok(Blob { bytes, xxh3: Some(chunk.checksum) })
}
