//! Directory listings, one kernel buffer at a time.

use super::convert::{bare_attr, file_attr, file_type, shorter_ttl};
use super::{FuseFrontend, GENERATION};
use crate::errno::log_is_due;
use crate::numbers::NodeNumbers;
use fuser::{FileHandle, FopenFlags, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use varve_client::{DirectoryEntry, DirectoryHandle, KernelListing, NodeInfo, Result, block_on};
use varve_types::{Credentials, Errno, InodeId};

pub(super) fn handle(fh: FileHandle) -> DirectoryHandle {
    DirectoryHandle(fh.0)
}

pub(super) fn open_flags(listing: KernelListing) -> FopenFlags {
    match listing {
        // Without FOPEN_KEEP_CACHE the kernel would drop what another handle uses.
        KernelListing::Bypass => FopenFlags::FOPEN_KEEP_CACHE,
        KernelListing::Refill => FopenFlags::FOPEN_CACHE_DIR,
        KernelListing::Keep => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
    }
}

impl FuseFrontend {
    pub(super) fn list(&self, fh: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let mut taken = false;
        let visit = &mut |entry: DirectoryEntry<'_>| {
            let name = OsStr::from_bytes(entry.name);
            let full = reply.add(self.numbers.number(entry.inode), entry.cookie, file_type(entry.kind), name);
            taken |= !full;
            !full
        };
        let listed = block_on(self.fs.read_directory(handle(fh), offset, false, visit));
        after(taken, listed)
    }

    pub(super) fn list_plus(
        &self,
        directory: InodeId,
        fh: FileHandle,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        let (mut any, mut failure) = (false, None);
        let visit = &mut |entry: DirectoryEntry<'_>| match self.add_with_attributes(directory, reply, &entry) {
            Ok(added) => {
                any |= added == EntryAdded::Taken;
                added != EntryAdded::NoRoom
            }
            Err(error) => {
                failure = Some(error);
                false
            }
        };
        let listed = block_on(self.fs.read_directory(handle(fh), offset, true, visit));
        after(any, failure.map_or(listed, Err))
    }

    fn add_with_attributes(
        &self,
        directory: InodeId,
        reply: &mut ReplyDirectoryPlus,
        entry: &DirectoryEntry<'_>,
    ) -> Result<EntryAdded> {
        let name = OsStr::from_bytes(entry.name);
        if matches!(entry.name, b"." | b"..") {
            return Ok(add_bare(self.numbers, reply, entry));
        }
        if let Some(node) = &entry.node {
            return Ok(add_plus(self.numbers, reply, entry, node));
        }
        // The protocol allows an entry without attributes, but `fuser` cannot express one. The lookup runs as root
        // because its attributes are for the kernel, which does not show them to a user without search permission on
        // the directory.
        match self.look_up(&Credentials::root(), directory, name) {
            Ok(node) => {
                let added = add_plus(self.numbers, reply, entry, &node);
                if added == EntryAdded::NoRoom {
                    self.fs.forget(node.inode, 1);
                }
                Ok(added)
            }
            // A name that was removed meanwhile is skipped.
            Err(failure) if failure.errno == Errno::ENOENT => Ok(EntryAdded::Gone),
            // The kernel's cached attributes of an open file must not be replaced by empty ones.
            Err(failure) if self.fs.is_open(entry.inode) => Err(failure),
            // The name exists, so it is listed without attributes; a later stat returns the error.
            Err(failure) => {
                if let Some(suppressed) = log_is_due("listed", &failure) {
                    let (name, inode) = (name.display(), entry.inode);
                    tracing::warn!(%failure, %name, %inode, "listed without attributes{suppressed}");
                }
                Ok(add_bare(self.numbers, reply, entry))
            }
        }
    }
}

/// The result of adding an entry to a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryAdded {
    Taken,
    NoRoom,
    /// The name no longer exists.
    Gone,
}

impl EntryAdded {
    fn of(full: bool) -> EntryAdded {
        if full { EntryAdded::NoRoom } else { EntryAdded::Taken }
    }
}

/// After some entries, an error is deferred: the kernel takes the entries, requests those that follow, and gets the
/// error then.
fn after(entries: bool, listed: Result<()>) -> Result<()> {
    if entries { Ok(()) } else { listed }
}

/// Adds inode number and type alone, with a zero timeout: the kernel looks the name up before it uses it.
fn add_bare(numbers: NodeNumbers, reply: &mut ReplyDirectoryPlus, entry: &DirectoryEntry<'_>) -> EntryAdded {
    let attr = bare_attr(numbers.number(entry.inode).0, file_type(entry.kind));
    EntryAdded::of(reply.add(attr.ino, entry.cookie, OsStr::from_bytes(entry.name), &Duration::ZERO, &attr, GENERATION))
}

fn add_plus(
    numbers: NodeNumbers,
    reply: &mut ReplyDirectoryPlus,
    entry: &DirectoryEntry<'_>,
    node: &NodeInfo,
) -> EntryAdded {
    let (name, ttl) = (OsStr::from_bytes(entry.name), shorter_ttl(node));
    let attr = file_attr(numbers, node);
    EntryAdded::of(reply.add(attr.ino, entry.cookie, name, &ttl, &attr, GENERATION))
}
