//! Going on with a run whose writer was killed: its journal says what lies in the file.

use super::committer::Committed;
use super::ground::{Ground, Own};
use super::pipeline::Shared;
use super::{Listener, Settings, WriteError, Writer, now, remove_if_there, rewritten, sync_directory};
use crate::allocate::Allocator;
use crate::catalog::Counts;
use crate::frame::FrameStatus;
use crate::journal::{self, Damage, Entry, Journal, SlabEntry};
use crate::length::Length;
use crate::recover;
use crate::room::Room;
use crate::stream::Ranges;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a run that goes on has already.
#[derive(Debug)]
pub struct Resumed {
    /// Frames in the file; all are durable. Of partial ones [`super::Pipeline::level`] says which regions are.
    pub frames: Ranges,
    pub counts: Counts,
    /// The highest of the writers that wrote them.
    pub epoch: u32,
}

impl Writer {
    /// Takes up the run of the file at `path`, whose journal its writer left behind. May itself be killed anywhere.
    ///
    /// # Errors
    /// If there is no journal, its writer still runs, or the files cannot be read or written.
    pub fn resume(
        path: &Path,
        settings: Settings,
        listener: Arc<dyn Listener>,
    ) -> Result<(Writer, Resumed), WriteError> {
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let found = recover::Found::read(path)?;
        let recover::Sound { entries, mut catalog, restored, damage, .. } = found.sound().map_err(io)?;
        found.file.sync_data().map_err(io)?;
        let bytes = found.file.metadata().map_err(io)?.len();
        // Its writers may be late, and still write where they were granted extents: below the file's length, wherever
        // that is.
        let free = found.used(&entries).map_err(io)?.max(found.granted().unwrap_or(bytes));
        let journal = rewrite(path, &found, (&entries, free), (&damage, restored)).map_err(io)?;
        let allocator = Allocator::new(free);
        let own = Own::new(allocator, Length::new(bytes), journal, Room::new(&mut catalog));
        let in_file = |frame: &u64| !matches!(catalog.status_of(*frame), FrameStatus::Missing | FrameStatus::Damaged);
        let frames: Ranges = (0..catalog.frames()).filter(in_file).collect();
        let counts = catalog.counts();
        let written = entries.iter().filter_map(|entry| match entry {
            Entry::Slab(slab) => Some(slab.epoch),
            _ => None,
        });
        let epoch = written.max().unwrap_or(0);
        let recover::Found { file, contents, .. } = found;
        let mut committed = Committed::new(catalog);
        committed.publish(&file, &own).map_err(|error| io(error.into()))?;
        let shared = Shared::new((path, file), contents.description, settings, Ground::Own(Box::new(own)), listener)?;
        shared.highest.store(frames.end(), Ordering::Relaxed);
        let slabs = entries.iter().filter_map(|entry| match entry {
            Entry::Slab(slab) => Some(slab.clone()),
            _ => None,
        });
        let slabs: Vec<SlabEntry> = slabs.collect();
        shared.remember_incomplete(&slabs);
        for frame in slabs.iter().flat_map(|slab| &slab.frames) {
            shared.levels.resume(frame.number, &frame.missing);
        }
        for slab in shared.incomplete.lock().values() {
            let missing: usize = slab.frames.iter().map(|frame| frame.missing.len()).sum();
            let sources = shared.description.regions().len();
            shared.queue.came(slab.slab, slab.frames.len() * sources - missing);
        }
        shared.add_columns(&entries);
        let many = frames.len();
        {
            let mut progress = shared.progress.lock();
            (progress.taken, progress.written, progress.durable) = (many, many, many);
            progress.published = counts.frames;
            progress.stored_bytes = slabs.iter().map(SlabEntry::stored_bytes).sum();
        }
        let writer = Writer::start(Arc::new(shared), committed).map_err(io)?;
        Ok((writer, Resumed { frames, counts, epoch }))
    }
}

/// Replaces the journal by one without what the crash left of its end, or damage took, all of whose entries are marked
/// durable.
fn rewrite(
    path: &Path,
    found: &recover::Found,
    (entries, free): (&[Entry], u64),
    lost: (&Damage, u64),
) -> io::Result<Journal> {
    let beside = journal::path_beside(path);
    let name = rewritten(path);
    let mut bytes = journal::encode_head(&found.contents.description);
    journal::encode(&Entry::Granted { end: free }, &mut bytes);
    for entry in entries {
        journal::encode(entry, &mut bytes);
    }
    let covered = entries.len() as u64 + 1;
    journal::encode(&Entry::Durable { entries: covered, time: now() }, &mut bytes);
    remove_if_there(&name)?;
    let mut file = OpenOptions::new().append(true).create_new(true).open(&name)?;
    if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_all()) {
        // A disk that is full needs the room.
        if let Err(error) = std::fs::remove_file(&name) {
            tracing::warn!("{} is left of a run that could not be taken up: {error}", name.display());
        }
        return Err(error);
    }
    let journal = Journal::resume(file, covered + 1)?;
    found.keep_damaged(path, lost)?;
    std::fs::rename(&name, &beside)?;
    sync_directory(path)?;
    Ok(journal)
}
