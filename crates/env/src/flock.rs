//! Locks that belong to an open file (flock), held for as long as a value lives.
//!
//! Closing the file does not always let go of its lock: a process that another thread is just starting has the file open
//! too, until it executes its program. So a lock is let go of by name.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::ops::Deref;

/// A file with a lock on it. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct Locked {
    file: File,
}

impl Locked {
    /// # Errors
    /// Of flock(2): `WOULDBLOCK` where somebody else has the lock and `operation` does not wait.
    pub fn take(file: File, operation: FlockOperation) -> rustix::io::Result<Locked> {
        Locked::take_while(file, operation, || false)
    }

    /// [`Locked::take`], again and again where somebody else has the lock, for as long as `again` says so, and waits before
    /// it does.
    ///
    /// # Errors
    /// As of [`Locked::take`], which is this where `again` never says so.
    pub fn take_while(file: File, operation: FlockOperation, again: impl Fn() -> bool) -> rustix::io::Result<Locked> {
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(Locked { file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if again() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = flock(&self.file, FlockOperation::Unlock) {
            tracing::debug!(%error, "a lock is let go of by closing its file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: FlockOperation = FlockOperation::NonBlockingLockExclusive;

    #[test]
    fn lock_is_released_on_drop_despite_other_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::create(directory.path().join("lock")).unwrap();
        let first = Locked::take(open(), NOW).unwrap();
        assert_eq!(Locked::take(open(), NOW).unwrap_err(), rustix::io::Errno::WOULDBLOCK);
        // As a process has it that was started meanwhile.
        let inherited = first.try_clone().unwrap();
        drop(first);
        Locked::take(open(), NOW).unwrap();
        drop(inherited);
    }
}
