//! Calls about open files, to the shard in the files' numbers. That shard keeps which sessions have a file open, while the
//! file's row may be in any shard.

use std::time::Duration;
use varve_types::{InodeId, SessionId};

/// A call about open files whose numbers are the called shard's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileCall {
    AreOpen(Vec<InodeId>),
    Register(FileUse),
    /// Whether the session has the file open, for writing if `writes`; or, if `or_changed`, whether it has changed the
    /// size of the file and not recorded it.
    HasOpen {
        session: SessionId,
        inode: InodeId,
        writes: bool,
        or_changed: bool,
    },
    Judge(Measurement),
    /// A backing file was truncated: sizes measured before are not valid any more.
    SizeChanged(InodeId),
}

impl FileCall {
    pub fn inodes(&self) -> &[InodeId] {
        match self {
            FileCall::AreOpen(inodes) => inodes,
            FileCall::Register(FileUse { inode, .. })
            | FileCall::HasOpen { inode, .. }
            | FileCall::Judge(Measurement { inode, .. })
            | FileCall::SizeChanged(inode) => std::slice::from_ref(inode),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileReply {
    /// In the order of the question.
    Openness(Vec<Openness>),
    /// `writer_gone`: all sessions are known, and none wrote the file or had yet to record its size before.
    Registered {
        writer_gone: bool,
    },
    HasOpen(bool),
    Judged(MeasureVerdict),
    Done,
}

/// Whether a session has a file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Openness {
    Closed,
    /// A session of an earlier server may have it open, and has not come back yet.
    Perhaps,
    Open,
}

/// A session's use of a file, as decided by the shard of the file's row, to be registered by the shard in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileUse {
    pub session: SessionId,
    pub inode: InodeId,
    pub opened: Option<OpenedFor>,
    pub size: Option<SizeUse>,
}

impl FileUse {
    pub fn open(session: SessionId, inode: InodeId, writes: bool) -> FileUse {
        let opened = if writes { OpenedFor::Writing } else { OpenedFor::Reading };
        FileUse { session, inode, opened: Some(opened), size: None }
    }

    pub fn size(session: SessionId, inode: InodeId, size: SizeUse) -> FileUse {
        FileUse { session, inode, opened: None, size: Some(size) }
    }
}

/// The access of a session to a file that it has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedFor {
    Reading,
    Writing,
    /// The session reports that an earlier server granted it the open. This keeps the file, but does not permit the
    /// session to read or write it. It is ignored once all sessions of the earlier server are known.
    Keeping,
}

/// A step of a session that concerns a file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeUse {
    /// It may change the size of the backing file from now on.
    Changes(OtherWriters),
    /// It has reported a measured size, which was judged.
    Measured(MeasuredBy, MeasureTime),
    /// It has closed and synced the file, and its measured size is not used because the row has a better one.
    Done,
}

/// Whether other sessions, unknown to this server, may be changing a backing file that a session begins to change: an
/// earlier server may have granted it to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherWriters {
    Perhaps,
    Known,
}

/// The call by which a session reports a measured size: its slot and its number there. A repeated call has the same.
pub type MeasuredBy = (u32, u64);

/// When a session measured a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureTime {
    /// After it closed the file.
    Last,
    /// While it goes on writing the file.
    Underway,
}

/// A size that a session has measured of a file, and the call that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    pub session: SessionId,
    pub inode: InodeId,
    pub by: MeasuredBy,
    pub time: MeasureTime,
}

/// Whether a measured size is the file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureVerdict {
    Right,
    /// Another session will report the size, or this one after another measurement.
    Wrong,
    /// Sessions of an earlier server may be writing the file. They are known after this time, in whole milliseconds.
    WritersUnknown(Duration),
}
