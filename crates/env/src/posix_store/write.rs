//! Puts, copies, renames and deletes. All of them block the thread.

use super::error::{failed, is_absence, precondition};
use super::{HASHED_BYTES_MAX, Inner, LOCK_NAME};
use crate::disk;
use crate::flock::Locked;
use crate::store_path::StorePath;
use object_store::path::Path as ObjectPath;
use object_store::{CopyMode, Extensions, PutPayload, PutResult, Result, UpdateVersion};
use rustix::fs::FlockOperation;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use xxhash_rust::xxh3::Xxh3;

/// A file that is complete and fsynced, but not published yet.
pub(super) struct CompleteFile {
    pub(super) path: StorePath,
    pub(super) e_tag: String,
}

impl Inner {
    pub(super) fn put_overwriting(&self, location: &ObjectPath, payload: &PutPayload) -> Result<PutResult> {
        let file = self.file(location)?;
        let written = self.write(&file, payload).map_err(self.refused("write", location))?;
        self.publish_over(location, written)
    }

    pub(super) fn put_creating(&self, location: &ObjectPath, payload: &PutPayload) -> Result<PutResult> {
        let file = self.file(location)?;
        if file.symlink_metadata().is_ok() {
            return Err(self.refused("create", location)(io::ErrorKind::AlreadyExists.into()));
        }
        let written = self.write(&file, payload).map_err(self.refused("write", location))?;
        let _publishing = self.publishing().map_err(self.refused("lock the store to create", location))?;
        disk::publish_if_absent(self.exclusive, &written.path, &file).map_err(self.refused("create", location))?;
        Ok(result(written.e_tag))
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
        let written = self.write(&file, payload).map_err(self.refused("write", location))?;
        let _alone = self.publishing_alone().map_err(self.refused("lock the store to update", location))?;
        let refusal = match e_tag_of_path(&file).map_err(|error| self.vouched(location, error)) {
            Ok(found) if found == expected => None,
            Ok(found) => Some(precondition(location, format!("the version is {found}, not {expected}"))),
            Err(error) if is_absence(&error) => Some(precondition(location, "the object does not exist".into())),
            Err(error) => Some(failed("read", location)(error)),
        };
        if let Some(refusal) = refusal {
            // The caller needs the refusal; the next start removes a leftover.
            let _ = disk::remove_file(&written.path);
            return Err(refusal);
        }
        disk::publish_replacing(&written.path, &file).map_err(self.refused("replace", location))?;
        Ok(result(written.e_tag))
    }

    /// Publishes `written` as `location`, replacing any object there.
    pub(super) fn publish_over(&self, location: &ObjectPath, written: CompleteFile) -> Result<PutResult> {
        let file = self.file(location)?;
        let _publishing = self.publishing().map_err(self.refused("lock the store to write", location))?;
        disk::publish_replacing(&written.path, &file).map_err(self.refused("replace", location))?;
        Ok(result(written.e_tag))
    }

    pub(super) fn delete(&self, location: &ObjectPath) -> Result<()> {
        let file = self.file(location)?;
        let _publishing = self.publishing().map_err(self.refused("lock the store to delete", location))?;
        match disk::remove_file(&file).map_err(|error| self.vouched(location, error)) {
            // A second delete cannot be distinguished from a retry of the first.
            Err(error) if is_absence(&error) => Ok(()),
            other => other.map_err(failed("delete", location)),
        }
    }

    pub(super) fn copy(&self, from: &ObjectPath, to: &ObjectPath, mode: CopyMode) -> Result<()> {
        let source = self.file(from)?;
        let target = self.file(to)?;
        let temporary = self.copy_aside(&source, &target).map_err(self.failed("copy", from))?;
        let _publishing = self.publishing().map_err(self.refused("lock the store to copy to", to))?;
        match mode {
            CopyMode::Overwrite => disk::publish_replacing(&temporary, &target),
            CopyMode::Create => disk::publish_if_absent(self.exclusive, &temporary, &target),
        }
        .map_err(self.refused("copy to", to))
    }

    pub(super) fn rename(&self, from: &ObjectPath, to: &ObjectPath, mode: CopyMode) -> Result<()> {
        let source = self.file(from)?;
        let target = self.file(to)?;
        source.symlink_metadata().map_err(self.failed("rename", from))?;
        self.make_directory(&target.parent()).map_err(self.refused("make the directory of", to))?;
        let _publishing = self.publishing().map_err(self.refused("lock the store to rename", from))?;
        let temporary = disk::temporary(&target.parent());
        match mode {
            CopyMode::Overwrite => disk::publish_replacing(&source, &target).map_err(self.refused("rename to", to))?,
            CopyMode::Create => {
                if target.symlink_metadata().is_ok() {
                    return Err(self.refused("rename to", to)(io::ErrorKind::AlreadyExists.into()));
                }
                // Uses a temporary copy, so that a refusal leaves the source in place.
                disk::copy_synced(&source, &temporary).map_err(self.failed("rename", from))?;
                disk::publish_if_absent(self.exclusive, &temporary, &target).map_err(self.refused("rename to", to))?;
                disk::remove_file(&source).map_err(self.failed("rename", from))?;
            }
        }
        disk::sync_directory(&source.parent()).map_err(self.failed("rename", from))
    }

