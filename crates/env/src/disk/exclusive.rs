//! Exclusive creation of files, by a primitive that was proven on the store itself.

use super::Location;
use super::journal;
use super::{FILE_MODE, ignore_absent, remove_file, temporary, write_synced};
use rustix::fs::{AtFlags, RenameFlags};
use std::io;
use std::os::unix::fs::MetadataExt;

/// The primitive that publishes a file under a name only if the name is free. Of any number of processes at most one
/// succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// `renameat2(RENAME_NOREPLACE)`.
    RenameNoReplace,
    /// `link` to the new name, then `unlink` of the temporary one.
    Link,
}

impl Exclusive {
    const ALL: [Exclusive; 2] = [Exclusive::RenameNoReplace, Exclusive::Link];

    /// The first primitive that, tried in `directory`, publishes under a free name and refuses a taken one.
    pub fn prove<L: Location + ?Sized>(directory: &L) -> io::Result<Exclusive> {
        for primitive in Exclusive::ALL {
            if primitive.is_kept_by(directory)? {
                return Ok(primitive);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the file system at {} supports neither renameat2(RENAME_NOREPLACE) nor hard links, so exclusive \
                 creation of a file is impossible there; put the store on a file system that supports one of them",
                crate::printable::printable_path(directory.shown())
            ),
        ))
    }

    /// The probe uses empty files: a full store usually still has space for names.
    pub(super) fn is_kept_by<L: Location + ?Sized>(self, directory: &L) -> io::Result<bool> {
        let (first, second, name) = (temporary(directory), temporary(directory), temporary(directory));
        let tried = write_synced(&first, b"", FILE_MODE).and_then(|()| write_synced(&second, b"", FILE_MODE));
        let works = tried.and_then(|()| {
            let file = |path: &L::Owned| path.look().map(|metadata| (metadata.dev(), metadata.ino()));
            let own = file(&first)?;
            let published = self.publish(&first, &name);
            let refused = self.publish(&second, &name);
            let holds_first = file(&name).is_ok_and(|found| found == own);
            let taken = refused.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
            Ok(published.is_ok() && holds_first && taken)
        });
        for path in [&first, &second, &name] {
            remove_file(path).or_else(ignore_absent)?;
        }
        works
    }

    /// Renames the complete and fsynced file `temporary` to `name`, in the same directory. If `name` exists, it fails
    /// with `AlreadyExists` and leaves the temporary file.
    pub(super) fn publish<L: Location + ?Sized, M: Location + ?Sized>(self, temporary: &L, name: &M) -> io::Result<()> {
        let (from, to) = (temporary.entry()?, name.entry()?);
        match self {
            Exclusive::RenameNoReplace => journal::changing(
                name.shown(),
                || Ok(rustix::fs::renameat_with(from.fd(), &from.name, to.fd(), &to.name, RenameFlags::NOREPLACE)?),
                |record| record.rename(temporary.shown(), name.shown()),
            ),
            Exclusive::Link => {
                journal::changing(
                    name.shown(),
                    || Ok(rustix::fs::linkat(from.fd(), &from.name, to.fd(), &to.name, AtFlags::empty())?),
                    |record| record.link(temporary.shown(), name.shown()),
                )?;
                remove_file(temporary)
            }
        }
    }
}
