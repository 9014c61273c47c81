//! The lock by which programs of the HDF5 library keep out of each other's way: who opens a file for reading takes a shared
//! flock of it, who opens it for writing an exclusive one, and is refused while others have it open.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Deref;
use varve_env::flock::Locked;

/// A file that is being written here and that others may open for reading, but not for writing: at its close the library
/// would cut the file to the length that it found, and what was written since would be lost.
#[derive(Debug)]
pub enum WrittenFile {
    Locked(Locked),
    /// The store has no locks.
    Unlocked(File),
}

impl WrittenFile {
    /// # Errors
    /// If somebody else has it open for writing.
    pub fn new(file: File) -> io::Result<WrittenFile> {
        match Locked::take(file.try_clone()?, FlockOperation::NonBlockingLockShared) {
            Ok(locked) => Ok(WrittenFile::Locked(locked)),
            Err(Errno::WOULDBLOCK) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another program has the file open for writing, and at its close would cut off what is written \
                 meanwhile: close it there, and try again",
            )),
            Err(error) => {
                tracing::debug!("no lock keeps others from opening the file for writing: {error}");
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
