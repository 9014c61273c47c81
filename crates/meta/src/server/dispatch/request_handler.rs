//! Runs one request at its shard.

use super::super::leases::LeaseBarrier;
use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::{errno, translate};
use crate::shards::{
    AwaitedReply, BatchNumber, Execution, FastPathRun, Makes, MeasuredBy, OpenFiles, OtherWriters, Placed, Replied,
    ReplyRecorder, RequestAddress, Shard, ShardRefusal,
};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use varve_posix::{
    At, Context, Decision, Effect, Granted, MissingKeys, Node, NodeContent, Open, OpenMode as OpenFor, Verb, View,
};
use varve_proto::{Call, CallFailure, CallId, FileContent, Locator, NodeReply, Reply, Response};
use varve_types::{Attributes, Credentials, Errno, FileKind, InodeId, Name, NameError, NameHash, SessionId};

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

/// The result of a call that ran without waiting.
pub enum ImmediateResult {
    Seen(Reply),
    Changed(Changed),
    /// Run the call on when these rows are appended.
    Placed(Placed, AwaitedReply),
}

/// A change that is made. The client must not see it before `batch` is appended and `effects` are done.
pub struct Changed {
    pub body: Bytes,
    pub batch: BatchNumber,
    pub effects: Vec<Effect>,
    /// Blocks leases on the changed keys until the call is answered.
    pub barrier: Option<LeaseBarrier>,
}

impl From<Reply> for CompletedCall {
    fn from(reply: Reply) -> CompletedCall {
        CompletedCall::Reply(reply)
    }
}

