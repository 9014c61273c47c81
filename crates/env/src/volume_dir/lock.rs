//! One server per volume, or several that have joined, by flock. The kernel releases the lock when the process ends, for whatever reason.
//!
//! The server locks the key as well as the lock file. The lock file is empty and never written again, so a cleanup of
//! old files in a scratch directory may remove it, and a process that then locked a new file of that name would be a
//! second server. A volume without its key cannot be served.
//!
//! Servers that have joined share both locks, as readers do. Their records tell them from readers: a process that only
//! reads refuses a volume with the record of a living server, and the first server that joins holds the locks
//! exclusively until its record is published.

use super::rights::Readers;
use super::{ServerRecord, VolumeDir};
use crate::clock::{Clock, RealClock};
use crate::disk::{self, Location};
use crate::flock::Locked;
use crate::printable::printable;
use crate::store_path::StorePath;
use rustix::fs::FlockOperation;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How long to wait for a holder that was killed or has removed its record, or for one that only reads: enough for the
/// kernel to tear down a large process, unless the store beneath hangs.
const LET_GO_MAX: Duration = Duration::from_secs(2);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// How long to wait for a mount that was unmounted and still writes: umount(8) returns before that. A close takes about a
/// second, and longer on a slow store.
const UNMOUNTED_MAX: Duration = Duration::from_secs(20);
/// How long to wait for another server that joins: it publishes its record once it is a member.
const JOINING_MAX: Duration = Duration::from_secs(160);
/// The user is told the reason of a longer wait.
const WAIT_UNTOLD_MAX: Duration = Duration::from_secs(1);

/// The right to serve a volume, until it is dropped.
#[derive(Debug)]
pub struct VolumeLock {
    file: Locked,
    key: Option<Locked>,
}

impl VolumeLock {
    /// Shares the right with other servers that join. Idempotent.
    ///
    /// # Errors
    /// Of flock(2): another process may have taken the lock at this moment.
    pub fn share(&self) -> io::Result<()> {
        [Some(&self.file), self.key.as_ref()].into_iter().flatten().try_for_each(|lock| Ok(lock.share()?))
    }
}

/// The right to read a volume that no server uses, until it is dropped. Any number of processes may have it at a time.
#[derive(Debug)]
pub struct ReadLock {
    _file: Locked,
    _key: Option<Locked>,
}

impl VolumeDir {
    /// Takes the lock, or fails with the name of its holder. Waits only for a holder that is about to release it: at most
    /// 2 s for a process without a record and for processes that only read, and 20 s for a mount that was unmounted.
    pub fn lock(&self) -> Result<VolumeLock, LockError> {
        self.lock_with(FlockOperation::NonBlockingLockExclusive)
    }

