//! Runs one request at its shard.

use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::{errno, translate};
use crate::shards::{
    Execution, FileUse, Makes, MeasureTime, OtherWriters, Registrar, Replied, ReplyRecorder, RequestAddress, Shard,
    SizeUse,
};
use bytes::Bytes;
use std::cell::RefCell;
use std::rc::Rc;
use varve_posix::{At, Effect, Granted, Node, Open, OpenMode as OpenFor, Verb};
use varve_proto::{Call, CallFailure, CallId, FileContent, Locator, NodeReply, Reply, Response};
use varve_types::{Attributes, Credentials, Errno, InodeId, Name, NameError, NameHash};

/// Capacity that fits most replies to changes: the attributes of a file.
const RESPONSE_BYTES: usize = 128;

pub struct RequestHandler<'a> {
    pub worker: &'a Rc<Worker>,
    pub shard: &'a Rc<Shard>,
    pub caller: &'a Admitted,
    pub credentials: Credentials,
    /// The client makes the call in its own name (uid 0) for something that it has checked before, not in the name of
    /// its user.
    pub own_name: bool,
    pub id: CallId,
}

/// The result of a completed call.
pub enum CompletedCall {
    Reply(Reply),
    /// The encoded response, as recorded.
    Encoded(Bytes),
}

impl From<Reply> for CompletedCall {
    fn from(reply: Reply) -> CompletedCall {
        CompletedCall::Reply(reply)
    }
}

