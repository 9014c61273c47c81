//! The file lock of the HDF5 library. Programs that open a file for reading take a shared flock. Programs that open it
//! for writing take an exclusive flock, and are refused while others have the file open.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Deref;
use varve_env::flock::Locked;

/// A file that this process writes and that others may open for reading but not for writing. When the HDF5 library
/// closes a file that it has open for writing, it truncates the file to the length that it found, and later writes
/// would be lost.
#[derive(Debug)]
pub enum WrittenFile {
    Locked(Locked),
    /// The store does not support locks.
    Unlocked(File),
}

impl WrittenFile {
    /// # Errors
    /// If another program has the file open for writing.
    pub fn new(file: File) -> io::Result<WrittenFile> {
        match Locked::take(file.try_clone()?, FlockOperation::NonBlockingLockShared) {
            Ok(locked) => Ok(WrittenFile::Locked(locked)),
            Err(Errno::WOULDBLOCK) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another program has the file open for writing, and its close would truncate the file: close it there, \
                and try again",
            )),
            Err(error) => {
                tracing::debug!("cannot lock the file against other writers: {error}");
                Ok(WrittenFile::Unlocked(file))
            }
        }
    }
}

impl Deref for WrittenFile {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            WrittenFile::Locked(locked) => locked,
            WrittenFile::Unlocked(file) => file,
        }
    }
}
