//! The version of an object: its time of modification and its size.
//!
//! The store sets the time of modification itself, in nanoseconds of the wall clock, before it publishes an object. A
//! replacement sets it later than that of the object which it replaces, and holds the shard's lock from then on to its
//! rename. So no two versions of an object that replace one another have the same time, not even on a store that keeps
//! whole seconds, or if the clock goes back. Inode numbers are no part of it: a file system reuses them, and some
//! generate them at each lookup. Nor is the time of change (ctime): publishing a file changes it.
//!
//! The time is the same on every host, because it was set and is not when a client or a server of a network file system
//! saw the last write.

use crate::disk;
use crate::store_path::StorePath;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// Steps from the time of the replaced object to that of its replacement: the smallest one that the store keeps counts.
/// A store keeps at least whole seconds; those of FAT are two long.
const STEPS: [Duration; 4] =
    [Duration::from_nanos(1), Duration::from_micros(1), Duration::from_secs(1), Duration::from_secs(2)];

pub(super) fn e_tag(metadata: &Metadata) -> String {
    format!("\"{:x}-{:x}\"", modified_ns(metadata), metadata.size())
}

fn modified_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

/// Sets the version of a file that was written, and fsyncs it.
pub(super) fn complete(file: &disk::File) -> io::Result<()> {
    file.set_modified(SystemTime::now())?;
    file.sync_all()
}

/// Makes the version of `file` later than that of the object `replaced`, if that exists. Only under its shard's lock.
pub(super) fn set_later(file: &disk::File, replaced: &StorePath) -> io::Result<()> {
    let replaced = match replaced.open().and_then(|file| file.metadata()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        replaced => replaced?,
    };
    let is_later = || Ok::<_, io::Error>(modified_ns(&file.metadata()?) > modified_ns(&replaced));
    if is_later()? {
        return Ok(());
    }
    let before = replaced.modified()?;
    for step in STEPS {
        file.set_modified(before + step)?;
        if is_later()? {
            return file.sync_all();
        }
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "the store does not keep times of modification"))
}
