//! Exclusive creation of files, by a primitive that was proven on the store itself.

mod race;

use super::Location;
use super::journal;
use super::{FILE_MODE, File, ignore_absent, remove_file, temporary, write_synced};
use crate::stop_point::{self, StopPoint};
use rustix::fs::{AtFlags, RenameFlags};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The primitive that publishes a file under a name only if the name is free. Of any number of processes at most one
/// succeeds. It takes no lock, so a stopped process delays no other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exclusive {
    /// `link` to the new name, then `unlink` of the temporary one.
    #[default]
    #[serde(rename = "link")]
    Link,
    /// `renameat2(RENAME_NOREPLACE)`, for stores without hard links. Network file systems emulate it, or send it twice
    /// without a way to tell that the first one succeeded.
    #[serde(rename = "renameat2")]
    RenameNoReplace,
}

impl fmt::Display for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exclusive::Link => "link",
            Exclusive::RenameNoReplace => "renameat2",
        })
    }
}

impl Exclusive {
    const ALL: [Exclusive; 2] = [Exclusive::Link, Exclusive::RenameNoReplace];

    pub fn is_default(&self) -> bool {
        *self == Exclusive::default()
    }

    /// The first primitive that works in `directory` and has one winner for each of 1,000 names that two processes race
    /// for.
    pub fn prove<L: Location + ?Sized>(directory: &L) -> io::Result<Exclusive> {
        Exclusive::first(directory, |primitive| {
            Ok(primitive.works_in(directory)? && race::has_one_winner_each(primitive, directory)?)
        })
    }

    /// The first primitive that works in `directory`, tried by this process alone.
    pub fn working<L: Location + ?Sized>(directory: &L) -> io::Result<Exclusive> {
        Exclusive::first(directory, |primitive| primitive.works_in(directory))
    }

    fn first<L: Location + ?Sized>(
        directory: &L,
        is_suitable: impl Fn(Exclusive) -> io::Result<bool>,
    ) -> io::Result<Exclusive> {
        for primitive in Exclusive::ALL {
            if is_suitable(primitive)? {
                return Ok(primitive);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the file system at {} has neither hard links nor renameat2(RENAME_NOREPLACE) with one winner among \
                 several processes, so exclusive creation of a file is impossible there; put the store on a file \
                 system that has one of them",
                crate::printable::printable_path(directory.shown())
            ),
        ))
    }

    /// Whether the primitive publishes under a free name in `directory` and refuses a taken one. The probe uses empty
    /// files: a full store usually still has space for names.
    pub fn works_in<L: Location + ?Sized>(self, directory: &L) -> io::Result<bool> {
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
        stop_point::reach(StopPoint::CreateWritten);
        match self {
            Exclusive::RenameNoReplace => journal::changing(
                name.shown(),
                || Ok(rustix::fs::renameat_with(from.fd(), &from.name, to.fd(), &to.name, RenameFlags::NOREPLACE)?),
                |record| record.rename(temporary.shown(), name.shown()),
            ),
            Exclusive::Link => {
                let link = || match rustix::fs::linkat(from.fd(), &from.name, to.fd(), &to.name, AtFlags::empty()) {
                    Err(rustix::io::Errno::EXIST) if is_same_file(temporary, name) => Ok(()),
                    linked => Ok(linked?),
                };
                journal::changing(name.shown(), link, |record| record.link(temporary.shown(), name.shown()))?;
                stop_point::reach(StopPoint::CreateLinked);
                if let Err(error) = remove_file(temporary) {
                    // The file has its name, so the creation has succeeded. A later start removes the other name.
                    tracing::debug!(%error, "a temporary name stays");
                }
                Ok(())
            }
        }
    }
}

/// Adds the durable name `name` to the complete and fsynced file `existing`, unless `name` exists. It needs no space but
/// that of a name. Of several processes exactly one succeeds.
pub fn add_name<L: Location + ?Sized, M: Location + ?Sized>(existing: &L, name: &M) -> io::Result<()> {
    match super::link(existing, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same_file(existing, name) => {}
        linked => linked?,
    }
    super::sync_directory(&name.around())
}

/// Whether a name that `link` found taken is already the one that was asked for. A network file system sends a request
/// again if its reply was lost, and the repetition finds the name that the first one made. The file still has its first
/// name, so no other file has its inode number. Both files are opened, because an attribute cache could answer
/// stat(2) for a file that had the name before.
fn is_same_file<L: Location + ?Sized, M: Location + ?Sized>(file: &L, name: &M) -> bool {
    let number = |file: io::Result<std::fs::File>| file.and_then(|file| file.metadata()).map(|m| (m.dev(), m.ino()));
    let reading = File::options().read(true);
    let own = number(file.open_file(&reading));
    own.is_ok_and(|own| number(name.open_file(&reading)).is_ok_and(|found| found == own))
}
