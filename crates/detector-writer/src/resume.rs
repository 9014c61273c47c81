//! Resumption of a run whose writer was killed, from its journal.

use super::Writer;
use super::committer::CommitterState;
use super::extent_source::{ExtentSource, Own};
use super::outcome::WriteError;
use super::settings::{Listener, Settings};
use super::shared::PipelineShared;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use varve_detector_dataset::frame::{FrameCounts, FrameStatus};
use varve_detector_dataset::journal_entry::{ChunkGroupEntry, JournalEntry};
use varve_detector_dataset::ranges::Ranges;
use varve_detector_dataset::time::unix_nanos;
use varve_detector_file::allocate::Allocator;
use varve_detector_file::journal::{self, Damage, Journal};
use varve_detector_file::length::Length;
use varve_detector_file::recover;
use varve_detector_file::run_files::{self, remove_if_there, rewritten, sync_directory};
use varve_detector_file::space_reservation::SpaceReservation;

/// State of a resumed run.
#[derive(Debug)]
pub struct Resumed {
    /// Frames in the file; all are durable. For partial ones, [`super::Pipeline::level`] says which regions are
    /// present.
    pub frames: Ranges,
    pub counts: FrameCounts,
    /// The highest epoch of their writers.
    pub epoch: u32,
}

impl Writer {
    /// Resumes the run of the file at `path` from the journal that its writer left. This may itself be killed anywhere.
    ///
    /// # Errors
    /// If there is no journal, its writer still runs, or the files cannot be read or written.
    pub fn resume(
        path: &Path,
        settings: Settings,
        listener: Arc<dyn Listener>,
    ) -> Result<(Writer, Resumed), WriteError> {
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let found = recover::UnfinishedRun::read(path)?;
        let recover::IntactFrames { entries, mut catalog, restored, damage, .. } = found.sound().map_err(io)?;
        found.file.sync_data().map_err(io)?;
        let bytes = found.file.metadata().map_err(io)?.len();
        // Joined writers may be late and still write to their extents: below the end of the grants, or if that is
        // unknown, below the file's length.
        let free = found.used(&entries).map_err(io)?.max(found.granted().unwrap_or(bytes));
        let journal = rewrite(path, &found, (&entries, free), (&damage, restored)).map_err(io)?;
        let allocator = Allocator::new(free);
        let room = SpaceReservation::new(&mut catalog).for_readers_of(settings.reader_age);
        let own = Own::new(allocator, Length::new(bytes), journal, room);
        let in_file = |frame: &u64| !matches!(catalog.status_of(*frame), FrameStatus::Missing | FrameStatus::Damaged);
        let frames: Ranges = (0..catalog.frames()).filter(in_file).collect();
        let counts = catalog.counts();
        let written = entries.iter().filter_map(|entry| match entry {
            JournalEntry::ChunkGroup(chunk_group) => Some(chunk_group.epoch),
            _ => None,
        });
        let epoch = written.max().unwrap_or(0);
        let recover::UnfinishedRun { file, contents, .. } = found;
        let mut committed = CommitterState::new(catalog);
        committed.publish(&file, &own).map_err(|error| io(error.into()))?;
        let shared = PipelineShared::new(
            (path, file),
            contents.description,
            settings,
            ExtentSource::Own(Box::new(own)),
            listener,
        )?;
        shared.highest.store(frames.end(), Ordering::Relaxed);
        let chunk_groups = entries.iter().filter_map(|entry| match entry {
            JournalEntry::ChunkGroup(chunk_group) => Some(chunk_group.clone()),
            _ => None,
        });
        let chunk_groups: Vec<ChunkGroupEntry> = chunk_groups.collect();
        shared.remember_incomplete(&chunk_groups);
        for frame in chunk_groups.iter().flat_map(|chunk_group| &chunk_group.frames) {
            shared.levels.resume(frame.number, &frame.missing);
        }
        for chunk_group in shared.incomplete.lock().values() {
            let missing: usize = chunk_group.frames.iter().map(|frame| frame.missing.len()).sum();
            let sources = shared.description.regions().len();
            shared.queue.came(chunk_group.chunk_group, chunk_group.frames.len() * sources - missing);
        }
        shared.add_columns(&entries);
        let many = frames.len();
        {
            let mut progress = shared.progress.lock();
            (progress.taken, progress.written, progress.durable) = (many, many, many);
            progress.published = counts.frames;
            progress.stored_bytes = chunk_groups.iter().map(ChunkGroupEntry::stored_bytes).sum();
        }
        let writer = Writer::start(Arc::new(shared), committed).map_err(io)?;
        Ok((writer, Resumed { frames, counts, epoch }))
    }
}

/// Replaces the journal by one without torn or damaged records, in which all entries are marked durable.
fn rewrite(
    path: &Path,
    found: &recover::UnfinishedRun,
    (entries, free): (&[JournalEntry], u64),
    lost: (&Damage, u64),
) -> io::Result<Journal> {
    let beside = run_files::journal_of(path);
    let name = rewritten(path);
    let mut bytes = journal::encode_head(&found.contents.description);
    journal::encode(&JournalEntry::Granted { end: free }, &mut bytes);
    for entry in entries {
        journal::encode(entry, &mut bytes);
    }
    let covered = entries.len() as u64 + 1;
    journal::encode(&JournalEntry::Durable { entries: covered, time: unix_nanos() }, &mut bytes);
    remove_if_there(&name)?;
    let mut file = OpenOptions::new().append(true).create_new(true).open(&name)?;
    if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_all()) {
        // A full disk needs the space.
        if let Err(error) = std::fs::remove_file(&name) {
            tracing::warn!("cannot remove {} of a run that could not be resumed: {error}", name.display());
        }
        return Err(error);
    }
    let journal = Journal::resume(file, covered + 1)?;
    found.keep_damaged(path, lost)?;
    std::fs::rename(&name, &beside)?;
    sync_directory(path)?;
    Ok(journal)
}
