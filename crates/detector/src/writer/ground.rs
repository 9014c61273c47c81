//! Where extents come from and where it is told what was written: the own allocator and journal, or a coordinator.

use super::Settings;
use super::join::Coordinator;
use crate::allocate::Allocator;
use crate::journal::{Entry, Journal, SlabEntry};
use crate::length::Length;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub(super) enum Ground {
    /// This process commits the file.
    Own(Own),
    /// Another one does, and hands out extents that the file is long enough for.
    Joint(Joint),
}

pub(super) struct Own {
    pub allocator: Allocator,
    pub length: Length,
    pub ledger: Mutex<Ledger>,
}

/// The journal, and what has been appended to it since the last sync.
pub(super) struct Ledger {
    pub journal: Journal,
    pub unsynced: Vec<Entry>,
}

pub(super) struct Joint {
    /// Which writer of the run this is: 0 made the file.
    pub epoch: u32,
    pub coordinator: Arc<dyn Coordinator>,
    /// Written, and not synced and reported yet.
    pub waiting: Mutex<Vec<SlabEntry>>,
}

impl Own {
    pub(super) fn new(allocator: Allocator, length: Length, journal: Journal) -> Own {
        Own { allocator, length, ledger: Mutex::new(Ledger { journal, unsynced: Vec::new() }) }
    }

    /// Appends to the journal what has been written to the file.
    pub(super) fn enter(&self, entries: Vec<Entry>) -> io::Result<()> {
        let mut ledger = self.ledger.lock();
        ledger.journal.append(&entries)?;
        for entry in &entries {
            self.allocator.fill(entry.end());
        }
        ledger.unsynced.extend(entries);
        Ok(())
    }
}

impl Joint {
    pub(super) fn new(epoch: u32, coordinator: Arc<dyn Coordinator>) -> Joint {
        Joint { epoch, coordinator, waiting: Mutex::default() }
    }
}

impl Ground {
    pub(super) fn epoch(&self) -> u32 {
        match self {
            Ground::Own(_) => 0,
            Ground::Joint(joint) => joint.epoch,
        }
    }

    pub(super) fn extent(&self, file: &File, settings: &Settings, bytes: u64) -> io::Result<Range<u64>> {
        let bytes = settings.extent_bytes.max(bytes);
        match self {
            Ground::Own(own) => {
                let extent = own.allocator.extent(bytes, settings.stripe_bytes);
                own.length.ensure(file, extent.end)?;
                Ok(extent)
            }
            Ground::Joint(joint) => joint.coordinator.extent(bytes),
        }
    }
}
