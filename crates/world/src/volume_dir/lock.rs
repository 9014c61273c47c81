//! One server a volume, by flock. The kernel lets go of it when the process ends, however it ends.

use super::{ServerRecord, VolumeDir};
use crate::disk;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::PathBuf;

/// The right to serve a volume, until dropped.
#[derive(Debug)]
pub struct VolumeLock {
    _file: File,
}

impl VolumeDir {
    /// Takes the lock, or says who has it. Does not wait.
    pub fn lock(&self) -> Result<VolumeLock, LockError> {
        let path = self.lock_file();
        let file = match disk::open_lock_file(&path) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path, source }),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(VolumeLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Held {
                directory: self.root().to_owned(),
                holder: describe(self.read_server_record().ok().flatten()),
            }),
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
        None => "a process that has not said yet who it is".to_owned(),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "the volume {} is in use by {holder}: talk to that one, or stop it first", directory.display()
    )]
    Held { directory: PathBuf, holder: String },
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}
