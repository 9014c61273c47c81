//! Calls that register what a session does with a file: it opens the file, changes its size, or reports the size that it
//! has measured. The verbs only decide. The shard in the file's number registers with the decision how the session uses
//! the file.

use super::super::sessions::Admitted;
use super::super::worker::Worker;
use super::request_handler::{CompletedCall, RequestHandler};
use super::{errno, translate};
use crate::shards::{
    FileUse, Judging, MeasureTime, MeasureVerdict, Measurement, OpenedFor, OtherWriters, Registrar, RequestAddress,
    SizeUse,
};
use std::cell::Cell;
use std::time::Duration;
use varve_posix::{At, Context, Decision, Granted, MissingKeys, Node, NodeContent, Refusal, Verb, View};
use varve_proto::{CallFailure, OpenedBefore, REGISTERED_FILES_MAX, Reply};
use varve_types::{Errno, FileKind, InodeId, SessionId, ShardId};

/// The outcome of a verb that may let the session change a backing file.
pub struct ResizedNode {
    pub node: Node,
    /// Whether others may be writing the backing file; `None`: it has none.
    others: Option<OtherWriters>,
}

/// A verb that allows the session to change the size of the backing file of the file at `at`.
pub struct Resizing<V> {
    pub verb: V,
    pub at: At,
}

impl<V: Verb<Outcome = Node>> Verb for Resizing<V> {
    type Outcome = ResizedNode;

    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<ResizedNode>, MissingKeys> {
        let resized = |node: Node| {
            let others = match varve_posix::nobody_writes(seen, &self.at) {
                true => OtherWriters::Known,
                false => OtherWriters::Perhaps,
            };
            let others = matches!(node.content, NodeContent::Backing { .. }).then_some(others);
            ResizedNode { node, others }
        };
        Ok(match self.verb.decide(seen, context)? {
            Decision::Refuse(refusal) => Decision::Refuse(refusal),
            Decision::Answer(node) => Decision::Answer(resized(node)),
            Decision::Commit { changes, effects, outcome } => {
                Decision::Commit { changes, effects, outcome: resized(outcome) }
            }
        })
    }
}

/// The outcome of a verb that may record a measured size.
pub struct MeasuredNode {
    pub node: Node,
    /// `None`: the row made the measurement superfluous.
    verdict: Option<MeasureVerdict>,
}

impl MeasuredNode {
    /// The size was not recorded because there may be writers that are known only after this time.
    pub fn writers_unknown(&self) -> Option<Duration> {
        match self.verdict {
            Some(MeasureVerdict::WritersUnknown(wait)) => Some(wait),
            Some(MeasureVerdict::Right | MeasureVerdict::Wrong) | None => None,
        }
    }
}

/// A verb that records a size measured by a session, if the measurement is correct. Otherwise it returns the file
/// unchanged.
pub struct MeasuredSizeVerb<'a, V> {
    pub verb: V,
    pub at: At,
    pub judging: Judging<'a>,
}

impl<V: Verb<Outcome = Node>> Verb for MeasuredSizeVerb<'_, V> {
    type Outcome = MeasuredNode;

    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<MeasuredNode>, MissingKeys> {
        let (changes, effects, node) = match self.verb.decide(seen, context)? {
            Decision::Refuse(refusal) => return Ok(Decision::Refuse(refusal)),
            Decision::Answer(node) => return Ok(Decision::Answer(MeasuredNode { node, verdict: None })),
            Decision::Commit { changes, effects, outcome } => (changes, effects, outcome),
        };
        let verdict = self.judging.verdict();
        if verdict == MeasureVerdict::Right {
            let outcome = MeasuredNode { node, verdict: Some(verdict) };
            return Ok(Decision::Commit { changes, effects, outcome });
        }
        let content = match varve_posix::size_state(seen, &self.at) {
            Some(size) => NodeContent::Backing(size),
            None => node.content,
        };
        Ok(Decision::Answer(MeasuredNode { node: Node { content, ..node }, verdict: Some(verdict) }))
    }
}

/// How the session uses a file after a measurement, once the verb has decided.
fn use_of_measured(at: &At, measurement: &Measurement, decided: Result<&MeasuredNode, &Refusal>) -> Option<FileUse> {
    let Measurement { session, inode, by, time } = *measurement;
    let for_nothing = match decided {
        Ok(MeasuredNode { verdict: Some(MeasureVerdict::WritersUnknown(_)), .. }) => return None,
        Ok(MeasuredNode { verdict: Some(_), .. }) => {
            return Some(FileUse::size(session, inode, SizeUse::Measured(by, time)));
        }
        Ok(MeasuredNode { verdict: None, .. }) | Err(Refusal::Stale(_)) => true,
        // Another session renamed or removed the file, and the next session that opens it records the size. (The client
        // tries by inode last.)
        Err(Refusal::NotHere) => matches!(at, At::Inode(_)),
        Err(_) => false,
    };
    (for_nothing && time == MeasureTime::Last).then(|| FileUse::size(session, inode, SizeUse::Done))
}

/// The session has opened the file that a verb returns. `writes`: it may write the file.
pub fn use_of_opened(session: SessionId, writes: bool, decided: Result<&Node, &Refusal>) -> Option<FileUse> {
    let node = decided.ok().filter(|node| node.attributes.kind != FileKind::Directory)?;
    Some(FileUse::open(session, node.inode, writes))
}

