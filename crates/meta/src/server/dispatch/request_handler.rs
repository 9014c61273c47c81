//! One request at its shard.

use super::super::leases::LeaseBarrier;
use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::{errno, translate};
use crate::namespace::{
    self, At, Context, Decision, Effect, Granted, MissingKeys, Node, NodeContent, Open, OpenMode as OpenFor, Verb, View,
};
use crate::shards::{
    BatchNumber, Execution, FastPathRun, Makes, MeasuredBy, OpenFiles, OtherWriters, Placed, Replied, ReplyRecorder,
    RequestAddress, Shard, ShardRefusal,
};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use varve_proto::{Call, CallFailure, CallId, FileContent, Locator, NodeReply, OpenMode, Reply, Response};
use varve_types::{Attributes, Credentials, Errno, FileKind, InodeId, Name, NameError, NameHash, SessionId};

/// What most answers to changes fit into: a file's attributes.
const RESPONSE_BYTES: usize = 128;

pub struct RequestHandler<'a> {
    pub worker: &'a Rc<Worker>,
    pub shard: &'a Rc<Shard>,
    pub caller: &'a Admitted,
    pub credentials: Credentials,
    /// The client asks in its own name, of what it has checked itself before, and not in that of who uses it.
    pub own_name: bool,
    pub id: CallId,
}

/// A call done.
pub enum CompletedCall {
    Reply(Reply),
    /// The whole response, encoded when it was recorded.
    Encoded(Bytes),
}

/// A call done without waiting.
pub enum ImmediateResult {
    Seen(Reply),
    Changed(Changed),
    /// To be run on when this is appended.
    Placed(Placed),
}

/// A change that was made, and is not to be shown before `batch` is appended and `effects` are done.
pub struct Changed {
    pub body: Bytes,
    pub batch: BatchNumber,
    pub effects: Vec<Effect>,
    /// What may not be leased before it is answered.
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

    /// Runs a verb that changes something; its answer is recorded with the change.
    pub async fn change<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        makes: Makes,
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Result<CompletedCall, CallFailure> {
        self.change_by(address, makes, reply, async |run| self.shard.run(verb, run).await).await
    }

    /// [`RequestHandler::change`] from where rows of what it makes are placed, and were `appended` or could not be.
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

    /// [`RequestHandler::ask`] without waiting; `None`: that cannot be.
    pub fn try_ask<V: Verb>(&self, verb: &V, address: RequestAddress) -> Result<Option<V::Outcome>, CallFailure> {
        let run = Execution { caller: &self.credentials, address, makes: Makes::Nothing, record: None };
        match self.shard.try_run(verb, &run) {
            Some(FastPathRun::Seen(seen)) => seen.map(Some).map_err(translate::failure),
            Some(FastPathRun::Changed { .. } | FastPathRun::Placed(_)) | None => Ok(None),
        }
    }

    /// [`RequestHandler::change`] without waiting; `None`: that cannot be.
    pub fn try_change<V: Verb>(
        &self,
        verb: &V,
        address: RequestAddress,
        makes: Makes,
        reply: impl Fn(&V::Outcome) -> Reply,
    ) -> Result<Option<ImmediateResult>, CallFailure> {
        self.fast_path(address, makes, reply, |run| self.shard.try_run(verb, &run))
    }

    /// [`RequestHandler::change_placed`] without waiting, where the rows are appended; `None`: that cannot be.
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
            Some(FastPathRun::Placed(placed)) => Some(ImmediateResult::Placed(placed)),
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

