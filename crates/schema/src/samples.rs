//! Rows and messages for the tests of this crate and of the crates above.

mod peer;

pub use peer::{peer_calls, peer_replies, peer_request, peer_response};

use super::{Content, NodeRow};
use varve_types::{Attributes, FileKind, LayoutGeneration, Mode, Timestamp};

pub fn attributes(kind: FileKind, size: u64) -> Attributes {
    let at = Timestamp { seconds: 1, nanoseconds: 0 };
    Attributes {
        kind,
        mode: Mode(0o755),
        uid: 0,
        gid: 0,
        nlink: 1,
        size,
        rdev: 0,
        atime: at,
        mtime: at,
        ctime: at,
        btime: at,
    }
}

pub fn regular(size: u64, content: Content) -> NodeRow {
    let attributes = attributes(FileKind::Regular, size);
    NodeRow { attributes, content, generation: LayoutGeneration::default(), xattrs: Vec::new() }
}
