//! Locks on open files (flock), held for the lifetime of a value.
//!
//! Closing the file does not always release its lock: a process that another thread is starting also has the file open
//! until it calls exec. So drop releases the lock explicitly.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;

/// A file with a lock on it. The kernel releases the lock when the process ends, for whatever reason.
#[derive(Debug)]
pub struct Locked {
    file: File,
}

impl Locked {
    /// # Errors
    /// Of flock(2): `WOULDBLOCK` if another process has the lock and `operation` does not wait.
    pub fn take(file: File, operation: FlockOperation) -> rustix::io::Result<Locked> {
        Locked::take_while(file, operation, || false)
    }

    /// [`Locked::take`], retried for as long as another process has the lock and `again` returns true. `again` waits
    /// before it returns.
    ///
    /// # Errors
    /// As [`Locked::take`], including `WOULDBLOCK` once `again` returns false.
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

    /// Lets others share the lock from now on.
    ///
    /// # Errors
    /// Of flock(2). The kernel releases the lock before it takes the shared one, so another process may be faster.
    pub fn share(&self) -> rustix::io::Result<()> {
        flock(&self.file, FlockOperation::NonBlockingLockShared)
    }
}

/// `fcntl(F_SETSIG)` of <asm-generic/fcntl.h>, which `libc` lacks.
const F_SETSIG: i32 = 10;

/// Whether anybody has the file open for writing or mapped for writing, including this process. `file` is open for
/// reading only. `None`: the file system has no leases, and so does not know.
///
/// The kernel grants a read lease only on a file without writers. The lease is given back at once. Somebody who opens the
/// file for writing in between waits for that, and makes the kernel send a signal to the holder.
pub fn has_writer(file: &File) -> Option<bool> {
    let set = |command, value: i32| {
        // SAFETY: the descriptor is open while `file` lives, and these commands touch no memory of this process.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // By default this signal does nothing, while SIGIO ends the process.
    set(F_SETSIG, libc::SIGURG).ok()?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            set(libc::F_SETLEASE, libc::F_UNLCK).ok()?;
            Some(false)
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Some(true),
        Err(_) => None,
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
        // Stands for the descriptor of a child process that was started in the meantime.
        let inherited = first.try_clone().unwrap();
        drop(first);
        Locked::take(open(), NOW).unwrap();
        drop(inherited);
    }

    #[test]
    fn writer_is_seen_while_it_has_the_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert_eq!(has_writer(&reader), Some(true));
        drop(writer);
        assert_eq!(has_writer(&reader), Some(false));
        assert_eq!(has_writer(&reader), Some(false), "the lease was given back");
    }
}