/// Registers files that the session has had open since an earlier server. The shard in their numbers need not be open:
/// other shards may already depend on what is open.
pub fn register_again(
    worker: &Worker,
    caller: &Admitted,
    shard: ShardId,
    files: &[OpenedBefore],
) -> Result<Reply, CallFailure> {
    let open_files = worker.open_files_now(shard)?;
    // The rows, which say what a client that does not speak for many users may open, may be at other shards.
    if caller.forced.is_some() {
        return Err(errno(Errno::EPERM));
    }
    if files.len() > REGISTERED_FILES_MAX || files.iter().any(|file| InodeId(file.inode).shard() != shard) {
        return Err(errno(Errno::EINVAL));
    }
    for file in files {
        open_files.open(caller.session, InodeId(file.inode), file.writes && !caller.observer);
    }
    Ok(Reply::Done)
}

impl RequestHandler<'_> {
    /// Opens the file at `at` without truncating it. The second field says that no session writes the file or had yet
    /// to record its size, this session included.
    pub async fn open_file<V: Verb<Outcome = Node>>(
        &self,
        verb: &V,
        at: &At,
        address: RequestAddress,
        writes: bool,
    ) -> Result<(Node, bool), CallFailure> {
        let session = self.caller.session;
        // A single-user client that opens a file again in its own name may have been granted it by the previous server.
        // The permissions may have been revoked since: then the file is kept for it, without access.
        let may_have_opened = self.own_name && self.caller.forced.is_some();
        let of = |decided: Result<&Node, &Refusal>| match decided {
            Err(Refusal::Errno(Errno::EACCES)) if may_have_opened => {
                Some(FileUse { session, inode: at.inode(), opened: Some(OpenedFor::Keeping), size: None })
            }
            decided => use_of_opened(session, writes, decided),
        };
        let writer_gone = Cell::new(false);
        let registrar = Registrar { of: &of, writer_gone: &writer_gone };
        let node = self.ask_registering(verb, address, Some(registrar)).await?;
        Ok((node, writer_gone.get()))
    }

    /// Runs a verb after which the session may change the size of the backing file. `opens`: the verb also opens the
    /// file, for writing if `Some(true)`.
    pub async fn resize<V: Verb<Outcome = Node>>(
        &self,
        verb: V,
        at: At,
        address: RequestAddress,
        opens: Option<bool>,
    ) -> Result<CompletedCall, CallFailure> {
        let session = self.caller.session;
        let of = |decided: Result<&ResizedNode, &Refusal>| {
            let ResizedNode { node, others } = decided.ok()?;
            let opened = opens.and_then(|writes| use_of_opened(session, writes, Ok(node)));
            let size = others.map(SizeUse::Changes);
            if opened.is_none() && size.is_none() {
                return None;
            }
            Some(FileUse { session, inode: node.inode, opened: opened.and_then(|opened| opened.opened), size })
        };
        let registrar = Registrar { of: &of, writer_gone: &Cell::new(false) };
        self.change_node(&Resizing { verb, at }, address, Some(registrar), |resized| &resized.node).await
    }

    /// Runs a verb that records the size that the session has measured of the file at `at`. The second field is as in
    /// [`MeasuredNode::writers_unknown`].
    pub async fn record_measured<V: Verb<Outcome = Node>>(
        &self,
        verb: V,
        at: At,
        address: RequestAddress,
        time: MeasureTime,
    ) -> Result<(CompletedCall, Option<Duration>), CallFailure> {
        let by = (self.id.slot, self.id.number);
        let measurement = Measurement { session: self.caller.session, inode: at.inode(), by, time };
        let judging = Box::pin(self.shard.judging(measurement)).await.map_err(translate::failure)?;
        let of = |decided: Result<&MeasuredNode, &Refusal>| use_of_measured(&at, &measurement, decided);
        let registrar = Registrar { of: &of, writer_gone: &Cell::new(false) };
        let verb = MeasuredSizeVerb { verb, at: at.clone(), judging };
        let writers_unknown = Cell::new(None);
        let answered = self.change_node(&verb, address, Some(registrar), |measured| {
            writers_unknown.set(measured.writers_unknown());
            &measured.node
        });
        let answered = answered.await?;
        Ok((answered, writers_unknown.get()))
    }

    /// Requires that the session has the file open for writing; the right to write was checked at that open. A client
    /// that speaks for many users is trusted, because it may have opened the file at a previous server.
    pub async fn check_may_write(&self, at: &At) -> Result<(), CallFailure> {
        self.check_has_open(at, true, false).await
    }

    /// Like [`RequestHandler::check_may_write`], for a file that this session has changed and closed since, or whose
    /// writers are gone.
    pub async fn check_was_written(&self, at: &At) -> Result<(), CallFailure> {
        self.check_has_open(at, false, true).await
    }

    async fn check_has_open(&self, at: &At, writes: bool, or_changed: bool) -> Result<(), CallFailure> {
        if self.caller.forced.is_none() || self.session_has_open(at.inode(), writes, or_changed).await? {
            return Ok(());
        }
        Err(errno(Errno::EBADF))
    }

    async fn session_has_open(&self, inode: InodeId, writes: bool, or_changed: bool) -> Result<bool, CallFailure> {
        let asked = self.shard.session_has_open(self.caller.session, inode, writes, or_changed);
        Box::pin(asked).await.map_err(translate::failure)
    }

    /// Which permission checks a repeated open skips. A client that speaks for many users sends root's credentials,
    /// which pass the checks anyway.
    pub async fn granted_before(&self, inode: InodeId, writes: bool) -> Result<Granted, CallFailure> {
        if !self.own_name || self.caller.forced.is_none() {
            return Ok(Granted::Nothing);
        }
        let has_open = self.session_has_open(inode, writes, false).await?;
        Ok(if has_open { Granted::All } else { Granted::ToOwner })
    }
}