    fn lock_with(&self, operation: FlockOperation) -> Result<VolumeLock, LockError> {
        let path = self.lock_file();
        let file = match disk::open_lock_file(&path).and_then(|file| self.check_lock(&path, file)) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path: path.into(), source }),
        };
        let file = self.try_flock(file, path, operation)?;
        let key = self.key_file();
        // Opened for writing, which cluster file systems require for an exclusive lock.
        let writable = key.open_file(&disk::File::options().read(true).write(true));
        let opened = writable.or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => key.open(),
            _ => Err(error),
        });
        let locked = self.try_flock_key(opened, operation)?;
        // If the key is missing too, the only evidence of a running server is the record, unless its process is known
        // to have ended.
        if locked.is_none()
            && let Some(holder) = self.read_holder().filter(ServerRecord::is_of_this_boot)
        {
            return Err(LockError::Held { directory: self.root().to_owned(), holder: describe(Some(holder)) });
        }
        Ok(VolumeLock { file, key: locked })
    }

    /// Takes the lock for a server that joins others. It is exclusive if no other server has joined; then
    /// [`VolumeLock::share`] it once the server's record is published. Waits as [`VolumeDir::lock`] does, and longer for
    /// another server that joins at the same time.
    pub fn lock_to_join(&self) -> Result<VolumeLock, LockError> {
        let clock = RealClock::new();
        let began = clock.monotonic();
        loop {
            let taken = match self.joined_holders().is_empty() {
                true => self.lock(),
                false => self.lock_with(FlockOperation::NonBlockingLockShared),
            };
            match taken {
                Err(LockError::Held { .. }) if clock.monotonic().since(began) < JOINING_MAX && self.is_joining() => {}
                taken => return taken,
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
    }

    /// Whether the lock is held by servers that have joined, or by a process without a record, which may be joining.
    fn is_joining(&self) -> bool {
        !self.joined_holders().is_empty() || self.read_holder().is_none()
    }

    /// Keeps servers off, or fails with the name of the server. Waits as [`VolumeDir::lock`] does. Writes nothing if
    /// the lock file exists, so it also works in a read-only store.
    pub fn lock_for_reading(&self) -> Result<ReadLock, LockError> {
        let lock = self.lock_under_claim()?;
        match self.joined_holders().into_iter().next() {
            Some(joined) => Err(LockError::Held { directory: self.root().to_owned(), holder: describe(Some(joined)) }),
            None => Ok(lock),
        }
    }

    /// [`VolumeDir::lock_for_reading`] by the holder of a claim in the registry: the records of servers that have joined on
    /// other hosts are those of dead ones.
    pub fn lock_under_claim(&self) -> Result<ReadLock, LockError> {
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
        let key = self.try_flock_key(readable, FlockOperation::NonBlockingLockShared)?;
        // Taken for dead, as it was stopped: it may go on.
        match self.joined_holders().into_iter().find(ServerRecord::is_of_our_processes) {
            Some(joined) => Err(LockError::Held { directory: self.root().to_owned(), holder: describe(Some(joined)) }),
            None => Ok(ReadLock { _file: file, _key: key }),
        }
    }

    /// Refuses a lock file of another user, who could lock it indefinitely.
    fn check_lock(&self, path: &StorePath, file: File) -> io::Result<File> {
        self.check_own(path, &file.metadata()?, Readers::Anybody)?;
        Ok(file)
    }

    /// `None` if the file is missing or something else is in its place: callers that need it report that.
    fn try_flock_key(&self, opened: io::Result<File>, operation: FlockOperation) -> Result<Option<Locked>, LockError> {
        let path = self.key_file();
        match opened {
            Ok(file) => self.try_flock(file, path, operation).map(Some),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => Ok(None),
            Err(source) => Err(LockError::Io { path: path.into(), source }),
        }
    }

    /// The record of the lock's present holder, if it has written one: a record whose process has ended is an earlier
    /// holder's.
    pub fn read_holder(&self) -> Option<ServerRecord> {
        // An unreadable record names no holder.
        let alone = self.read_server_record().ok().flatten().filter(|record| !record.is_of_the_dead());
        alone.or_else(|| self.joined_holders().into_iter().next())
    }

    fn try_flock(&self, file: File, path: StorePath, operation: FlockOperation) -> Result<Locked, LockError> {
        let clock = RealClock::new();
        let began = clock.monotonic();
        let told = Cell::new(false);
        // The finding at the last refusal: the holder may release the lock right after it.
        let shared = Cell::new(false);
        // When the holder was last seen closing the volume. The shorter wait counts from then.
        let closed = Cell::new(began);
        let again = || {
            let now = clock.monotonic();
            let waited = now.since(began);
            shared.set(is_shared(&path) && self.joined_holders().is_empty());
            let closes = waited < UNMOUNTED_MAX && self.is_holder_unmounted();
            if closes {
                closed.set(now);
            }
            let again = closes || now.since(closed.get()) < LET_GO_MAX && (shared.get() || self.is_holder_ending());
            if again {
                if waited >= WAIT_UNTOLD_MAX && !told.replace(true) {
                    let (volume, holder) = (self.root().display(), describe(self.read_holder()));
                    tracing::warn!("waiting until the volume {volume} is released by {holder}");
                }
                std::thread::sleep(LOOKED_AT_EVERY);
            }
            again
        };
        match Locked::take_while(file, operation, again) {
            Ok(locked) => Ok(locked),
            Err(rustix::io::Errno::WOULDBLOCK) if shared.get() => {
                Err(LockError::Read { directory: self.root().to_owned(), path: path.into() })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(LockError::Held { directory: self.root().to_owned(), holder: describe(self.read_holder()) })
            }
            Err(error) => Err(LockError::Io { path: path.into(), source: error.into() }),
        }
    }

    /// Whether no running process is recorded as the holder, or the recorded one is exiting. A server removes its record
    /// before it releases the lock, and a process keeps its locks until it has ended.
    fn is_holder_ending(&self) -> bool {
        self.read_holder().is_none_or(|record| record.is_of_one_that_ends())
    }

    /// Whether the holder is another process's mount that is mounted nowhere: it closes the volume, or is about to mount
    /// it.
    fn is_holder_unmounted(&self) -> bool {
        self.read_holder().is_some_and(|record| record.is_of_an_unmounted_mount())
    }
}

/// Whether the holders of the lock share it, or it is free.
fn is_shared(lock_file: &StorePath) -> bool {
    lock_file.open().is_ok_and(|file| Locked::take(file, FlockOperation::NonBlockingLockShared).is_ok())
}

fn describe(record: Option<ServerRecord>) -> String {
    match record {
        Some(record) => {
            let kind = if record.embedded { "a mount" } else { "a server" };
            format!("{kind}, {} on host {}", record.process(), printable(&record.host))
        }
        None => "an unidentified process, which is just starting or has locked the volume's files".to_owned(),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "the volume {} is in use by {holder}: connect to that one, or stop it first", directory.display()
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
    /// Whether another process serves or changes the volume.
    pub fn is_held(&self) -> bool {
        matches!(self, LockError::Held { .. })
    }
}
