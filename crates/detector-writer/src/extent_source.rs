//! Source of extents and destination of journal entries: the process's own allocator and journal, or a coordinator.

use super::settings::Settings;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_detector_dataset::journal_entry::{ChunkGroupEntry, JournalEntry};
use varve_detector_file::allocate::{Allocator, Unnamed, punch};
use varve_detector_file::journal::Journal;
use varve_detector_file::length::Length;
use varve_detector_file::space_reservation::{Space, SpaceReservation};

/// The process that commits the file, from the view of a joined process.
pub trait Coordinator: Send + Sync {
    /// Requests an extent of at least `bytes` within the file's length, for exclusive use.
    ///
    /// # Errors
    /// If none is available: the run has ended, or the coordinator does not come back.
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>>;

    /// Reports synced chunks. Returns once they are in the coordinator's journal.
    ///
    /// # Errors
    /// Same as [`Coordinator::extent`].
    fn report(&self, entries: Vec<JournalEntry>) -> io::Result<()>;
}

pub(super) enum ExtentSource {
    /// This process commits the file.
    Own(Box<Own>),
    /// Another process commits the file and grants extents within its length.
    Joint(Joint),
}

pub(super) struct Own {
    pub allocator: Allocator,
    pub length: Length,
    /// Space for commits. Lock order: ledger first.
    pub room: Mutex<SpaceReservation>,
    pub ledger: Mutex<Ledger>,
    /// Unnamed parts of extents of joined processes.
    pub unnamed: Mutex<Unnamed>,
}

/// The journal, and the entries appended since the last sync.
pub(super) struct Ledger {
    pub journal: Journal,
    pub unsynced: Vec<JournalEntry>,
    /// Why an entry was not entered. Later entries may depend on it, and are only journalled.
    refused: Option<(io::ErrorKind, String)>,
}

impl Ledger {
    fn check(&self) -> io::Result<()> {
        self.refused.as_ref().map_or(Ok(()), |(kind, why)| Err(io::Error::new(*kind, why.clone())))
    }
}

pub(super) struct Joint {
    /// Number of this writer within the run; 0 is the writer that created the file.
    pub epoch: u32,
    pub coordinator: Arc<dyn Coordinator>,
    /// Written chunk groups that are not synced and reported yet.
    pub waiting: Mutex<Vec<ChunkGroupEntry>>,
    /// Held from taking entries until they are reported, so that its holder knows that all earlier entries are
    /// reported.
    pub reporting: Mutex<()>,
    /// Total bytes of all extents so far.
    granted: AtomicU64,
}

impl Own {
    pub(super) fn new(allocator: Allocator, length: Length, journal: Journal, room: SpaceReservation) -> Own {
        let ledger = Mutex::new(Ledger { journal, unsynced: Vec::new(), refused: None });
        Own { allocator, length, room: Mutex::new(room), ledger, unnamed: Mutex::default() }
    }

    /// The source of space for commits.
    pub(super) fn space<'a>(&'a self, file: &'a File) -> Space<'a> {
        Space { file, length: &self.length, allocator: &self.allocator }
    }

    /// Appends entries for written chunks to the journal.
    ///
    /// # Errors
    /// If there is no space to publish them. They then must not be acknowledged, and neither they nor later entries
    /// become part of a commit, which would prevent the publication of frames acknowledged earlier. Recovery restores
    /// them when there is space.
    pub(super) fn enter(&self, file: &File, entries: Vec<JournalEntry>) -> io::Result<()> {
        let mut ledger = self.ledger.lock();
        let room = ledger.check().and_then(|()| self.room.lock().expect(self.space(file), &entries));
        let journalled = ledger.journal.append(&entries);
        if journalled.is_ok() {
            entries.iter().for_each(|entry| self.allocator.fill(entry.end()));
        }
        let entered = journalled.and(room);
        match &entered {
            Ok(()) => ledger.unsynced.extend(entries),
            Err(error) => {
                ledger.refused.get_or_insert((error.kind(), error.to_string()));
            }
        }
        entered
    }

    /// Whether entries are waiting to be taken.
    pub(super) fn waits(&self) -> bool {
        !self.ledger.lock().unsynced.is_empty()
    }

    /// Frees ranges below `end` that are reserved but unused, or that no entry refers to. For use after the last
    /// commit. Returns the bytes that other processes have not used.
    pub(super) fn give_back(&self, file: &File, end: u64) -> io::Result<u64> {
        let unnamed = self.unnamed.lock();
        let mut free = self.room.lock().rest().into_iter().chain(unnamed.below(end));
        free.try_for_each(|range| punch(file, range.start..range.end.min(end)).map(|_| ()))?;
        Ok(unnamed.below(end).map(|range| range.end - range.start).sum())
    }

    /// Records in the journal that others may write below `end`, for a later recovery.
    pub(super) fn note_grant(&self, end: u64) -> io::Result<()> {
        let journal = {
            let mut ledger = self.ledger.lock();
            ledger.journal.append(&[JournalEntry::Granted { end }])?;
            ledger.journal.handle()?
        };
        // A process on another host survives a power loss of this host, so the grant must be durable.
        journal.sync_data()
    }

    /// Takes the entries that are not synced yet. Also returns the number of entries in the journal including them, and
    /// the journal to sync.
    pub(super) fn take(&self) -> io::Result<(Vec<JournalEntry>, u64, File)> {
        let mut ledger = self.ledger.lock();
        self.room.lock().apply();
        Ok((std::mem::take(&mut ledger.unsynced), ledger.journal.entries(), ledger.journal.handle()?))
    }
}

impl Joint {
    pub(super) fn new(epoch: u32, coordinator: Arc<dyn Coordinator>) -> Joint {
        Joint { epoch, coordinator, waiting: Mutex::default(), reporting: Mutex::default(), granted: AtomicU64::new(0) }
    }

    /// Requests an extent for at least `bytes`. The end of the previous extent stays unused, so the first extents are
    /// small.
    fn extent(&self, settings: &Settings, bytes: u64) -> io::Result<Range<u64>> {
        const PART: u64 = 16;
        const STRIPES_MIN: u64 = 2;
        let least = (STRIPES_MIN * settings.stripe_bytes).min(settings.extent_bytes);
        let wanted = (self.granted.load(Relaxed) / PART).clamp(least, settings.extent_bytes).max(bytes);
        let extent = self.coordinator.extent(wanted)?;
        self.granted.fetch_add(extent.end - extent.start, Relaxed);
        Ok(extent)
    }
}

impl ExtentSource {
    pub(super) fn epoch(&self) -> u32 {
        match self {
            ExtentSource::Own(_) => 0,
            ExtentSource::Joint(joint) => joint.epoch,
        }
    }

    /// Allocates an address for `bytes` that is never reused. `extent` is the unused part of a joined process's extent.
    /// The process that began the run allocates contiguously.
    pub(super) fn place(
        &self,
        file: &File,
        settings: &Settings,
        extent: &mut Range<u64>,
        bytes: u64,
    ) -> io::Result<u64> {
        match self {
            ExtentSource::Own(own) => {
                let address = own.allocator.bytes(bytes);
                own.length.ensure(file, address + bytes)?;
                Ok(address)
            }
            ExtentSource::Joint(joint) => {
                if extent.end - extent.start < bytes {
                    *extent = joint.extent(settings, bytes)?;
                }
                let address = extent.start;
                extent.start += bytes;
                Ok(address)
            }
        }
    }
}