impl RequestHandler<'_> {
    /// Runs a verb that changes nothing.
    pub async fn ask<V: Verb>(&self, verb: &V, address: RequestAddress) -> Result<V::Outcome, CallFailure> {
        self.ask_registering(verb, address, None).await
    }

    /// [`RequestHandler::ask`], for a verb that registers something of the session.
    pub async fn ask_registering<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        registrar: Option<Registrar<'_, V::Outcome>>,
    ) -> Result<V::Outcome, CallFailure> {
        let run = Execution { caller: &self.credentials, address, makes: Makes::Nothing, record: None, registrar };
        self.shard.run(verb, run).await.map_err(translate::failure)
    }

    /// Runs a verb that changes something, and records its reply with the change.
    pub async fn change<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        makes: Makes,
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Result<CompletedCall, CallFailure> {
        self.change_registering(verb, address, makes, None, reply).await
    }

    /// [`RequestHandler::change`], for a verb that registers something of the session.
    pub async fn change_registering<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        makes: Makes,
        registrar: Option<Registrar<'_, V::Outcome>>,
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Result<CompletedCall, CallFailure> {
        let recorded = RefCell::new(None);
        let encode = |outcome: &V::Outcome| self.encode(reply(outcome), &recorded);
        let record = Some(self.record(&encode));
        let run = Execution { caller: &self.credentials, address, makes, record, registrar };
        let outcome = self.shard.run(verb, run).await.map_err(translate::failure)?;
        Ok(match recorded.take() {
            Some(body) => CompletedCall::Encoded(body),
            None => CompletedCall::Reply(reply(&outcome)),
        })
    }

    fn record<'a, O>(&self, encode: &'a dyn Fn(&O) -> Bytes) -> ReplyRecorder<'a, O> {
        ReplyRecorder { session: self.caller.session, slot: self.id.slot, number: self.id.number, encode }
    }

    fn encode(&self, reply: Reply, recorded: &RefCell<Option<Bytes>>) -> Bytes {
        let response = Response { id: self.id, result: Ok(reply) };
        let mut body = Vec::with_capacity(RESPONSE_BYTES);
        varve_proto::append(&response, &mut body).expect("a response has no part that postcard refuses");
        let body = Bytes::from(body);
        recorded.replace(Some(body.clone()));
        body
    }

    /// Replies with the recorded reply. The session's use of the file is registered again, in case the shard in the
    /// file's number has another server since. The call's effects on the backing file are done again, in case a server
    /// died before it did them.
    pub async fn replayed(&self, call: &Call, replied: Replied) -> Result<CompletedCall, CallFailure> {
        let body = self.shard.reply_again(replied).await.map_err(translate::failure)?;
        let uses = matches!(
            call,
            Call::Open { .. }
                | Call::Create { open: true, .. }
                | Call::CreateUnnamed { .. }
                | Call::Promote { .. }
                | Call::MarkSizeStale { .. }
                | Call::RecordSize { .. }
                | Call::RaiseSize { .. }
        );
        let beside = matches!(
            call,
            Call::Open { truncate: true, .. }
                | Call::SetAttributes { .. }
                | Call::MarkSizeStale { .. }
                | Call::Promote { .. }
        );
        if !uses && !beside {
            return Ok(CompletedCall::Encoded(body));
        }
        let response: Result<Response, _> = postcard::from_bytes(&body);
        let Ok(Response { result: Ok(Reply::Node(node)), .. }) = response else {
            return Err(CallFailure::Server {
                errno: libc::EIO,
                message: format!("the recorded reply to call {:?} is damaged", self.id),
            });
        };
        if let Some(used) = self.use_of_replayed(call, &node) {
            self.shard.register(used).await.map_err(translate::failure)?;
        }
        if beside && matches!(node.content, FileContent::Backing { .. }) {
            self.beside_again(call, &node, &body).await?;
        }
        Ok(CompletedCall::Encoded(body))
    }

    /// How the session uses the file since a call that was decided before. Only a decision knows whether others write
    /// the file. The size that a recorded reply to a measurement has was judged right.
    fn use_of_replayed(&self, call: &Call, node: &NodeReply) -> Option<FileUse> {
        let (session, inode) = (self.caller.session, InodeId(node.inode));
        let is_backing = matches!(node.content, FileContent::Backing { .. });
        let changes = is_backing.then_some(SizeUse::Changes(OtherWriters::Perhaps));
        let measured = |time| Some(SizeUse::Measured((self.id.slot, self.id.number), time));
        let (opens, size) = match call {
            Call::Open { mode, truncate, .. } => (Some(mode.writes()), changes.filter(|_| *truncate)),
            Call::Create { open: true, .. } | Call::CreateUnnamed { .. } => (Some(true), None),
            Call::Promote { .. } | Call::MarkSizeStale { .. } => (None, changes),
            Call::RecordSize { .. } => (None, measured(MeasureTime::Last)),
            Call::RaiseSize { .. } => (None, measured(MeasureTime::Underway)),
            _ => (None, None),
        };
        let opened = opens.and_then(|writes| FileUse::open(session, inode, writes).opened);
        (opened.is_some() || size.is_some()).then_some(FileUse { session, inode, opened, size })
    }

    /// Repeats the effects of the change of `node` on the backing file: a truncate that is still pending is done, and
    /// the backing file gets the time that was set, and the owner and mode that the row has now. The call has not been
    /// answered yet, so none of this comes too late.
    async fn beside_again(&self, call: &Call, node: &NodeReply, body: &Bytes) -> Result<(), CallFailure> {
        let inode = InodeId(node.inode);
        // Whether a truncate may be pending, and whether the file's owner and mode were set.
        let (locator, cuts, owns) = match call {
            Call::Open { at, .. } | Call::MarkSizeStale { at, .. } => (at, true, false),
            Call::SetAttributes { at, set } => {
                (at, set.size.is_some(), set.mode.is_some() || set.uid.is_some() || set.gid.is_some())
            }
            Call::Promote { at, .. } => (at, false, true),
            _ => return Ok(()),
        };
        let mut effects = Vec::new();
        if cuts || owns {
            let (at, address) = self.at(locator.clone())?;
            // An open of a file with a pending truncate finishes the truncate.
            let verb = Open { at, mode: OpenFor::Read, truncate: false, granted: Granted::Nothing };
            // The recorded reply stays the same. If the truncate fails and is abandoned, the call is not answered with
            // it.
            let encode = |_: &Node| body.clone();
            let record = Some(self.record(&encode));
            let run =
                Execution { caller: &Credentials::root(), address, makes: Makes::Nothing, record, registrar: None };
            match self.shard.run(&verb, run).await.map_err(translate::failure) {
                // Another call may have restricted the mode since.
                Ok(Node { attributes: Attributes { uid, gid, mode, .. }, .. }) => {
                    effects.extend(owns.then_some(Effect::Own { inode, uid, gid, mode }));
                }
                // The file is not there any more.
                Err(CallFailure::Errno(libc::ENOENT | libc::ESTALE) | CallFailure::NotHere) if !cuts => {}
                Err(failure) => return Err(failure),
            }
        }
        if let Call::SetAttributes { set, .. } = call
            && set.mtime.is_some()
        {
            let mtime = Attributes::from(node.attributes).mtime;
            effects.push(Effect::Touch { inode, mtime });
        }
        if let Call::MarkSizeStale { .. } = call {
            effects.push(Effect::SizeStale(inode));
        }
        self.shard.perform(effects, None).await.map_err(translate::failure)
    }

    /// Validates an inode id from a client: its shard must exist.
    pub fn inode(&self, inode: u64) -> Result<InodeId, CallFailure> {
        let inode = InodeId(inode);
        let known = inode.shard().0 < self.worker.shared.settings.shards.get() && inode.0 != 0;
        if known { Ok(inode) } else { Err(errno(Errno::ESTALE)) }
    }

    /// A name in a directory, and the address that its call is routed by.
    pub fn name(&self, parent: u64, name: &[u8]) -> Result<(InodeId, Name, RequestAddress), CallFailure> {
        let parent = self.inode(parent)?;
        let name = Name::new(name).map_err(|error| {
            errno(match error {
                NameError::TooLong => Errno::ENAMETOOLONG,
                NameError::Empty | NameError::ForbiddenByte | NameError::Dots => Errno::EINVAL,
            })
        })?;
        let address = RequestAddress::Name(parent, name.hash());
        Ok((parent, name, address))
    }

    /// The location of a file as a client knows it, and the address that its call is routed by.
    pub fn at(&self, locator: Locator) -> Result<(At, RequestAddress), CallFailure> {
        match locator {
            Locator::Entry { parent, name, inode } => {
                let (parent, name, address) = self.name(parent, &name)?;
                Ok((At::Entry { parent, name, inode: self.inode(inode)? }, address))
            }
            Locator::Inode { inode } => {
                let inode = self.inode(inode)?;
                Ok((At::Inode(inode), RequestAddress::Inode(inode)))
            }
        }
    }

    /// A hash in the partition of `directory` that this shard holds, if it holds one. It is the partition's lowest
    /// hash, which the partition keeps at every split.
    pub fn own_hash(&self, directory: InodeId) -> NameHash {
        let shards = self.worker.shared.settings.shards;
        let index = varve_types::PartitionIndex::at(self.shard.id(), directory.shard(), shards);
        index.range(shards.depth_max()).first
    }
}