impl RequestHandler<'_> {
    /// Runs a verb that changes nothing.
    pub async fn ask<V: Verb>(&self, verb: &V, address: RequestAddress) -> Result<V::Outcome, CallFailure> {
        let run = Execution { caller: &self.credentials, address, makes: Makes::Nothing, record: None };
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
        self.change_by(address, makes, reply, async |run| self.shard.run(verb, run).await).await
    }

    /// [`RequestHandler::change`] for a verb some of whose new rows are already placed at another shard; the second
    /// field says whether they were appended.
    pub async fn change_placed<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        (placed, appended): (Placed, Result<(), ShardRefusal>),
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Result<CompletedCall, CallFailure> {
        self.change_by(address, Makes::Nothing, reply, async |run| {
            self.shard.run_placed(verb, run, placed, appended).await
        })
        .await
    }

    async fn change_by<O>(
        &self,
        address: RequestAddress,
        makes: Makes,
        reply: impl Fn(&O) -> Reply,
        run: impl AsyncFnOnce(Execution<'_, O>) -> Result<O, ShardRefusal>,
    ) -> Result<CompletedCall, CallFailure> {
        let recorded = RefCell::new(None);
        let encode = |outcome: &O| self.encode(reply(outcome), &recorded);
        let record = Some(self.record(&encode));
        let outcome = run(Execution { caller: &self.credentials, address, makes, record }).await;
        let outcome = outcome.map_err(translate::failure)?;
        Ok(match recorded.take() {
            Some(body) => CompletedCall::Encoded(body),
            None => CompletedCall::Reply(reply(&outcome)),
        })
    }

    /// [`RequestHandler::ask`] without waiting; `None` if that is impossible.
    pub fn try_ask<V: Verb>(&self, verb: &V, address: RequestAddress) -> Result<Option<V::Outcome>, CallFailure> {
        let run = Execution { caller: &self.credentials, address, makes: Makes::Nothing, record: None };
        match self.shard.try_run(verb, &run) {
            Some(FastPathRun::Seen(seen)) => seen.map(Some).map_err(translate::failure),
            Some(FastPathRun::Changed { .. } | FastPathRun::Placed(..)) | None => Ok(None),
        }
    }

    /// [`RequestHandler::change`] without waiting; `None` if that is impossible.
    pub fn try_change<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        makes: Makes,
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Result<Option<ImmediateResult>, CallFailure> {
        self.fast_path(address, makes, reply, |run| self.shard.try_run(verb, &run))
    }

    /// [`RequestHandler::change_placed`] without waiting, after the rows were appended; `None` if that is impossible.
    pub fn try_change_placed<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        placed: &Placed,
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Option<Changed> {
        let run = |run: Execution<'_, V::Outcome>| self.shard.try_run_placed(verb, &run, placed);
        match self.fast_path(address, Makes::Nothing, reply, run) {
            Ok(Some(ImmediateResult::Changed(changed))) => Some(changed),
            _ => None,
        }
    }

    fn fast_path<O>(
        &self,
        address: RequestAddress,
        makes: Makes,
        reply: impl Fn(&O) -> Reply,
        run: impl FnOnce(Execution<'_, O>) -> Option<FastPathRun<O>>,
    ) -> Result<Option<ImmediateResult>, CallFailure> {
        let recorded = RefCell::new(None);
        let encode = |outcome: &O| self.encode(reply(outcome), &recorded);
        let record = Some(self.record(&encode));
        Ok(match run(Execution { caller: &self.credentials, address, makes, record }) {
            None => None,
            Some(FastPathRun::Seen(seen)) => Some(ImmediateResult::Seen(reply(&seen.map_err(translate::failure)?))),
            Some(FastPathRun::Placed(placed, reply)) => Some(ImmediateResult::Placed(placed, reply)),
            Some(FastPathRun::Changed { outcome, batch, effects }) => {
                let body = recorded.take().unwrap_or_else(|| encode(&outcome));
                Some(ImmediateResult::Changed(Changed { body, batch, effects, barrier: None }))
            }
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

    /// Replies with the recorded reply. If the reply says that the file is open in this session, the file is registered
    /// as open again, in case the server has restarted since. The call's effects on the backing file are done again, in
    /// case a server died before it did them.
    pub async fn replayed(&self, call: &Call, replied: Replied) -> Result<CompletedCall, CallFailure> {
        let body = self.shard.reply_again(replied).await.map_err(translate::failure)?;
        let opens = match call {
            Call::Open { mode, .. } => Some(mode.writes()),
            Call::Create { open: true, .. } | Call::CreateUnnamed { .. } => Some(true),
            _ => None,
        };
        let beside =
            matches!(call, Call::Open { truncate: true, .. } | Call::SetAttributes { .. } | Call::MarkSizeStale { .. });
        if opens.is_none() && !beside {
            return Ok(CompletedCall::Encoded(body));
        }
        let response: Result<Response, _> = postcard::from_bytes(&body);
        let Ok(Response { result: Ok(Reply::Node(node)), .. }) = response else {
            return Err(CallFailure::Server {
                errno: libc::EIO,
                message: format!("the recorded reply to call {:?} is damaged", self.id),
            });
        };
        if let Some(writes) = opens {
            self.worker.shared.open_files.open(self.caller.session, InodeId(node.inode), writes);
        }
        if beside && matches!(node.content, FileContent::Backing { .. }) {
            self.beside_again(call, &node, &body).await?;
        }
        Ok(CompletedCall::Encoded(body))
    }

    /// Repeats the effects of the change of `node` on the backing file: a truncate that is still pending is done, and
    /// the backing file gets the time and owner that were set. The call has not been answered yet, so none of this
    /// comes too late.
    async fn beside_again(&self, call: &Call, node: &NodeReply, body: &Bytes) -> Result<(), CallFailure> {
        let inode = InodeId(node.inode);
        let (locator, cuts) = match call {
            Call::Open { at, .. } | Call::MarkSizeStale { at, .. } => (at, true),
            Call::SetAttributes { at, set } => (at, set.size.is_some()),
            _ => return Ok(()),
        };
        if cuts {
            let (at, address) = self.at(locator.clone())?;
            // An open of a file with a pending truncate finishes the truncate.
            let verb = Open { at, mode: OpenFor::Read, truncate: false, granted: Granted::Nothing };
            // The recorded reply stays the same. If the truncate fails and is abandoned, the call is not answered with
            // it.
            let encode = |_: &Node| body.clone();
            let record = Some(self.record(&encode));
            let run = Execution { caller: &Credentials::root(), address, makes: Makes::Nothing, record };
            self.shard.run(&verb, run).await.map_err(translate::failure)?;
        }
        let mut effects = Vec::new();
        if let Call::SetAttributes { set, .. } = call {
            let attributes = Attributes::from(node.attributes);
            let Attributes { uid, gid, mode, mtime, .. } = attributes;
            if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
                effects.push(Effect::Own { inode, uid, gid, mode });
            }
            if set.mtime.is_some() {
                effects.push(Effect::Touch { inode, mtime });
            }
        }
        if let Call::MarkSizeStale { .. } = call {
            effects.push(Effect::SizeStale(inode));
        }
        self.shard.perform(effects, None).await.map_err(translate::failure)
    }

    /// Requires that the session has the file open for writing; the right to write was checked at that open. A client
    /// that speaks for many users is trusted, because it may have opened the file at a previous server.
    pub fn check_may_write(&self, at: &At) -> Result<(), CallFailure> {
        self.check_has_open(at, true)
    }

    /// Returns `inode` if a single-user client that reopens a file in its own name may have been granted it by the
    /// previous server; the permissions may have been revoked since. The server accepts that only while it waits for
    /// clients of its predecessor, and it does not allow the client to use the file.
    pub fn may_have_opened(&self, inode: InodeId) -> Option<InodeId> {
        (self.own_name && self.caller.forced.is_some() && !self.all_sessions_known()).then_some(inode)
    }

    /// Which permission checks a repeated open skips. A client that speaks for many users sends root's credentials,
    /// which pass the checks anyway.
    pub fn granted_before(&self, inode: InodeId, writes: bool) -> Granted {
        let open_files = &self.worker.shared.open_files;
        match self.own_name && self.caller.forced.is_some() {
            true if open_files.has_open_to(self.caller.session, inode, writes) => Granted::All,
            true => Granted::ToOwner,
            false => Granted::Nothing,
        }
    }

    /// Like [`RequestHandler::check_may_write`], for a file that this session has changed and closed since, or whose
    /// writers are gone.
    pub fn check_was_written(&self, at: &At) -> Result<(), CallFailure> {
        if self.worker.shared.open_files.has_changed_size(self.caller.session, at.inode()) {
            Ok(())
        } else {
            self.check_has_open(at, false)
        }
    }

    fn check_has_open(&self, at: &At, writes: bool) -> Result<(), CallFailure> {
        let open_files = &self.worker.shared.open_files;
        match self.caller.forced.is_none() || open_files.has_open_to(self.caller.session, at.inode(), writes) {
            true => Ok(()),
            false => Err(errno(Errno::EBADF)),
        }
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

    /// A verb that registers its file as open in the session at the instant of the decision: another session may remove
    /// the name before the reply is sent, and must find the file open. `writes`: the session may write the file.
    pub fn opening<V>(&self, verb: V, writes: bool) -> OpeningVerb<'_, V> {
        let (session, open_files) = (self.caller.session, &self.worker.shared.open_files);
        OpeningVerb { verb, writes, opened_before: None, session, open_files }
    }

    /// A verb that allows the session to change the size of the backing file of the file at `at`.
    pub fn resizing<V>(&self, at: At, verb: V) -> Resizing<'_, V> {
        Resizing { verb, at, session: self.caller.session, open_files: &self.worker.shared.open_files }
    }

    /// A verb that records the size that the session measured of the file at `at`.
    pub fn measured_size<V>(&self, at: At, verb: V) -> MeasuredSizeVerb<'_, V> {
        self.taking(at, verb, MeasureTime::Last)
    }

    /// A verb that notes a measurement of the file at `at` while the session goes on writing it.
    pub fn raising<V>(&self, at: At, verb: V) -> MeasuredSizeVerb<'_, V> {
        self.taking(at, verb, MeasureTime::Underway)
    }

    fn taking<V>(&self, at: At, verb: V, reported: MeasureTime) -> MeasuredSizeVerb<'_, V> {
        let measuring = Measuring {
            at,
            session: self.caller.session,
            by: (self.id.slot, self.id.number),
            reported,
            open_files: &self.worker.shared.open_files,
            all_known: self.all_sessions_known(),
        };
        MeasuredSizeVerb { verb, measuring, writers_unknown: Cell::new(false) }
    }

    fn all_sessions_known(&self) -> bool {
        self.until_sessions_are_known().is_zero()
    }

    /// How long clients of the previous server may still reconnect and report their open files.
    pub fn until_sessions_are_known(&self) -> Duration {
        let shared = &self.worker.shared;
        shared.sessions_known_from.since(shared.clock.monotonic())
    }

    /// No session writes the file or has yet to record its size, this session included.
    pub fn left_by_all(&self, inode: InodeId) -> bool {
        self.all_sessions_known() && !self.worker.shared.open_files.is_written(inode)
    }

    /// A hash in the partition of `directory` that this shard holds, if it holds one. It is the partition's lowest
    /// hash, which the partition keeps at every split.
    pub fn own_hash(&self, directory: InodeId) -> NameHash {
        let shards = self.worker.shared.settings.shards;
        let index = varve_types::PartitionIndex::at(self.shard.id(), directory.shard(), shards);
        index.range(shards.depth_max()).first
    }
}

