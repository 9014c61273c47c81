//! Calls about open files and their replies. The variants of each type here have the order of the type of that name in
//! [`super::super::files`].

use super::super::{
    FileCall, FileReply, FileUse, MeasureTime, MeasureVerdict, MeasuredBy, Measurement, OpenedFor, Openness,
    OtherWriters, SizeUse,
};
use crate::stored::list;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use varve_types::{InodeId, SessionId};

#[derive(Serialize, Deserialize)]
pub(super) enum WireFileCall {
    AreOpen(#[serde(deserialize_with = "list")] Vec<u64>),
    Register(WireFileUse),
    /// Session, inode, `writes`, `or_changed`.
    HasOpen(u64, u64, bool, bool),
    /// Session, inode, call, time.
    Judge(u64, u64, MeasuredBy, WireMeasureTime),
    SizeChanged(u64),
}

/// Session, inode, use of the file, use of its size.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct WireFileUse(u64, u64, Option<WireOpenedFor>, Option<WireSizeUse>);

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WireOpenedFor {
    Reading,
    Writing,
    Keeping,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WireSizeUse {
    Changes(WireOtherWriters),
    Measured(MeasuredBy, WireMeasureTime),
    Done,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WireOtherWriters {
    Perhaps,
    Known,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum WireMeasureTime {
    Last,
    Underway,
}

#[derive(Serialize, Deserialize)]
pub(super) enum WireFileReply {
    Openness(#[serde(deserialize_with = "list")] Vec<WireOpenness>),
    Registered(bool),
    HasOpen(bool),
    Judged(WireVerdict),
    Done,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum WireOpenness {
    Closed,
    Perhaps,
    Open,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum WireVerdict {
    Right,
    Wrong,
    /// Milliseconds.
    WritersUnknown(u32),
}

impl From<&FileCall> for WireFileCall {
    fn from(call: &FileCall) -> WireFileCall {
        match call {
            FileCall::AreOpen(inodes) => WireFileCall::AreOpen(inodes.iter().map(|inode| inode.0).collect()),
            FileCall::Register(used) => WireFileCall::Register(used.into()),
            FileCall::HasOpen { session, inode, writes, or_changed } => {
                WireFileCall::HasOpen(session.0, inode.0, *writes, *or_changed)
            }
            FileCall::Judge(Measurement { session, inode, by, time }) => {
                WireFileCall::Judge(session.0, inode.0, *by, (*time).into())
            }
            FileCall::SizeChanged(inode) => WireFileCall::SizeChanged(inode.0),
        }
    }
}

impl From<&WireFileCall> for FileCall {
    fn from(call: &WireFileCall) -> FileCall {
        match call {
            WireFileCall::AreOpen(inodes) => FileCall::AreOpen(inodes.iter().map(|inode| InodeId(*inode)).collect()),
            WireFileCall::Register(used) => FileCall::Register(used.into()),
            WireFileCall::HasOpen(session, inode, writes, or_changed) => FileCall::HasOpen {
                session: SessionId(*session),
                inode: InodeId(*inode),
                writes: *writes,
                or_changed: *or_changed,
            },
            WireFileCall::Judge(session, inode, by, time) => FileCall::Judge(Measurement {
                session: SessionId(*session),
                inode: InodeId(*inode),
                by: *by,
                time: (*time).into(),
            }),
            WireFileCall::SizeChanged(inode) => FileCall::SizeChanged(InodeId(*inode)),
        }
    }
}

impl From<&FileUse> for WireFileUse {
    fn from(used: &FileUse) -> WireFileUse {
        let opened = used.opened.map(|opened| match opened {
            OpenedFor::Reading => WireOpenedFor::Reading,
            OpenedFor::Writing => WireOpenedFor::Writing,
            OpenedFor::Keeping => WireOpenedFor::Keeping,
        });
        let size = used.size.map(|size| match size {
            SizeUse::Changes(OtherWriters::Perhaps) => WireSizeUse::Changes(WireOtherWriters::Perhaps),
            SizeUse::Changes(OtherWriters::Known) => WireSizeUse::Changes(WireOtherWriters::Known),
            SizeUse::Measured(by, time) => WireSizeUse::Measured(by, time.into()),
            SizeUse::Done => WireSizeUse::Done,
        });
        WireFileUse(used.session.0, used.inode.0, opened, size)
    }
}

impl From<&WireFileUse> for FileUse {
    fn from(&WireFileUse(session, inode, opened, size): &WireFileUse) -> FileUse {
        let opened = opened.map(|opened| match opened {
            WireOpenedFor::Reading => OpenedFor::Reading,
            WireOpenedFor::Writing => OpenedFor::Writing,
            WireOpenedFor::Keeping => OpenedFor::Keeping,
        });
        let size = size.map(|size| match size {
            WireSizeUse::Changes(WireOtherWriters::Perhaps) => SizeUse::Changes(OtherWriters::Perhaps),
            WireSizeUse::Changes(WireOtherWriters::Known) => SizeUse::Changes(OtherWriters::Known),
            WireSizeUse::Measured(by, time) => SizeUse::Measured(by, time.into()),
            WireSizeUse::Done => SizeUse::Done,
        });
        FileUse { session: SessionId(session), inode: InodeId(inode), opened, size }
    }
}

impl From<MeasureTime> for WireMeasureTime {
    fn from(time: MeasureTime) -> WireMeasureTime {
        match time {
            MeasureTime::Last => WireMeasureTime::Last,
            MeasureTime::Underway => WireMeasureTime::Underway,
        }
    }
}

impl From<WireMeasureTime> for MeasureTime {
    fn from(time: WireMeasureTime) -> MeasureTime {
        match time {
            WireMeasureTime::Last => MeasureTime::Last,
            WireMeasureTime::Underway => MeasureTime::Underway,
        }
    }
}

impl From<&Openness> for WireOpenness {
    fn from(openness: &Openness) -> WireOpenness {
        match openness {
            Openness::Closed => WireOpenness::Closed,
            Openness::Perhaps => WireOpenness::Perhaps,
            Openness::Open => WireOpenness::Open,
        }
    }
}

impl From<&WireOpenness> for Openness {
    fn from(openness: &WireOpenness) -> Openness {
        match openness {
            WireOpenness::Closed => Openness::Closed,
            WireOpenness::Perhaps => Openness::Perhaps,
            WireOpenness::Open => Openness::Open,
        }
    }
}

impl From<&FileReply> for WireFileReply {
    fn from(reply: &FileReply) -> WireFileReply {
        match reply {
            FileReply::Openness(answers) => WireFileReply::Openness(answers.iter().map(WireOpenness::from).collect()),
            FileReply::Registered { writer_gone } => WireFileReply::Registered(*writer_gone),
            FileReply::HasOpen(open) => WireFileReply::HasOpen(*open),
            FileReply::Judged(MeasureVerdict::Right) => WireFileReply::Judged(WireVerdict::Right),
            FileReply::Judged(MeasureVerdict::Wrong) => WireFileReply::Judged(WireVerdict::Wrong),
            FileReply::Judged(MeasureVerdict::WritersUnknown(wait)) => {
                let ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
                WireFileReply::Judged(WireVerdict::WritersUnknown(ms))
            }
            FileReply::Done => WireFileReply::Done,
        }
    }
}

impl From<&WireFileReply> for FileReply {
    fn from(reply: &WireFileReply) -> FileReply {
        match reply {
            WireFileReply::Openness(answers) => FileReply::Openness(answers.iter().map(Openness::from).collect()),
            WireFileReply::Registered(writer_gone) => FileReply::Registered { writer_gone: *writer_gone },
            WireFileReply::HasOpen(open) => FileReply::HasOpen(*open),
            WireFileReply::Judged(WireVerdict::Right) => FileReply::Judged(MeasureVerdict::Right),
            WireFileReply::Judged(WireVerdict::Wrong) => FileReply::Judged(MeasureVerdict::Wrong),
            WireFileReply::Judged(WireVerdict::WritersUnknown(ms)) => {
                FileReply::Judged(MeasureVerdict::WritersUnknown(Duration::from_millis((*ms).into())))
            }
            WireFileReply::Done => FileReply::Done,
        }
    }
}
