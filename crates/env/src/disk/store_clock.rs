//! The clock of a store: that of the file system's server, which stamps new files.

use super::{File, Location, remove_file, temporary};
use crate::clock::{self, Clock};
use std::io;

/// Largest difference between the clocks of the servers of a volume and of its store: a fifth of the age at which
/// tables that were replaced are removed.
pub const CLOCK_SKEW_S_MAX: u64 = 60;

/// Seconds by which the wall clock of this host is ahead of that of the store of `directory`; negative if it is behind.
pub fn store_clock_ahead_s<L: Location + ?Sized>(directory: &L, clock: &dyn Clock) -> io::Result<i64> {
    let probe = temporary(directory);
    let made = File::options().write(true).create_new().open(&probe).and_then(|file| file.metadata());
    let own = clock.now();
    let removed = remove_file(&probe);
    let stamped = made?.modified()?;
    removed?;
    Ok(clock::seconds_ahead(own, clock::timestamp(stamped)))
}
