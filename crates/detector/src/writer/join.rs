//! A process that writes its share of the frames into a file that another one commits. It compresses and writes by itself,
//! into extents that the [`Coordinator`] grants; it syncs what it wrote before it reports it, so that the coordinator,
//! who may be on another host, can say *durable* truthfully.

use super::ground::{Ground, Joint};
use super::pipeline::{Pipeline, Shared, reached};
use super::{Acknowledge, Settings, WriteError, Writer, check};
use crate::allocate::PAGE_BYTES;
use crate::description::{Allocate, Description};
use crate::frame::Level;
use crate::hdf5::UNDEFINED;
use crate::journal::{ChunkEntry, Entry, SlabEntry};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The process that commits the file, as one that joined sees it.
pub trait Coordinator: Send + Sync {
    /// An extent of at least `bytes` that nobody else is given ever, within the file's length.
    ///
    /// # Errors
    /// If there is none to be had: the run has ended, or the coordinator does not come back.
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>>;

    /// Tells what lies in the file and has been synced. Returns once it is in the coordinator's journal.
    ///
    /// # Errors
    /// As of [`Coordinator::extent`].
    fn report(&self, entries: Vec<Entry>) -> io::Result<()>;
}

impl Writer {
    /// An extent for another process that writes into this file.
    ///
    /// # Errors
    /// If the file cannot be made longer, or the addresses of its chunks are not handed out.
    pub fn grant(&self, bytes: u64) -> io::Result<Range<u64>> {
        if self.shared.description.allocate == Allocate::Implicit {
            return Err(io::Error::other("a run without an index has one writer; let it allocate packed or sparse"));
        }
        let (own, stripe) = (super::own(&self.shared), self.shared.settings.stripe_bytes);
        let extent = own.allocator.extent(bytes.max(1).next_multiple_of(stripe.max(1)), stripe);
        own.length.ensure(&self.shared.file, extent.end)?;
        own.unnamed.lock().grant(extent.clone());
        own.note_grant(extent.end).inspect_err(|error| self.shared.fail_at("the journal of", error))?;
        Ok(extent)
    }

    /// Enters what another process has written to its extents and synced.
    ///
    /// # Errors
    /// [`WriteError::Frame`] if a frame cannot be one of this run; nothing is entered then. [`WriteError::Failed`] if the
    /// run has failed, as it has if the journal cannot be written.
    pub fn report(&self, entries: Vec<Entry>) -> Result<(), WriteError> {
        let shared = &self.shared;
        if let Some(failure) = shared.failure() {
            return Err(WriteError::Failed(failure));
        }
        let mut owners = self.owners.lock();
        let highest = shared.highest.load(Ordering::Relaxed);
        let (mut slabs, mut rest, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            let refused = |number, why| Err(WriteError::Frame { number, why });
            match &entry {
                Entry::Slab(slab) => {
                    for frame in &slab.frames {
                        check::number(&shared.description, frame.number, highest)
                            .and_then(|()| check_slab(shared, slab, owners.get(&slab.slab)))
                            .or_else(|why| refused(frame.number, why))?;
                        numbers.push(frame.number);
                    }
                }
                Entry::Scalars { frame, values } => {
                    if let Err(why) = shared.check_scalars(values) {
                        return refused(*frame, why);
                    }
                    check::number(&shared.description, *frame, highest).or_else(|why| refused(*frame, why))?;
                }
                Entry::Duplicate { frame } | Entry::Damaged { frame } => {
                    check::number(&shared.description, *frame, highest).or_else(|why| refused(*frame, why))?;
                }
                Entry::Durable { .. } | Entry::Column { .. } | Entry::Granted { .. } => {
                    return refused(
                        0,
                        "only who commits marks what is durable, adds columns and grants extents".to_owned(),
                    );
                }
            }
            match entry {
                Entry::Slab(slab) => slabs.push(slab),
                entry => rest.push(entry),
            }
        }
        if shared.queue.gathers() {
            owners.extend(slabs.iter().map(|slab| (slab.slab, slab.epoch)));
        }
        drop(owners);
        let failed = |error: io::Error| {
            shared.fail_at("writing the journal of", &error);
            WriteError::Failed(error.to_string())
        };
        // A slab to which more came is reported again, with all its frames.
        let new: Vec<u64> = numbers.iter().copied().filter(|number| shared.levels.take(*number, 0).is_none()).collect();
        shared.took(&new);
        for number in &numbers {
            shared.highest.fetch_max(*number, Ordering::Relaxed);
        }
        let mut unnamed = super::own(shared).unnamed.lock();
        for chunk in slabs.iter().flat_map(SlabEntry::stored) {
            unnamed.name(chunk.address..chunk.address.saturating_add(chunk.size));
        }
        drop(unnamed);
        let stored = slabs.iter().map(SlabEntry::stored_bytes).fold(0, u64::saturating_add);
        let mut progress = shared.progress.lock();
        progress.stored_bytes = progress.stored_bytes.saturating_add(stored);
        drop(progress);
        (shared.acknowledge)(Level::Memory, &numbers);
        super::own(shared).enter(&shared.file, rest).map_err(failed)?;
        shared.enter(slabs).map_err(failed)
    }
}

