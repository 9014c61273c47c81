//! Puts and deletes. All of them block the thread.

use super::error::{failed, is_absence, not_implemented, precondition};
use super::version;
use super::{Inner, LOCK_NAME};
use crate::clock::{Clock, Instant, RealClock};
use crate::disk::{self, Exclusive};
use crate::flock::Locked;
use crate::stop_point::{self, StopPoint};
use crate::store_path::StorePath;
use object_store::path::Path as ObjectPath;
use object_store::{Extensions, PutPayload, PutResult, Result, UpdateVersion};
use rustix::fs::FlockOperation;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// How long a replacement waits for its shard's lock. Holders keep it for one rename. A process that was stopped keeps
/// it until it continues; the replacement then fails, and SlateDB tries it again with the next collection.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const LOCK_TRIED_EVERY: Duration = Duration::from_millis(5);

/// A file that is complete and fsynced, but not published yet.
pub(super) struct CompleteFile {
    pub(super) file: Arc<disk::File>,
    pub(super) path: StorePath,
}

impl Inner {
    pub(super) fn put_overwriting(&self, location: &ObjectPath, payload: &PutPayload) -> Result<PutResult> {
        let file = self.file(location)?;
        let written = self.write(&file, payload).map_err(self.refused("write", location))?;
        self.publish_over(location, &written)
    }

    pub(super) fn put_creating(&self, location: &ObjectPath, payload: &PutPayload) -> Result<PutResult> {
        let file = self.file(location)?;
        if file.symlink_metadata().is_ok() {
            return Err(self.refused("create", location)(io::ErrorKind::AlreadyExists.into()));
        }
        let written = self.write(&file, payload).map_err(self.refused("write", location))?;
        disk::publish_if_absent(self.exclusive, &written.path, &file).map_err(self.refused("create", location))?;
        self.result(location, &written)
    }

    /// Gives an object a second name, which needs no space for its content. The file is shared: an object is replaced, never
    /// changed.
    pub(super) fn copy_creating(&self, from: &ObjectPath, to: &ObjectPath) -> Result<()> {
        if self.exclusive != Exclusive::Link {
            return Err(not_implemented("copy without hard links"));
        }
        let (source, file) = (self.file(from)?, self.file(to)?);
        disk::add_name(&source, &file).map_err(|error| match is_absence(&error) {
            true => self.failed("copy", from)(error),
            false => failed("create", to)(error),
        })
    }

    pub(super) fn put_updating(
        &self,
        location: &ObjectPath,
        payload: &PutPayload,
        version: UpdateVersion,
    ) -> Result<PutResult> {
        let file = self.file(location)?;
        let Some(expected) = version.e_tag else {
            return Err(precondition(location, "an update needs the entity tag of the version it replaces".into()));
        };
        self.compare(location, &file, &expected)?;
        let written = self.write(&file, payload).map_err(self.refused("write", location))?;
        let replaced = self.replace_locked(location, &written, &file, Some(&expected));
        if replaced.is_err() {
            // The caller needs the error; a later start removes a leftover.
            let _ = disk::remove_file(&written.path);
        }
        replaced
    }

    /// Publishes `written` as `location`, replacing any object there.
    pub(super) fn publish_over(&self, location: &ObjectPath, written: &CompleteFile) -> Result<PutResult> {
        let file = self.file(location)?;
        if file.symlink_metadata().is_ok() {
            return self.replace_locked(location, written, &file, None);
        }
        disk::publish_replacing(&written.path, &file).map_err(self.refused("replace", location))?;
        self.result(location, written)
    }

    /// Replaces an object under its shard's lock, if it has the `expected` version. No other replacement comes between
    /// the comparison and the rename.
    fn replace_locked(
        &self,
        location: &ObjectPath,
        written: &CompleteFile,
        file: &StorePath,
        expected: Option<&str>,
    ) -> Result<PutResult> {
        let clock = RealClock::new();
        let deadline = clock.monotonic().after(LOCK_WAIT_MAX);
        let within = self.replacements.try_lock_for(LOCK_WAIT_MAX).ok_or_else(lock_is_held);
        let _within = within.map_err(self.refused("lock the store to replace", location))?;
        let locked = self.lock_shard(location, &clock, deadline);
        let _across = locked.map_err(self.refused("lock the shard to replace", location))?;
        if let Some(expected) = expected {
            self.compare(location, file, expected)?;
        }
        version::set_later(&written.file, file).map_err(self.refused("set the version of", location))?;
        stop_point::reach(StopPoint::UpdateCompared);
        disk::publish_replacing(&written.path, file).map_err(self.refused("replace", location))?;
        self.result(location, written)
    }

