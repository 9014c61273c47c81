//! Ownership and permissions of a volume's files.
//!
//! A user who can write to the volume file, the key, a server record or a directory of a volume controls which server
//! others connect to and what they read. So each of these must belong to the owner of the store's root directory, and
//! no other user may have write access. Each is checked on the open descriptor whenever it is read.

use super::VolumeDir;
use crate::identity::is_nobody;
use crate::printable::printable_path;
use crate::store_path::StorePath;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bits of a mode: write permission for group or others; and any permission for them.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_ANY: u32 = 0o077;

/// The file system uid of this thread (`setfsuid(2)`).
pub(super) fn file_system_uid() -> u32 {
    // SAFETY: an invalid uid changes nothing, and the call touches no memory.
    unsafe { libc::setfsuid(u32::MAX) as u32 }
}

/// Users who may read a file besides its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    Anybody,
    OwnerAlone,
}

impl VolumeDir {
    /// The owner of the store: the owner of its root directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if the owner is the uid of unmapped users, or if other users may write to
    /// the directory.
    pub fn owner(&self) -> io::Result<u32> {
        let found = self.at_root().metadata()?;
        if is_nobody(found.uid()) {
            return Err(denied(format!(
                "{} belongs to user {} (nobody), so the owner of its files is unknown: give it to a user (chown -R), \
                 or work as the user that its file server knows, or in the user namespace of its owner",
                printable_path(self.root()),
                found.uid()
            )));
        }
        refuse_writers(self.root(), &found)?;
        Ok(found.uid())
    }

    /// Whether this thread may go where the volume's files send it: they are root's, or those of its own user. The owner of
    /// a store must not choose which files and hosts another user opens.
    pub fn is_own_or_roots(&self) -> io::Result<bool> {
        let owner = self.owner()?;
        Ok(owner == 0 || owner == file_system_uid())
    }

    /// Opens a file of the volume for reading, if only its owner may change it.
    pub(super) fn open_own(&self, path: &StorePath, readers: Readers) -> io::Result<File> {
        let file = path.open()?;
        self.check_own(path, &file.metadata()?, readers)?;
        Ok(file)
    }

    pub(super) fn check_own(&self, path: &StorePath, found: &Metadata, readers: Readers) -> io::Result<()> {
        let owner = self.owner()?;
        if found.uid() != owner {
            return Err(denied(format!(
                "{path} belongs to user {}, and the store to user {owner}: give it back with `chown {owner} {path}` if \
                 that user created it, else remove it",
                found.uid()
            )));
        }
        refuse_writers(path.path(), found)?;
        if readers == Readers::OwnerAlone && found.mode() & OTHERS_ANY != 0 {
            return Err(denied(format!(
                "other users may read {path} (mode {:04o}): its readers can act as any user of the volume; close it \
                 with `chmod 600 {path}`, or have `varve fsck --repair` make another one after you removed it",
                found.mode() & 0o7777
            )));
        }
        Ok(())
    }

    /// Refuses a volume in which other users may change files.
    pub(super) fn check_rights(&self) -> io::Result<()> {
        let owner = self.owner()?;
        for directory in [self.servers(), self.shards(), self.data()] {
            let found = match directory.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            // The root directory of a mounted disk usually belongs to root.
            if found.uid() != owner && found.uid() != 0 {
                return Err(denied(format!(
                    "the directory {directory} belongs to user {}, and the store to user {owner}: give it to that user \
                     with `chown -R {owner} {directory}` if its content is the volume's",
                    found.uid()
                )));
            }
            refuse_writers(directory.path(), &found)?;
        }
        Ok(())
    }
}

fn refuse_writers(path: &Path, found: &Metadata) -> io::Result<()> {
    if found.mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    let path = printable_path(path);
    let what = if found.is_dir() { "so that they can replace its content" } else { "so that they can change it" };
    Err(denied(format!(
        "other users may write to {path} (mode {:04o}), {what}: close it with `chmod go-w {path}`, and look for files \
         that are not yours",
        found.mode() & 0o7777
    )))
}

fn denied(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}