/// Which writer has brought a slab that others may not add to; empty where a slab has one part.
pub(super) type Owners = HashMap<u64, u32>;

/// Chunks that another process wrote: as many as a frame has, within the file.
fn check_slab(shared: &Shared, slab: &SlabEntry, owner: Option<&u32>) -> Result<(), String> {
    let description = &shared.description;
    let chunks = description.chunks_per_frame();
    if slab.chunks.len() as u64 != chunks {
        return Err(format!("it has {} chunks instead of {chunks}", slab.chunks.len()));
    }
    if slab.frames.iter().any(|frame| description.slab_of(frame.number).0 != slab.slab) {
        return Err(format!("it does not lie in slab {}", slab.slab));
    }
    if let Some(owner) = owner
        && *owner != slab.epoch
    {
        return Err(format!("it shares chunks with frames that writer {owner} brought; let one writer bring them all"));
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

/// A share of a run being written. Frames that share chunks, and regions of one frame, must come to one process.
pub struct Joined {
    pipeline: Pipeline,
    reporter: Option<JoinHandle<io::Result<()>>>,
}

impl Deref for Joined {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl Joined {
    /// Opens the file of a run, which the coordinator made, and starts the threads. `acknowledge` is told of level
    /// memory only: the others come from the coordinator.
    ///
    /// # Errors
    /// If the file cannot be opened for writing.
    pub fn join(
        path: &Path,
        description: Description,
        settings: Settings,
        (epoch, coordinator): (u32, Arc<dyn Coordinator>),
        acknowledge: Acknowledge,
    ) -> Result<Joined, WriteError> {
        description.check()?;
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let ground = Ground::Joint(Joint::new(epoch, coordinator));
        let shared = Arc::new(Shared::new((path, file), description, settings, ground, acknowledge)?);
        let pipeline = Pipeline::start(Arc::clone(&shared)).map_err(io)?;
        let reporter = std::thread::Builder::new().name("report".into()).spawn(move || report(&shared)).map_err(io)?;
        Ok(Joined { pipeline, reporter: Some(reporter) })
    }

    /// Writes, syncs and reports all frames taken.
    ///
    /// # Errors
    /// If any was not reported: it is not in the file.
    pub fn leave(mut self) -> Result<(), WriteError> {
        self.end().map_err(|source| WriteError::Io { path: self.shared.path.clone(), source })?;
        self.shared.failure().map_or(Ok(()), |failure| Err(WriteError::Failed(failure)))
    }

    fn end(&mut self) -> io::Result<()> {
        match self.reporter.take() {
            Some(reporter) => self.pipeline.end(reporter),
            None => Ok(()),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(path = %self.shared.path.display(), "this share of the run ended with an error: {error}");
        }
    }
}

/// The reporting thread: syncs what was written and reports it, at each interval and at the end.
fn report(shared: &Shared) -> io::Result<()> {
    let Ground::Joint(joint) = &shared.ground else {
        return Err(io::Error::other("only a process that joined reports"));
    };
    shared.rounds("reporting what was written to", |_last| round(shared, joint))
}

fn round(shared: &Shared, joint: &Joint) -> io::Result<()> {
    let _reporting = joint.reporting.lock();
    let slabs = std::mem::take(&mut *joint.waiting.lock());
    let rows = shared.rows.lock().take();
    if slabs.is_empty() && rows.is_empty() {
        return Ok(());
    }
    if !slabs.is_empty() {
        shared.file.sync_data()?;
    }
    let reached = reached(&slabs);
    joint.coordinator.report(slabs.into_iter().map(Entry::Slab).chain(rows).collect())?;
    // A slab to which more came is reported again, with all its frames.
    let new =
        reached.iter().filter(|(frame, missing)| shared.levels.raise(*frame, missing, Level::Written) == Some(true));
    shared.progress.lock().written += new.count() as u64;
    Ok(())
}

impl Joint {
    /// Reports the rows that wait; when it returns, all that were there before are in the coordinator's journal.
    pub(super) fn report_rows(&self, shared: &Shared) -> io::Result<()> {
        let _reporting = self.reporting.lock();
        let rows = shared.rows.lock().take();
        if rows.is_empty() { Ok(()) } else { self.coordinator.report(rows) }
    }
}
