//! Listings, a buffer of the kernel's at a time.

use super::convert::{bare_attr, file_attr, file_type, shorter_ttl};
use super::{FuseFrontend, GENERATION};
use fuser::{FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use varve_client::{DirectoryEntry, DirectoryHandle, NodeInfo, Result, block_on};
use varve_types::{Credentials, Errno, InodeId};

pub(super) fn handle(fh: FileHandle) -> DirectoryHandle {
    DirectoryHandle(fh.0)
}

impl FuseFrontend {
    pub(super) fn list(&self, fh: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let mut taken = false;
        let visit = &mut |entry: DirectoryEntry<'_>| {
            let name = OsStr::from_bytes(entry.name);
            let full = reply.add(INodeNo(entry.inode.0), entry.cookie, file_type(entry.kind), name);
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
            return Ok(add_bare(reply, entry));
        }
        if let Some(node) = &entry.node {
            return Ok(add_plus(reply, entry, node));
        }
        // The protocol lets an entry go without attributes, but `fuser` has no way to say so. They are for the kernel, which
        // shows them to nobody who may not search the directory.
        match self.look_up(&Credentials::root(), directory, name) {
            Ok(node) => {
                let added = add_plus(reply, entry, &node);
                if added == EntryAdded::NoRoom {
                    self.fs.forget(node.inode, 1);
                }
                Ok(added)
            }
            // A name that went away meanwhile is passed over.
            Err(failure) if failure.errno == Errno::ENOENT => Ok(EntryAdded::Gone),
            // What the kernel knows of a file in use must not be replaced by nothing.
            Err(failure) if self.fs.is_open(entry.inode) => Err(failure),
            // The name is there, and is listed; whoever asks for more than its kind is told what is wrong.
            Err(failure) => {
                tracing::warn!(%failure, name = %name.display(), inode = %entry.inode, "listed without attributes");
                Ok(add_bare(reply, entry))
            }
        }
    }
}

/// What became of an entry of a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryAdded {
    Taken,
    NoRoom,
    /// There is no such name any more.
    Gone,
}

impl EntryAdded {
    fn of(full: bool) -> EntryAdded {
        if full { EntryAdded::NoRoom } else { EntryAdded::Taken }
    }
}

/// An error after some entries waits: the kernel takes the entries, asks for those that follow, and gets it then.
fn after(entries: bool, listed: Result<()>) -> Result<()> {
    if entries { Ok(()) } else { listed }
}

/// Number and kind alone, believed by nobody: the kernel looks the name up before it uses it.
fn add_bare(reply: &mut ReplyDirectoryPlus, entry: &DirectoryEntry<'_>) -> EntryAdded {
    let attr = bare_attr(entry.inode.0, file_type(entry.kind));
    EntryAdded::of(reply.add(attr.ino, entry.cookie, OsStr::from_bytes(entry.name), &Duration::ZERO, &attr, GENERATION))
}

fn add_plus(reply: &mut ReplyDirectoryPlus, entry: &DirectoryEntry<'_>, node: &NodeInfo) -> EntryAdded {
    let (name, ttl) = (OsStr::from_bytes(entry.name), shorter_ttl(node));
    EntryAdded::of(reply.add(INodeNo(node.inode.0), entry.cookie, name, &ttl, &file_attr(node), GENERATION))
}
