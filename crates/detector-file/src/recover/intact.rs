//! Verified state of a run: the journal's entries checked against the file, completed from the file's last commit.

use super::committed::LastCommit;
use super::holes::Holes;
use super::stored::read_stored;
use super::unfinished::{UnfinishedRun, durable_times};
use crate::allocate::punch;
use crate::journal::{Contents, Damage};
use rustix::fs::Advice;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::dataset_spec::{Allocate, ScalarColumn};
use varve_detector_dataset::frame::FrameStatus;
use varve_detector_dataset::frame_numbers;
use varve_detector_dataset::journal_entry::{ChunkGroupEntry, JournalEntry};
use varve_detector_dataset::time::{Nanoseconds, unix_nanos};
use varve_detector_hdf5::UNDEFINED;
use xxhash_rust::xxh3::xxh3_64;

/// State of a run after a crash.
pub struct IntactFrames {
    /// The entries of an equivalent undamaged journal.
    pub entries: Vec<JournalEntry>,
    /// The catalog after applying `entries`.
    pub catalog: Catalog,
    /// Number of frames that were missing in the journal.
    pub restored: u64,
    /// Journal damage that remains after restoring those frames.
    pub damage: Damage,
    /// Frames with a journal entry whose bytes in the file are incomplete or wrong.
    pub spoiled: BTreeSet<u64>,
}

impl IntactFrames {
    fn push(&mut self, entry: JournalEntry, time: Nanoseconds) {
        self.catalog.apply(&entry, time);
        self.entries.push(entry);
    }

    /// Whether the index cannot address these frames.
    fn is_beyond(&self, chunk_group: &ChunkGroupEntry) -> bool {
        let highest = self.catalog.frames();
        chunk_group.frames.iter().all(|frame| {
            !self.catalog.description.takes_frame(frame.number) && frame_numbers::near(frame.number, highest).is_ok()
        })
    }

    /// Number of complete and partial frames.
    fn frames(&self) -> u64 {
        let counts = self.catalog.counts();
        counts.frames - counts.missing - counts.damaged
    }
}

impl UnfinishedRun {
    /// Returns the journal's entries with damage entries in place of frames that are not intact in the file, plus
    /// entries that only the file's last commit has.
    pub fn sound(&self) -> io::Result<IntactFrames> {
        self.let_go_of_cache()?;
        let contents = &self.contents;
        let catalog = Catalog::new(contents.description.clone());
        let committed = self.committed(&catalog);
        let mut sound = IntactFrames {
            entries: Vec::new(),
            catalog,
            restored: 0,
            damage: contents.damage,
            spoiled: BTreeSet::new(),
        };
        let times = durable_times(&contents.entries);
        let (now, length) = (unix_nanos(), self.file.metadata()?.len());
        let holes =
            Holes::of(&self.file, contents.entries.iter().map(JournalEntry::end).fold(0, u64::max).min(length))?;
        let mut spoiled = BTreeSet::new();
        for (number, entry) in contents.entries.iter().enumerate() {
            if number == contents.intact {
                sound.add_columns(contents, committed.as_ref());
            }
            // The number of lost records is unknown, so a mark behind damage does not tell which entries it covers.
            let synced = times.get(number).copied().filter(|_| number < contents.intact);
            let time = synced.unwrap_or(now);
            match (entry, synced) {
                // Earlier programs accepted such frames; no file can have them.
                (JournalEntry::ChunkGroup(chunk_group), _) if sound.is_beyond(chunk_group) => {
                    for frame in &chunk_group.frames {
                        sound.push(JournalEntry::Damaged { frame: frame.number }, time);
                    }
                }
                // Our writer never writes such an entry.
                (JournalEntry::ChunkGroup(chunk_group), _) if !chunk_group.fits(&contents.description) => {}
                // A power loss may have removed anything that no mark covers. A truncation may have removed chunks that
                // a mark does cover.
                (JournalEntry::ChunkGroup(chunk_group), synced)
                    if entry.end() > length
                        || (synced.is_none() || chunk_group.stored().any(|chunk| holes.touch(&chunk.range())))
                            && !whole(&self.file, chunk_group)? =>
                {
                    spoiled.insert(chunk_group.chunk_group);
                    for frame in &chunk_group.frames {
                        sound.spoiled.insert(frame.number);
                        sound.push(JournalEntry::Damaged { frame: frame.number }, time);
                    }
                }
                _ => sound.push(entry.clone(), time),
            }
        }
        if contents.intact == contents.entries.len() {
            sound.add_columns(contents, committed.as_ref());
        }
        let before = sound.frames();
        if let Some(committed) = &committed {
            for (entry, durable) in committed.beyond(&sound.catalog, &self.file, &spoiled)? {
                sound.push(entry, durable.unwrap_or(now));
            }
            committed.late().for_each(|frame| sound.catalog.mark_late(frame));
        }
        self.borne_out(&mut sound, now)?;
        sound.restored = sound.frames() - before;
        sound.damage.end = sound.restored > sound.damage.frames_max;
        sound.damage.frames_max = sound.damage.frames_max.saturating_sub(sound.restored);
        let lacking = !contents.damage.is_none() || contents.torn_bytes > 0 || sound.restored > 0;
        if let Some(committed) = committed.filter(|_| lacking) {
            for entry in committed.scalars(&sound.catalog) {
                sound.push(entry, now);
            }
        }
        // If the journal's end is lost, complete frames may lie in the file whose records are lost.
        if !sound.damage.end {
            blank_missing(&self.file, &sound.catalog)?;
        }
        Ok(sound)
    }

