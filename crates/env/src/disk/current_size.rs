//! The size of a file that another host may write, on file systems whose clients answer stat(2) from a cache.
//!
//! | File system | Query |
//! |---|---|
//! | any | statx(2) with `AT_STATX_FORCE_SYNC`: the kernel asks the file system, as NFS needs |
//! | one in user space (FUSE) | fdatasync(2) of an open descriptor first. GlusterFS has a cache of its own (`md-cache`, for a second) in front of its servers, which serves an open, a forced statx and direct I/O too; the reply to a sync has the size of the server |

use super::{FileOptions, Location};
use rustix::fs::{AtFlags, Statx, StatxFlags, fdatasync, fstatfs, statx};
use std::io;

/// `FUSE_SUPER_MAGIC` of linux/magic.h.
const FUSE: u64 = 0x6573_5546;

/// How the size of a file is asked for in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeQuery {
    Stat,
    /// Sync, then stat.
    Sync,
}

/// The length and the time of modification of a file, as its file system knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentSize {
    pub length: u64,
    pub mtime_seconds: i64,
    pub mtime_nanoseconds: u32,
}

impl From<Statx> for CurrentSize {
    fn from(found: Statx) -> CurrentSize {
        let (mtime_seconds, mtime_nanoseconds) = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
        CurrentSize { length: found.stx_size, mtime_seconds, mtime_nanoseconds }
    }
}

impl SizeQuery {
    /// The query that is right for the file system of `directory`.
    pub fn of<L: Location + ?Sized>(directory: &L) -> io::Result<SizeQuery> {
        let found = fstatfs(&directory.open_directory()?)?;
        Ok(if found.f_type as u64 == FUSE { SizeQuery::Sync } else { SizeQuery::Stat })
    }

    /// Asks the file system for the size of a file. Blocks.
    pub fn ask<L: Location + ?Sized>(self, path: &L) -> io::Result<CurrentSize> {
        if self == SizeQuery::Sync {
            let opened = path.open_file(&FileOptions::default().read(true).no_follow());
            match opened {
                Ok(file) => {
                    // A file system that cannot sync has nothing that a sync would bring.
                    if let Err(error) = fdatasync(&file) {
                        tracing::debug!("cannot sync {} before its size is read: {error}", path.shown().display());
                    }
                    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
                    return Ok(statx(&file, c"", flags, StatxFlags::BASIC_STATS)?.into());
                }
                // Its mode keeps even the owner from reading it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        let entry = path.entry()?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        Ok(statx(entry.fd(), &entry.name, flags, StatxFlags::BASIC_STATS)?.into())
    }
}

#[cfg(test)]
mod tests;