pub struct OpeningVerb<'a, V> {
    verb: V,
    writes: bool,
    /// See [`OpeningVerb::or_keeping`].
    opened_before: Option<InodeId>,
    session: SessionId,
    open_files: &'a OpenFiles,
}

impl<V> OpeningVerb<'_, V> {
    /// If the open is denied, the file is still registered as open without access, so that it is not removed.
    pub fn or_keeping(self, opened_before: Option<InodeId>) -> Self {
        OpeningVerb { opened_before, ..self }
    }
}

impl<V: Verb<Outcome = Node>> Verb for OpeningVerb<'_, V> {
    type Outcome = Node;

    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<Node>, MissingKeys> {
        let decision = self.verb.decide(seen, context)?;
        if let Decision::Answer(node) | Decision::Commit { outcome: node, .. } = &decision
            && node.attributes.kind != FileKind::Directory
        {
            self.open_files.open(self.session, node.inode, self.writes);
        }
        if let (Decision::Refuse(varve_posix::Refusal::Errno(Errno::EACCES)), Some(inode)) =
            (&decision, self.opened_before)
        {
            self.open_files.keep(self.session, inode);
        }
        Ok(decision)
    }
}

pub struct Resizing<'a, V> {
    verb: V,
    at: At,
    session: SessionId,
    open_files: &'a OpenFiles,
}