    /// Fails unless the object exists and has the version `expected`.
    fn compare(&self, location: &ObjectPath, file: &StorePath, expected: &str) -> Result<()> {
        let opened = file.open().and_then(|file| file.metadata()).map_err(|error| self.vouched(location, error));
        match opened {
            // The name was looked up in a cache: the object that it refers to has another version by now.
            Ok(found) if found.nlink() == 0 => Err(precondition(location, "the object was replaced".into())),
            Ok(found) if version::e_tag(&found) == expected => Ok(()),
            Ok(found) => {
                let what = format!("the version is {}, not {expected}", version::e_tag(&found));
                Err(precondition(location, what))
            }
            Err(error) if is_absence(&error) => Err(precondition(location, "the object does not exist".into())),
            Err(error) => Err(failed("read", location)(error)),
        }
    }

    pub(super) fn delete(&self, location: &ObjectPath) -> Result<()> {
        match disk::remove_file(&self.file(location)?).map_err(|error| self.vouched(location, error)) {
            // A second delete cannot be distinguished from a retry of the first.
            Err(error) if is_absence(&error) => Ok(()),
            other => other.map_err(failed("delete", location)),
        }
    }

    fn write(&self, file: &StorePath, payload: &PutPayload) -> io::Result<CompleteFile> {
        self.with_room(|| self.write_once(file, payload))
    }

    fn write_once(&self, file: &StorePath, payload: &PutPayload) -> io::Result<CompleteFile> {
        let (output, path) = self.create_temporary(file)?;
        let written = disk::write_parts(&output, payload.iter().map(|part| part.as_ref()));
        if let Err(error) = written.and_then(|()| version::complete(&output)) {
            let _ = disk::remove_file(&path);
            return Err(error);
        }
        Ok(CompleteFile { file: Arc::new(output), path })
    }

    /// Creates an empty file next to `file`, and its directory if missing: but only below the root. If the root was
    /// moved away, a new root would prevent it from being moved back.
    pub(super) fn create_temporary(&self, file: &StorePath) -> io::Result<(disk::File, StorePath)> {
        let directory = file.parent();
        let path = disk::temporary(&directory);
        let create = || disk::File::options().read(true).write(true).create_new().open(&path);
        let output = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                disk::create_directories_below(&self.root, &directory)?;
                create()?
            }
            other => other?,
        };
        Ok((output, path))
    }

    fn result(&self, location: &ObjectPath, written: &CompleteFile) -> Result<PutResult> {
        let metadata = written.file.metadata().map_err(failed("look at", location))?;
        Ok(PutResult { e_tag: Some(version::e_tag(&metadata)), version: None, extensions: Extensions::new() })
    }

    /// Takes the lock of the shard that the object belongs to: of the first directory in its path. Each holder opens
    /// the lock file separately, because a flock belongs to the open file.
    fn lock_shard(&self, location: &ObjectPath, clock: &RealClock, deadline: Instant) -> io::Result<Locked> {
        let below = location.parts().next().filter(|_| location.parts().count() > 1);
        let directory = below.map_or_else(|| self.root.clone(), |shard| self.root.join(shard.as_ref()));
        let file = disk::open_lock_file(&directory.join(LOCK_NAME))?;
        let again = || {
            std::thread::sleep(LOCK_TRIED_EVERY);
            clock.monotonic() < deadline
        };
        Locked::take_while(file, FlockOperation::NonBlockingLockExclusive, again).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => lock_is_held(),
            error => error.into(),
        })
    }
}

fn lock_is_held() -> io::Error {
    let what = format!(
        "the lock has been held for {} s; is a process that serves the volume stopped?",
        LOCK_WAIT_MAX.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, what)
}
