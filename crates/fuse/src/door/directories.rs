//! Listings, a buffer of the kernel's at a time.

use super::convert::{bare_attr, file_attr, file_type, shorter_ttl};
use super::{Door, GENERATION};
use fuser::{FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use varve_client::{DirectoryEntry, DirectoryHandle, Node, Result, now};
use varve_types::{Credentials, InodeId};

pub(super) fn handle(fh: FileHandle) -> DirectoryHandle {
    DirectoryHandle(fh.0)
}

impl Door {
    pub(super) fn list(&self, fh: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let visit = &mut |entry: DirectoryEntry<'_>| {
            let name = OsStr::from_bytes(entry.name);
            !reply.add(INodeNo(entry.inode.0), entry.cookie, file_type(entry.kind), name)
        };
        now(self.fs.read_directory(handle(fh), offset, false, visit))
    }

    pub(super) fn list_plus(
        &self,
        caller: &Credentials,
        directory: InodeId,
        fh: FileHandle,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        let visit = &mut |entry: DirectoryEntry<'_>| {
            let name = OsStr::from_bytes(entry.name);
            if matches!(entry.name, b"." | b"..") {
                let attr = bare_attr(entry.inode.0, file_type(entry.kind));
                return !reply.add(attr.ino, entry.cookie, name, &Duration::ZERO, &attr, GENERATION);
            }
            // The protocol lets an entry go without attributes, but `fuser` has no way to say so. A name that went
            // away meanwhile is passed over.
            let looked_up = entry.node.is_none();
            let Some(node) = entry.node.or_else(|| self.look_up(caller, directory, name).ok()) else { return true };
            let taken = add_plus(reply, &entry, &node);
            if looked_up && !taken {
                self.fs.forget(node.inode, 1);
            }
            taken
        };
        now(self.fs.read_directory(handle(fh), offset, true, visit))
    }
}

fn add_plus(reply: &mut ReplyDirectoryPlus, entry: &DirectoryEntry<'_>, node: &Node) -> bool {
    let (name, ttl) = (OsStr::from_bytes(entry.name), shorter_ttl(node));
    !reply.add(INodeNo(node.inode.0), entry.cookie, name, &ttl, &file_attr(node), GENERATION)
}
