//! Whether the pages that a frontend's kernel has of a file are still right when the file is opened again: they are if
//! the file is what it was when they were dropped last.
//!
//! A row tells what the file is while nobody may be writing: each change of a small file's content raises the generation, and a
//! backing file is written only after its row was told so, which is settled again with the time of the last write. Where
//! somebody may be writing, or has left that open, the row does not tell, and no page is kept.

use std::num::NonZeroU64;
use varve_proto::{FileContent, NodeReply, SizeState, WireTime};
use xxhash_rust::xxh3::xxh3_64;

/// What a file is: a hash of all that changes with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(NonZeroU64);

impl Version {
    /// As an answer to `Open` tells it.
    pub fn of(reply: &NodeReply) -> Option<Version> {
        match reply.content {
            FileContent::Inline { .. } | FileContent::Backing(SizeState::Authoritative) => {}
            FileContent::Backing(SizeState::Stale { .. } | SizeState::WriterGone { .. }) | FileContent::None => {
                return None;
            }
        }
        let WireTime { seconds: mtime, nanoseconds: of_mtime } = reply.attributes.mtime;
        let WireTime { seconds: ctime, nanoseconds: of_ctime } = reply.attributes.ctime;
        let words = [reply.attributes.size, mtime as u64, ctime as u64];
        let halves = [reply.generation, of_mtime, of_ctime];
        let bytes = [words.map(u64::to_le_bytes).concat(), halves.map(u32::to_le_bytes).concat()].concat();
        Some(Version(NonZeroU64::new(xxh3_64(&bytes)).unwrap_or(NonZeroU64::MIN)))
    }
}
