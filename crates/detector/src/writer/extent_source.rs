//! Where extents come from and where it is told what was written: the own allocator and journal, or a coordinator.

use super::Settings;
use super::join::Coordinator;
use crate::allocate::{Allocator, Unnamed, punch};
use crate::journal::{ChunkGroupEntry, Journal, JournalEntry};
use crate::length::Length;
use crate::space_reservation::{Space, SpaceReservation};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) enum ExtentSource {
    /// This process commits the file.
    Own(Box<Own>),
    /// Another one does, and hands out extents that the file is long enough for.
    Joint(Joint),
}

pub(super) struct Own {
    pub allocator: Allocator,
    pub length: Length,
    /// For commits. Locked after the ledger where both are.
    pub room: Mutex<SpaceReservation>,
    pub ledger: Mutex<Ledger>,
    /// Of the extents of processes that joined.
    pub unnamed: Mutex<Unnamed>,
}

/// The journal, and what has been appended to it since the last sync.
pub(super) struct Ledger {
    pub journal: Journal,
    pub unsynced: Vec<JournalEntry>,
    /// Why something was not entered. What comes after it may rest on it, and is only journalled.
    refused: Option<(io::ErrorKind, String)>,
}

impl Ledger {
    fn check(&self) -> io::Result<()> {
        self.refused.as_ref().map_or(Ok(()), |(kind, why)| Err(io::Error::new(*kind, why.clone())))
    }
}

pub(super) struct Joint {
    /// Which writer of the run this is: 0 made the file.
    pub epoch: u32,
    pub coordinator: Arc<dyn Coordinator>,
    /// Written, and not synced and reported yet.
    pub waiting: Mutex<Vec<ChunkGroupEntry>>,
    /// Held from taking what is to be reported until it is: whoever has it then knows that all before is reported.
    pub reporting: Mutex<()>,
    /// Bytes of all extents so far.
    granted: AtomicU64,
}

impl Own {
    pub(super) fn new(allocator: Allocator, length: Length, journal: Journal, room: SpaceReservation) -> Own {
        let ledger = Mutex::new(Ledger { journal, unsynced: Vec::new(), refused: None });
        Own { allocator, length, room: Mutex::new(room), ledger, unnamed: Mutex::default() }
    }

    /// Where commits find room.
    pub(super) fn space<'a>(&'a self, file: &'a File) -> Space<'a> {
        Space { file, length: &self.length, allocator: &self.allocator }
    }

    /// Appends to the journal what has been written to the file.
    ///
    /// # Errors
    /// If there is no room to publish it, too: it must not be acknowledged then, and no commit brings it, nor what comes after
    /// it, which would keep what was acknowledged before from being published; recovery brings it back when there is room.
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

    /// Something was entered that has not been taken.
    pub(super) fn waits(&self) -> bool {
        !self.ledger.lock().unsynced.is_empty()
    }

    /// Gives back what below `end` nobody ever wrote to, or told of: nothing follows the last commit.
    pub(super) fn give_back(&self, file: &File, end: u64) -> io::Result<()> {
        let unnamed = self.unnamed.lock();
        let mut free = self.room.lock().rest().into_iter().chain(unnamed.below(end));
        free.try_for_each(|range| punch(file, range.start..range.end.min(end)).map(|_| ()))
    }

    /// Notes for who takes the run up that others may write below `end`.
    pub(super) fn note_grant(&self, end: u64) -> io::Result<()> {
        let journal = {
            let mut ledger = self.ledger.lock();
            ledger.journal.append(&[JournalEntry::Granted { end }])?;
            ledger.journal.handle()?
        };
        // Another host's process outlives a loss of power here.
        journal.sync_data()
    }

    /// What has been entered and not synced yet: the entries, how many the journal has with them, and the journal to sync.
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

    /// Room for `bytes` and what follows: as the end of the last extent stays unused, the first ones are small.
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

    /// The address of `bytes` that nothing else lies at, now or ever. `extent` is what is left of the extent of a process
    /// that joined; who began the run puts one thing after the other.
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