    /// The first answer once more. A file that it says is open in this session is open again, should the server have
    /// forgotten it since; and what was to be done beside the rows is done, should a server have died before it was.
    pub async fn replayed(&self, call: &Call, replied: Replied) -> Result<CompletedCall, CallFailure> {
        let body = self.shard.reply_again(replied).await.map_err(translate::failure)?;
        let opens = match call {
            Call::Open { mode, .. } => Some(*mode != OpenMode::Read),
            Call::Create { open: true, .. } => Some(true),
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
                message: format!("the recorded answer to call {:?} is damaged", self.id),
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

    /// Does what the change of `node` asked for beside the rows: a row that is still to be cut is, and the backing file
    /// gets the time and owner that were set. The call has not been answered yet, so none of it comes too late.
    async fn beside_again(&self, call: &Call, node: &NodeReply, body: &Bytes) -> Result<(), CallFailure> {
        let inode = InodeId(node.inode);
        let (locator, cuts) = match call {
            Call::Open { at, .. } | Call::MarkSizeStale { at, .. } => (at, true),
            Call::SetAttributes { at, set } => (at, set.size.is_some()),
            _ => return Ok(()),
        };
        if cuts {
            let (at, address) = self.at(locator.clone())?;
            // Whoever opens a file that is to be cut finishes it.
            let verb = Open { at, mode: OpenFor::Read, truncate: false, granted: Granted::Nothing };
            // Answered as before; and not at all, if that cannot be done and is given up.
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

    /// The right to write was checked when the file was opened. A client that speaks for many users is believed to have
    /// opened it, for it may have done so at a server before this one.
    pub fn check_may_write(&self, at: &At) -> Result<(), CallFailure> {
        self.check_has_open(at, true)
    }

    /// `inode`, where it may be that a client that speaks for one user, and opens a file again in its own name, was granted it by
    /// the server before this one: permissions may have been taken since. That is believed for as long as such clients are waited
    /// for, and lets it do nothing with the file.
    pub fn may_have_opened(&self, inode: InodeId) -> Option<InodeId> {
        (self.own_name && self.caller.forced.is_some() && !self.all_sessions_known()).then_some(inode)
    }

    /// What an open that is made again need not be asked. Of a client that speaks for many users the name says it, which is root's.
    pub fn granted_before(&self, inode: InodeId, writes: bool) -> Granted {
        let open_files = &self.worker.shared.open_files;
        match self.own_name && self.caller.forced.is_some() {
            true if open_files.has_open_to(self.caller.session, inode, writes) => Granted::All,
            true => Granted::ToOwner,
            false => Granted::Nothing,
        }
    }

    /// The same, of a file that this session has changed and closed since, or found left by others.
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

    /// An inode id as a client says it: one of a shard that there is.
    pub fn inode(&self, inode: u64) -> Result<InodeId, CallFailure> {
        let inode = InodeId(inode);
        let known = inode.shard().0 < self.worker.shared.settings.shards.get() && inode.0 != 0;
        if known { Ok(inode) } else { Err(errno(Errno::ESTALE)) }
    }

    /// A name in a directory, and where it is routed to.
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

    /// A file as a client finds it, and where that is routed to.
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

    /// A verb whose file the session holds open from the moment of the decision: until the reply has left, another
    /// session may remove the name, and must find the file open.
    /// `writes`: perhaps.
    pub fn opening<V>(&self, verb: V, writes: bool) -> OpeningVerb<'_, V> {
        let (session, open_files) = (self.caller.session, &self.worker.shared.open_files);
        OpeningVerb { verb, writes, opened_before: None, session, open_files }
    }

    /// A verb after which the session may change the size of the backing file of the file at `at`.
    pub fn resizing<V>(&self, at: At, verb: V) -> Resizing<'_, V> {
        Resizing { verb, at, session: self.caller.session, open_files: &self.worker.shared.open_files }
    }

    /// A verb that settles the size which the session has measured of the file at `at`.
    pub fn measured_size<V>(&self, at: At, verb: V) -> MeasuredSizeVerb<'_, V> {
        self.taking(at, verb, MeasureTime::Last)
    }

    /// A verb that notes what the session has measured of the file at `at`, which it goes on to change.
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

    /// How long clients of the server before this one may still come with what they have open.
    pub fn until_sessions_are_known(&self) -> Duration {
        let shared = &self.worker.shared;
        shared.sessions_known_from.since(shared.clock.monotonic())
    }

    /// Nobody writes the file or has still to settle it, this session included.
    pub fn left_by_all(&self, inode: InodeId) -> bool {
        self.all_sessions_known() && !self.worker.shared.open_files.is_written(inode)
    }

    /// A hash of the partition that this shard has of `directory`, if it has one: the lowest, which it keeps however
    /// often it is cut.
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
    /// If it may not be opened now, the file stays as if it were open.
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
        if let (Decision::Refuse(namespace::Refusal::Errno(Errno::EACCES)), Some(inode)) =
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
            let others = match namespace::nobody_writes(seen, &self.at) {
                true => OtherWriters::Known,
                false => OtherWriters::Perhaps,
            };
            self.open_files.changes_size(self.session, node.inode, others);
        }
        Ok(decision)
    }
}

/// Who has measured which file, and by which call that is told.
struct Measuring<'a> {
    at: At,
    session: SessionId,
    by: MeasuredBy,
    reported: MeasureTime,
    open_files: &'a OpenFiles,
    /// All sessions that write something have told so, should this server be another one's successor. Before that, only
    /// the writers of files of which the rows said at some time that nobody writes them are all known.
    all_known: bool,
}

/// When a session has measured a file.
#[derive(Clone, Copy)]
enum MeasureTime {
    /// When it had closed it.
    Last,
    /// While it goes on to write it.
    Underway,
}

impl Measuring<'_> {
    /// Whether what was measured is right, given that all writers are known.
    fn is_right(&self, inode: InodeId) -> bool {
        match self.reported {
            MeasureTime::Last => self.open_files.records_size(self.session, inode, self.by),
            MeasureTime::Underway => self.open_files.measures_alone(self.session, inode),
        }
    }
}

/// A verb that takes a size which a session has measured, where that is right.
pub struct MeasuredSizeVerb<'a, V> {
    verb: V,
    measuring: Measuring<'a>,
    /// Whether it was not taken because writers may be about that are not known yet.
    pub writers_unknown: Cell<bool>,
}

impl<V: Verb<Outcome = Node>> Verb for MeasuredSizeVerb<'_, V> {
    type Outcome = Node;

    /// Answers the file as it is where what was measured may not be its size.
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
            Decision::Refuse(namespace::Refusal::Stale(_)) => true,
            // Renamed or removed by another session: whoever opens it next settles it. (By its inode it is asked for last.)
            Decision::Refuse(namespace::Refusal::NotHere) => matches!(at, At::Inode(_)),
            _ => false,
        };
        if for_nothing && matches!(reported, MeasureTime::Last) {
            open_files.done(*session, at.inode());
        }
        Ok(match decision {
            Decision::Commit { outcome, .. } if !takes(outcome.inode) => {
                let content = match namespace::size_state(seen, at) {
                    Some(size) => NodeContent::Backing(size),
                    None => outcome.content,
                };
                Decision::Answer(Node { content, ..outcome })
            }
            decision => decision,
        })
    }
}
