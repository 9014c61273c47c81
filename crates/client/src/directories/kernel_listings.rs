//! The names that the kernel's listing cache of each directory may hold, by the versions of its partitions.
//!
//! The kernel keeps what a listing returned if the open allows it, and returns it again to later listings without a
//! request. It forgets a listing when this mount changes the directory; changes of other mounts are found here. A client
//! tells the kernel at each open whether to keep what it has.
//!
//! Invariant: while a record is not mixed, every name in the kernel's cache was read from a partition in `parts` with
//! the version that is noted there. Names may be newer than the version, which then no longer is the server's.
//! - A record begins empty at an open that makes the kernel drop its pages, and only if no handle is open that returned
//!   names: the kernel could still be about to cache its last reply. A handle that returned none does not count, so a
//!   directory that a program keeps open for other reasons is cached all the same.
//! - Each batch for a handle that fills the cache is noted before the kernel gets a name of it.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use varve_proto::{ListedPartition, NamesVersion};
use varve_types::InodeId;

/// Directories with a record; about 100 bytes each. When there are more, those without filling handles are forgotten.
const DIRECTORIES_MAX: usize = 16_384;
/// Partitions whose versions an open compares, by a request each. A listing of more would not gain from the cache.
const PARTITIONS_MAX: usize = 16;

/// How the kernel must treat its cached listing of a directory that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelListing {
    /// Neither use nor fill it; leave it as it is.
    Bypass,
    /// Drop it, and keep what this handle lists.
    Refill,
    /// Use it: it is what the server would list.
    Keep,
}

/// Hashes and version of each partition, by first hash.
pub(super) type Parts = BTreeMap<u64, (u64, NamesVersion)>;

#[derive(Default)]
struct Record {
    parts: Parts,
    /// The kernel may have names of several versions, or of an unknown one.
    mixed: bool,
    /// Open handles whose names may be in the cache.
    filling: usize,
}

#[derive(Default)]
pub(super) struct KernelListings(Mutex<HashMap<InodeId, Record>>);

impl KernelListings {
    /// The versions of the partitions of which the kernel may have names. A listing that ended early counts too: a later
    /// handle completes it. (A kernel whose incomplete listing is dropped caches none of that directory any more.)
    pub fn cached(&self, directory: InodeId) -> Option<Parts> {
        let records = self.0.lock();
        let record = records.get(&directory).filter(|record| !record.mixed && !record.parts.is_empty())?;
        Some(record.parts.clone())
    }

    /// Opens the directory. `current`: the versions from [`KernelListings::cached`], if the server has them still.
    pub fn open(&self, directory: InodeId, current: Option<&Parts>) -> KernelListing {
        let mut records = self.0.lock();
        if records.len() >= DIRECTORIES_MAX && !records.contains_key(&directory) {
            records.retain(|_, record| record.filling > 0);
            if records.len() >= DIRECTORIES_MAX {
                return KernelListing::Bypass;
            }
        }
        let record = records.entry(directory).or_default();
        if !record.mixed && current == Some(&record.parts) {
            KernelListing::Keep
        } else if record.filling == 0 {
            *record = Record::default();
            KernelListing::Refill
        } else {
            KernelListing::Bypass
        }
    }

    /// Called by a handle before it returns names for the first time, unless it was opened with
    /// [`KernelListing::Bypass`].
    pub fn begin(&self, directory: InodeId) {
        // The record of a directory that was open for long may be forgotten, with the versions that the kernel has.
        let forgotten = || Record { mixed: true, ..Record::default() };
        self.0.lock().entry(directory).or_insert_with(forgotten).filling += 1;
    }

    /// Notes that a handle which has begun is about to return names of `partition`. `repeatable`: the cookies of these
    /// names mean the same in every handle.
    pub fn note(&self, directory: InodeId, partition: &ListedPartition, repeatable: bool) {
        let mut records = self.0.lock();
        let Some(record) = records.get_mut(&directory) else { return };
        let Some(version) = partition.version.filter(|_| repeatable) else {
            record.mixed = true;
            return;
        };
        let room = record.parts.len() < PARTITIONS_MAX || record.parts.contains_key(&partition.first);
        let noted = (partition.last, version);
        record.mixed |= !room || *record.parts.entry(partition.first).or_insert(noted) != noted;
    }

    /// A handle that has begun is closed.
    pub fn end(&self, directory: InodeId) {
        if let Some(record) = self.0.lock().get_mut(&directory) {
            record.filling = record.filling.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