    /// Drops the kernel's cached pages of the file. Pages that a failed sync could not write stay readable in the
    /// cache, count as clean, and later syncs do not report them. Only bytes read from the store are in the file. The
    /// whole file is dropped at once, because the kernel may cache many pages as one unit.
    fn let_go_of_cache(&self) -> io::Result<()> {
        self.file.sync_data()?;
        match rustix::fs::fadvise(&*self.file, 0, None, Advice::DontNeed) {
            // The kernel does not cache pages of this store.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the file's last commit. With an intact journal it adds nothing, so an unreadable commit does not prevent
    /// recovery.
    fn committed(&self, catalog: &Catalog) -> Option<LastCommit> {
        let read = LastCommit::read(&self.path, &self.file, catalog);
        read.unwrap_or_else(|why| {
            tracing::warn!(path = %self.path.display(), "cannot read its last commit, using only its journal: {why}");
            None
        })
    }

    /// Handles chunk groups that only damaged records describe. A frame is received if the file's bytes match the
    /// record, and damaged if the record only names it.
    fn borne_out(&self, sound: &mut IntactFrames, now: Nanoseconds) -> io::Result<()> {
        let description = &self.contents.description;
        let regions = description.regions().len();
        for chunk_group in &self.contents.doubtful {
            let known = |frame: u64| sound.catalog.status_of(frame) != FrameStatus::Missing;
            // Chunk group and frame number are redundant, so a single flipped bit cannot turn one frame into another.
            let named = chunk_group.frames.iter().all(|frame| {
                frame_numbers::number(description, frame.number, sound.catalog.frames()).is_ok()
                    && description.chunk_group_of(frame.number).0 == chunk_group.chunk_group
                    && !known(frame.number)
            });
            if !named || !chunk_group.fits(description) {
                continue;
            }
            let there = |frames: usize| frames as u64 == description.frames_of(chunk_group.chunk_group).count() as u64;
            let proven = regions == 1
                && there(chunk_group.frames.len())
                && chunk_group.chunks.iter().all(|chunk| chunk.address != UNDEFINED && chunk.mask == 0)
                && whole(&self.file, chunk_group)?;
            let mut chunk_group = chunk_group.clone();
            for frame in &mut chunk_group.frames {
                // The other fields of the record are not verified.
                (frame.times, frame.missing) = ([0; 4], Vec::new());
            }
            if proven {
                sound.push(JournalEntry::ChunkGroup(chunk_group), now);
            } else {
                chunk_group
                    .frames
                    .iter()
                    .for_each(|frame| sound.push(JournalEntry::Damaged { frame: frame.number }, now));
            }
        }
        Ok(())
    }
}

impl IntactFrames {
    /// Adds columns that the journal has lost, before the entries that refer to columns by number. Columns behind
    /// damage are dropped unless the commit has them.
    fn add_columns(&mut self, contents: &Contents, committed: Option<&LastCommit>) {
        let columns = committed.map(|committed| committed.columns(&self.catalog)).unwrap_or_default();
        let now = unix_nanos();
        columns.into_iter().for_each(|column| self.push(column, now));
        let known = |column: &&ScalarColumn| self.catalog.scalars.iter().any(|(known, _)| known == *column);
        self.damage.columns -= contents.columns.iter().filter(known).count() as u64;
    }
}

/// Zeroes missing frames where addresses follow from frame numbers. Otherwise bytes of an incomplete frame would read
/// as the frame.
fn blank_missing(file: &File, catalog: &Catalog) -> io::Result<()> {
    let description = &catalog.description;
    if description.allocate != Allocate::Implicit {
        return Ok(());
    }
    let chunks = description.chunks_per_frame();
    let zeros = vec![0; description.chunk_bytes()];
    let absent = |frame: &u64| matches!(catalog.status_of(*frame), FrameStatus::Missing | FrameStatus::Damaged);
    let first = description.first_address();
    if file.metadata()?.len() < first {
        file.set_len(first)?;
    }
    for frame in (0..description.frames_max().unwrap_or(0)).filter(absent) {
        for chunk in frame * chunks..(frame + 1) * chunks {
            let address = description.implicit_address(chunk);
            if !punch(file, address..address + zeros.len() as u64)? {
                file.write_all_at(&zeros, address)?;
            }
        }
    }
    Ok(())
}

/// Whether all chunks of a chunk group are intact in the file.
fn whole(file: &File, chunk_group: &ChunkGroupEntry) -> io::Result<bool> {
    let length = file.metadata()?.len();
    for chunk in chunk_group.chunks.iter().filter(|chunk| chunk.address != UNDEFINED) {
        if chunk.address.checked_add(chunk.size).is_none_or(|end| end > length) {
            return Ok(false);
        }
        match read_stored(file, chunk.range())? {
            Some(bytes) if xxh3_64(&bytes) == chunk.checksum => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}