impl<V: Verb<Outcome = Node>> Verb for Resizing<'_, V> {
    type Outcome = Node;

    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<Node>, MissingKeys> {
        let decision = self.verb.decide(seen, context)?;
        if let Decision::Answer(node) | Decision::Commit { outcome: node, .. } = &decision
            && matches!(node.content, NodeContent::Backing { .. })
        {
            let others = match varve_posix::nobody_writes(seen, &self.at) {
                true => OtherWriters::Known,
                false => OtherWriters::Perhaps,
            };
            self.open_files.changes_size(self.session, node.inode, others);
        }
        Ok(decision)
    }
}

/// Identifies a measurement: the file, the session, and the call that reports it.
struct Measuring<'a> {
    at: At,
    session: SessionId,
    by: MeasuredBy,
    reported: MeasureTime,
    open_files: &'a OpenFiles,
    /// All sessions that write files have reported that, even if this server is the successor of another one. Before
    /// that, all writers are known only for files whose rows once said that nobody writes them.
    all_known: bool,
}

/// When a session measured a file.
#[derive(Clone, Copy)]
enum MeasureTime {
    /// After it closed the file.
    Last,
    /// While it goes on writing the file.
    Underway,
}

impl Measuring<'_> {
    /// Whether the measured size is correct, provided that all writers are known.
    fn is_right(&self, inode: InodeId) -> bool {
        match self.reported {
            MeasureTime::Last => self.open_files.records_size(self.session, inode, self.by),
            MeasureTime::Underway => self.open_files.measures_alone(self.session, inode),
        }
    }
}

/// A verb that records a size measured by a session, if the measurement is correct.
pub struct MeasuredSizeVerb<'a, V> {
    verb: V,
    measuring: Measuring<'a>,
    /// The size was not recorded because there may be writers that are not known yet.
    pub writers_unknown: Cell<bool>,
}

impl<V: Verb<Outcome = Node>> Verb for MeasuredSizeVerb<'_, V> {
    type Outcome = Node;

    /// Returns the file unchanged if the measurement may not be its size.
    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<Node>, MissingKeys> {
        let Measuring { at, session, reported, open_files, all_known, .. } = &self.measuring;
        self.writers_unknown.set(false);
        let takes = |inode| {
            let known = *all_known || open_files.knows_writers(inode);
            self.writers_unknown.set(!known);
            known && self.measuring.is_right(inode)
        };
        let decision = self.verb.decide(seen, context)?;
        let for_nothing = match &decision {
            Decision::Answer(_) => true,
            Decision::Refuse(varve_posix::Refusal::Stale(_)) => true,
            // Another session renamed or removed the file, and the next session that opens it records the size. (The
            // client tries by inode last.)
            Decision::Refuse(varve_posix::Refusal::NotHere) => matches!(at, At::Inode(_)),
            _ => false,
        };
        if for_nothing && matches!(reported, MeasureTime::Last) {
            open_files.done(*session, at.inode());
        }
        Ok(match decision {
            Decision::Commit { outcome, .. } if !takes(outcome.inode) => {
                let content = match varve_posix::size_state(seen, at) {
                    Some(size) => NodeContent::Backing(size),
                    None => outcome.content,
                };
                Decision::Answer(Node { content, ..outcome })
            }
            decision => decision,
        })
    }
}