    fn copy_aside(&self, source: &StorePath, target: &StorePath) -> io::Result<StorePath> {
        self.make_directory(&target.parent())?;
        let temporary = disk::temporary(&target.parent());
        disk::copy_synced(source, &temporary)?;
        Ok(temporary)
    }

    fn write(&self, file: &StorePath, payload: &PutPayload) -> io::Result<CompleteFile> {
        self.with_room(|| self.write_once(file, payload))
    }

    fn write_once(&self, file: &StorePath, payload: &PutPayload) -> io::Result<CompleteFile> {
        let (output, path) = self.create_temporary(file)?;
        let written =
            disk::write_parts(&output, payload.iter().map(|part| part.as_ref())).and_then(|()| output.sync_all());
        if let Err(error) = written {
            let _ = disk::remove_file(&path);
            return Err(error);
        }
        let e_tag = if payload.content_length() as u64 <= HASHED_BYTES_MAX {
            e_tag_of_content(payload.iter().map(|part| part.as_ref()))
        } else {
            e_tag_of_metadata(&output.metadata()?)
        };
        Ok(CompleteFile { path, e_tag })
    }

    /// Creates directories below the root only. If the root was moved away, a new root would prevent it from being
    /// moved back.
    fn make_directory(&self, directory: &StorePath) -> io::Result<()> {
        disk::create_directories_below(&self.root, directory)
    }

    /// Creates an empty file next to `file`, and its directory if missing.
    pub(super) fn create_temporary(&self, file: &StorePath) -> io::Result<(disk::File, StorePath)> {
        let directory = file.parent();
        let path = disk::temporary(&directory);
        let create = || disk::File::options().read(true).write(true).create_new().open(&path);
        let output = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_directory(&directory)?;
                create()?
            }
            other => other?,
        };
        Ok((output, path))
    }

    /// Held during a publication, shared with other publications.
    fn publishing(&self) -> io::Result<impl Drop + '_> {
        let within = self.publications.read();
        Ok(Publishing { _within: within, _across: self.lock(FlockOperation::LockShared)? })
    }

    /// Held while a version is compared and replaced: excludes all other publications.
    fn publishing_alone(&self) -> io::Result<impl Drop + '_> {
        let within = self.publications.write();
        Ok(Publishing { _within: within, _across: self.lock(FlockOperation::LockExclusive)? })
    }

    /// Each holder opens the lock file separately, because a flock belongs to the open file.
    fn lock(&self, operation: FlockOperation) -> io::Result<Locked> {
        let file = disk::open_lock_file(&self.root.join(LOCK_NAME))?;
        Ok(Locked::take(file, operation)?)
    }
}

/// Unlocks across processes first, then within this one.
struct Publishing<Within> {
    _across: Locked,
    _within: Within,
}

impl<Within> Drop for Publishing<Within> {
    fn drop(&mut self) {}
}

fn result(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None, extensions: Extensions::new() }
}

pub(super) fn e_tag_of_content<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hasher = Xxh3::new();
    parts.for_each(|part| hasher.update(part));
    format!("\"{:032x}\"", hasher.digest128())
}

pub(super) fn e_tag_of_metadata(metadata: &Metadata) -> String {
    let mtime = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    format!("\"{:x}-{mtime:x}-{:x}\"", metadata.ino(), metadata.size())
}

/// The entity tag of the file at `path`, read now.
pub(super) fn e_tag_of_path(path: &StorePath) -> io::Result<String> {
    let file = path.open()?;
    e_tag_of_file(&file, &file.metadata()?)
}

pub(super) fn e_tag_of_file(file: impl AsFd, metadata: &Metadata) -> io::Result<String> {
    if metadata.len() > HASHED_BYTES_MAX {
        return Ok(e_tag_of_metadata(metadata));
    }
    let mut content = vec![0; metadata.len() as usize];
    let mut held = 0;
    while held < content.len() {
        match rustix::io::pread(&file, &mut content[held..], held as u64) {
            // Truncated since its length was read: the tag covers the remaining bytes.
            Ok(0) => break,
            Ok(count) => held += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(e_tag_of_content(std::iter::once(&content[..held])))
}
