//! Lookups for file handles (name_to_handle_at(2), NFS servers).
//!
//! A handle contains the inode number, which is the node id, and the generation. For an inode that the kernel has
//! dropped it asks for the name `.` in that inode, and for `..` to connect a directory to the root (FUSE_EXPORT_SUPPORT).
//! Paths never lead to such a lookup.

use super::{FuseFrontend, entry};
use crate::errno::answer;
use crate::numbers::NodeNumbers;
use fuser::ReplyEntry;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use varve_client::{Failure, FileSystem, NodeInfo, Result, block_on};
use varve_types::{Errno, InodeId};

/// The target of a lookup by number.
#[derive(Clone, Copy)]
pub(super) enum LookupByNumber {
    Itself,
    Parent,
}

impl LookupByNumber {
    pub fn of(name: &OsStr) -> Option<LookupByNumber> {
        match name.as_bytes() {
            b"." => Some(LookupByNumber::Itself),
            b".." => Some(LookupByNumber::Parent),
            _ => None,
        }
    }
}

impl FuseFrontend {
    pub(super) fn look_up_by_number(&self, of: LookupByNumber, inode: InodeId, reply: ReplyEntry) {
        let found = answer("lookup of a file handle", || {
            let inode = match of {
                LookupByNumber::Itself => inode,
                LookupByNumber::Parent => block_on(self.fs.parent(inode))?,
            };
            Ok((inode, block_on(self.fs.find_by_number(inode))?))
        });
        match found {
            Ok((_, Some(node))) => entry(self.numbers, Ok(node), reply),
            Ok((inode, None)) => search(&self.fs, self.numbers, inode, reply),
            Err(errno) => reply.error(errno),
        }
    }
}

/// Searches on a thread of its own: a search can take as long as many other requests together.
fn search(fs: &Arc<FileSystem>, numbers: NodeNumbers, inode: InodeId, reply: ReplyEntry) {
    let fs = Arc::clone(fs);
    let search = move || entry(numbers, answer("search for a file handle", || searched(&fs, inode)), reply);
    if let Err(error) = std::thread::Builder::new().name("varve-search".into()).spawn(search) {
        // The reply was dropped with the thread's closure, which answers EIO.
        tracing::warn!(%error, "cannot start a thread for the search for a file handle");
    }
}

fn searched(fs: &FileSystem, inode: InodeId) -> Result<NodeInfo> {
    let Some(place) = fs.searcher() else {
        return Err(Failure::new(Errno::EAGAIN, "too many callers search for the files of handles"));
    };
    block_on(fs.search_by_number(&place, inode))
}
