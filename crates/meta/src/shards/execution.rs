//! One run of a verb: its caller, its address, and what it records and registers.

use super::open_files::FileUse;
use super::replies::SessionChange;
use bytes::Bytes;
use std::cell::Cell;
use varve_posix::Refusal;
use varve_types::{Credentials, InodeId, NameHash, SessionId, ShardId};

/// The source of a new inode's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    Nothing,
    /// A file: an id of this shard.
    File,
    /// A directory: an id of its future home.
    Directory {
        home: ShardId,
    },
}

/// The address by which a request was routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestAddress {
    /// A name of a directory.
    Name(InodeId, NameHash),
    /// An inode's own rows.
    Inode(InodeId),
}

/// The caller, the address and the other parameters of one run of a verb.
pub struct Execution<'a, O> {
    pub caller: &'a Credentials,
    pub address: RequestAddress,
    pub makes: Makes,
    /// For changes of clients: how to record the reply for a retry.
    pub record: Option<ReplyRecorder<'a, O>>,
    /// Registers how the caller's session uses the file, in the step of the decision: another session may remove the
    /// name before the reply is sent, and must find the file open.
    pub registrar: Option<Registrar<'a, O>>,
}

/// Derives from a decision how the session uses a file from then on.
#[derive(Clone, Copy)]
pub struct Registrar<'a, O> {
    pub of: &'a dyn Fn(Result<&O, &Refusal>) -> Option<FileUse>,
    /// Set as [`OpenFiles::register`] returns it.
    pub writer_gone: &'a Cell<bool>,
}

impl<O> Execution<'_, O> {
    pub(super) fn asked(&self) -> Option<SessionChange> {
        self.record.as_ref().map(|record| SessionChange {
            session: record.session,
            slot: record.slot,
            number: record.number,
        })
    }
}

/// The identity of a change, and how its reply is encoded on the wire.
pub struct ReplyRecorder<'a, O> {
    pub session: SessionId,
    pub slot: u32,
    pub number: u64,
    pub encode: &'a dyn Fn(&O) -> Bytes,
}
