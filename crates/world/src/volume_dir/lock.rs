//! One server a volume, by flock. The kernel lets go of it when the process ends, however it ends.

use super::{ServerRecord, VolumeDir};
use crate::disk;
use crate::flock::Locked;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// The right to serve a volume, until dropped.
#[derive(Debug)]
pub struct VolumeLock {
    _file: Locked,
}

/// The right to read a volume that nobody serves, until dropped; any number of processes may have it at a time.
#[derive(Debug)]
pub struct ReadLock {
    _file: Locked,
}

impl VolumeDir {
    /// Takes the lock, or says who has it. Does not wait.
    pub fn lock(&self) -> Result<VolumeLock, LockError> {
        let path = self.lock_file();
        let file = match disk::open_lock_file(&path) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path, source }),
        };
        Ok(VolumeLock { _file: self.try_flock(file, path, FlockOperation::NonBlockingLockExclusive)? })
    }

    /// Keeps servers away, or says who serves. Does not wait, and writes nothing where the lock's file is there, so that it
    /// can be had in a store that takes no writes.
    pub fn lock_for_reading(&self) -> Result<ReadLock, LockError> {
        let path = self.lock_file();
        let opened = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk::open_lock_file(&path),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path, source }),
        };
        Ok(ReadLock { _file: self.try_flock(file, path, FlockOperation::NonBlockingLockShared)? })
    }

    /// The record of who has the lock, which somebody has, if that has said it: a record whose process is gone was left by an
    /// earlier one.
    pub fn read_holder(&self) -> Option<ServerRecord> {
        // What cannot be read names nobody.
        self.read_server_record().ok().flatten().filter(|record| !record.is_of_the_dead())
    }

    fn try_flock(&self, file: File, path: PathBuf, operation: FlockOperation) -> Result<Locked, LockError> {
        match Locked::take(file, operation) {
            Ok(locked) => Ok(locked),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(LockError::Held { directory: self.root().to_owned(), holder: describe(self.read_holder()) })
            }
            Err(error) => Err(LockError::Io { path, source: error.into() }),
        }
    }
}

fn describe(record: Option<ServerRecord>) -> String {
    match record {
        Some(record) => {
            let kind = if record.embedded { "a mount" } else { "a server" };
            format!("{kind}, process {} on host {}", record.pid, record.host)
        }
        None => "a process that has not said yet who it is, as one that is just starting".to_owned(),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "the volume {} is in use by {holder}: talk to that one, or stop it first", directory.display()
    )]
    Held { directory: PathBuf, holder: String },
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl LockError {
    /// Somebody has the volume.
    pub fn is_held(&self) -> bool {
        matches!(self, LockError::Held { .. })
    }
}
