//! One server a volume, by flock. The kernel lets go of it when the process ends, however it ends.
//!
//! The key is locked beside the lock's own file: that one is empty and never written again, just what is removed where a scratch
//! directory is cleared of what is old; and who then locked another by its name would be a second server. A volume without its
//! key is served by nobody.

use super::rights::Readers;
use super::{ServerRecord, VolumeDir};
use crate::clock::{Clock, RealClock};
use crate::disk::{self, Location};
use crate::flock::Locked;
use crate::printable::printable;
use crate::store_path::StorePath;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// For a holder that was killed to end, or one that only reads to be done: as long as it takes the kernel to take a large
/// process apart, unless the store beneath hangs.
const LET_GO_MAX: Duration = Duration::from_secs(2);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// The right to serve a volume, until dropped.
#[derive(Debug)]
pub struct VolumeLock {
    _file: Locked,
    _key: Option<Locked>,
}

/// The right to read a volume that nobody serves, until dropped; any number of processes may have it at a time.
#[derive(Debug)]
pub struct ReadLock {
    _file: Locked,
    _key: Option<Locked>,
}

impl VolumeDir {
    /// Takes the lock, or says who has it. Waits for 2 s at most, and only for who is about to let go of it: a process that
    /// was killed, and those that read.
    pub fn lock(&self) -> Result<VolumeLock, LockError> {
        let path = self.lock_file();
        let file = match disk::open_lock_file(&path).and_then(|file| self.check_lock(&path, file)) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path: path.into(), source }),
        };
        let file = self.try_flock(file, path, FlockOperation::NonBlockingLockExclusive)?;
        let key = self.key_file();
        // To write, which file systems of clusters ask of who keeps others away.
        let writable = key.open_file(&disk::File::options().read(true).write(true));
        let opened = writable.or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => key.open(),
            _ => Err(error),
        });
        let locked = self.try_flock_key(opened, FlockOperation::NonBlockingLockExclusive)?;
        // Where the key is gone, too, nothing tells whether somebody serves but the record of one that is not known to be gone.
        if locked.is_none()
            && let Some(holder) = self.read_holder().filter(ServerRecord::is_of_this_boot)
        {
            return Err(LockError::Held { directory: self.root().to_owned(), holder: describe(Some(holder)) });
        }
        Ok(VolumeLock { _file: file, _key: locked })
    }

    /// Keeps servers away, or says who serves. Waits as [`VolumeDir::lock`] does, and writes nothing where the lock's file is
    /// there, so that it can be had in a store that takes no writes.
    pub fn lock_for_reading(&self) -> Result<ReadLock, LockError> {
        let path = self.lock_file();
        let opened = match path.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk::open_lock_file(&path),
            opened => opened,
        };
        let file = match opened.and_then(|file| self.check_lock(&path, file)) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path: path.into(), source }),
        };
        let file = self.try_flock(file, path, FlockOperation::NonBlockingLockShared)?;
        let readable = self.key_file().open();
        Ok(ReadLock { _file: file, _key: self.try_flock_key(readable, FlockOperation::NonBlockingLockShared)? })
    }

    /// Another's file may be locked by him for as long as he likes.
    fn check_lock(&self, path: &StorePath, file: File) -> io::Result<File> {
        self.check_own(path, &file.metadata()?, Readers::Anybody)?;
        Ok(file)
    }

    /// `None` where there is none, or something else in its place: whoever needs it says so.
    fn try_flock_key(&self, opened: io::Result<File>, operation: FlockOperation) -> Result<Option<Locked>, LockError> {
        let path = self.key_file();
        match opened {
            Ok(file) => self.try_flock(file, path, operation).map(Some),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => Ok(None),
            Err(source) => Err(LockError::Io { path: path.into(), source }),
        }
    }

    /// The record of who has the lock, which somebody has, if that has said it: a record whose process is gone was left by an
    /// earlier one.
    pub fn read_holder(&self) -> Option<ServerRecord> {
        // What cannot be read names nobody.
        self.read_server_record().ok().flatten().filter(|record| !record.is_of_the_dead())
    }

    fn try_flock(&self, file: File, path: StorePath, operation: FlockOperation) -> Result<Locked, LockError> {
        let clock = RealClock::new();
        let end = clock.monotonic().after(LET_GO_MAX);
        let again = || {
            let again = clock.monotonic() < end && (self.is_holder_ending() || is_shared(&path));
            if again {
                std::thread::sleep(LOOKED_AT_EVERY);
            }
            again
        };
        match Locked::take_while(file, operation, again) {
            Ok(locked) => Ok(locked),
            Err(rustix::io::Errno::WOULDBLOCK) if is_shared(&path) => {
                Err(LockError::Read { directory: self.root().to_owned(), path: path.into() })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(LockError::Held { directory: self.root().to_owned(), holder: describe(self.read_holder()) })
            }
            Err(error) => Err(LockError::Io { path: path.into(), source: error.into() }),
        }
    }

    /// Its locks are its own until it has ended.
    fn is_holder_ending(&self) -> bool {
        self.read_server_record().ok().flatten().is_some_and(|record| record.is_of_one_that_ends())
    }
}

/// Whether whoever has the lock shares it, or nobody has it any more.
fn is_shared(lock_file: &StorePath) -> bool {
    lock_file.open().is_ok_and(|file| Locked::take(file, FlockOperation::NonBlockingLockShared).is_ok())
}

fn describe(record: Option<ServerRecord>) -> String {
    match record {
        Some(record) => {
            let kind = if record.embedded { "a mount" } else { "a server" };
            format!("{kind}, {} on host {}", record.process(), printable(&record.host))
        }
        None => "a process that has not said yet who it is, as one that is just starting, or that has locked its files"
            .to_owned(),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "the volume {} is in use by {holder}: talk to that one, or stop it first", directory.display()
    )]
    Held { directory: PathBuf, holder: String },
    #[error(
        "the volume {} is being read, as by `varve fsck` or `varve dump`: {} is locked", directory.display(), path.display()
    )]
    Read { directory: PathBuf, path: PathBuf },
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl LockError {
    /// Somebody serves the volume, or changes it.
    pub fn is_held(&self) -> bool {
        matches!(self, LockError::Held { .. })
    }
}
