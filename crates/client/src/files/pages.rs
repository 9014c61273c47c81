//! Whether the kernel's cached pages of a file are still valid when the file is opened again: they are if the file has
//! the same version as when the pages were last dropped.
//!
//! A row identifies the version while no client can be writing. Each change of a small file's content raises the
//! generation. A backing file is written only after its row was marked stale, and recording the size later stores the
//! time of the last write. While a client may be writing, or left without recording the size, the row does not identify
//! the version, and no page is kept.

use std::num::NonZeroU64;
use varve_proto::{FileContent, NodeReply, SizeState, WireTime};
use xxhash_rust::xxh3::xxh3_64;

/// The version of a file: a hash of everything that changes with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(NonZeroU64);

impl Version {
    /// The version that a reply to `Open` identifies.
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
