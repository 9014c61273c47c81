//! Files whose row is in this shard and whose number is another shard's, which keeps who has them open
//! ([`super::open_files`]). Usually both are one shard, and nothing here is needed.
//!
//! An open is decided here and registered there, and only then answered. A change that is allowed only if nobody has
//! the file open asks there before it is decided. Between the two:
//!
//! - While an open is being registered, the row is not changed ([`Shard::must_wait`]). So the other shard knows of the
//!   open before anything can depend on it.
//! - The answer "not open" holds until this shard has registered another open of the file. A decision that finds it
//!   outdated asks again. No other shard can grant an open, because it would need the row.
//! - If the row is at a participant of a cross-shard change, the participant asks, and locks the row in the same step in
//!   which it finds the answer still valid. From then on nobody sees the row.
//! - If a split takes the row away while an open is being registered, the open is answered with `Moved`.

use super::open_files::{FileUse, MeasureVerdict, Measurement, Openness};
use super::peers::{self, FileCall, FileReply, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use varve_env::key_hash::KeyHashing;
use varve_posix::KeyState;
use varve_schema::{EntryBody, Key, Row};
use varve_types::{InodeId, SessionId, ShardId};

/// Registrations and questions of this shard in progress, about files of other shards.
#[derive(Clone, Default)]
pub(super) struct OpensElsewhere(Rc<RefCell<HashMap<InodeId, FileElsewhere, KeyHashing>>>);

#[derive(Default)]
struct FileElsewhere {
    /// Opens that are being registered.
    registering: u32,
    /// Decisions that wait for an answer about the file or rely on one.
    watches: u32,
    /// Changes when an answer is outdated.
    version: u64,
}

impl OpensElsewhere {
    /// Begins to register an open that is decided.
    fn grant(&self, used: FileUse) -> Grant {
        self.0.borrow_mut().entry(used.inode).or_default().registering += 1;
        Grant { files: self.clone(), used }
    }

    /// Must be called before the question is sent.
    fn watch(&self, inode: InodeId) -> OpennessWatch {
        let mut files = self.0.borrow_mut();
        let file = files.entry(inode).or_default();
        file.watches += 1;
        OpennessWatch { files: self.clone(), inode, version: file.version }
    }

    fn is_registering(&self, inode: InodeId) -> bool {
        self.0.borrow().get(&inode).is_some_and(|file| file.registering > 0)
    }

    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Answers about the file are outdated.
    fn outdate(&self, inode: InodeId) {
        if let Some(file) = self.0.borrow_mut().get_mut(&inode) {
            file.version += 1;
        }
    }

    fn leave(&self, inode: InodeId, leave: impl FnOnce(&mut FileElsewhere)) {
        let mut files = self.0.borrow_mut();
        let Some(file) = files.get_mut(&inode) else { return };
        leave(file);
        if file.registering == 0 && file.watches == 0 {
            files.remove(&inode);
        }
    }
}

/// A decided use of a file that is not registered yet.
pub(super) struct Grant {
    files: OpensElsewhere,
    used: FileUse,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.files.leave(self.used.inode, |file| {
            file.registering -= 1;
            file.version += 1;
        });
    }
}

/// Notices whether an answer about a file may be outdated.
struct OpennessWatch {
    files: OpensElsewhere,
    inode: InodeId,
    version: u64,
}

impl OpennessWatch {
    fn is_valid(&self) -> bool {
        self.files.0.borrow().get(&self.inode).is_some_and(|file| file.version == self.version)
    }
}

impl Drop for OpennessWatch {
    fn drop(&mut self) {
        self.files.leave(self.inode, |file| file.watches -= 1);
    }
}

/// Answers of other shards, for one decision.
#[derive(Default)]
pub(super) struct AskedFiles(Vec<(OpennessWatch, Openness)>);

impl AskedFiles {
    /// `None`: the other shard was not asked, or its answer is outdated.
    pub fn openness(&self, inode: InodeId) -> Option<Openness> {
        let answer = self.0.iter().find(|(watch, _)| watch.inode == inode && watch.is_valid());
        answer.map(|(_, openness)| *openness)
    }
}

/// How a measurement is judged at the time of a decision.
pub struct Judging<'a> {
    shard: &'a Shard,
    measurement: Measurement,
    /// The answer of the shard in the number, if that is another shard.
    asked: Option<(OpennessWatch, MeasureVerdict)>,
}

impl Judging<'_> {
    pub fn verdict(&self) -> MeasureVerdict {
        match &self.asked {
            None => self.shard.open_files.judge(&self.measurement, self.shard.clock.monotonic()),
            Some((watch, verdict)) if watch.is_valid() => *verdict,
            Some(_) => MeasureVerdict::Wrong,
        }
    }
}

impl Shard {
    /// Asks the shard `home`, which may be this one.
    async fn ask_home(&self, home: ShardId, call: FileCall) -> Result<FileReply, ShardRefusal> {
        if home == self.id {
            return Ok(self.open_files.answer(call, self.clock.monotonic()));
        }
        match self.peers.call(home, PeerCall::Files(call)).await {
            PeerReply::Files(reply) => Ok(reply),
            PeerReply::Busy => Err(ShardRefusal::Busy),
            other => Err(peers::unexpected(other, format_args!("shard {home} did not answer about its open files"))),
        }
    }

    /// Asks other shards whether these files of theirs are open.
    pub(super) async fn ask_openness(
        &self,
        inodes: impl IntoIterator<Item = InodeId>,
        asked: &mut AskedFiles,
    ) -> Result<(), ShardRefusal> {
        let mut by_home: BTreeMap<ShardId, Vec<InodeId>> = BTreeMap::new();
        inodes.into_iter().for_each(|inode| by_home.entry(inode.shard()).or_default().push(inode));
        for (home, inodes) in by_home {
            let watches: Vec<_> = inodes.iter().map(|inode| self.opens_elsewhere.watch(*inode)).collect();
            asked.0.retain(|(watch, _)| !inodes.contains(&watch.inode));
            match self.ask_home(home, FileCall::AreOpen(inodes)).await? {
                FileReply::Openness(answers) => asked.0.extend(watches.into_iter().zip(answers)),
                other => return Err(unexpected(home, &other)),
            }
        }
        Ok(())
    }

    /// Registers a decided use of a file here, or returns what must be sent to the shard in its number. The first field
    /// is as in [`super::OpenFiles::register`].
    pub(super) fn register_here(&self, used: FileUse) -> (bool, Option<Grant>) {
        match used.inode.shard() == self.id {
            true => (self.open_files.register(&used, self.clock.monotonic()), None),
            false => (false, Some(self.opens_elsewhere.grant(used))),
        }
    }

    /// Registers a use of a file at the shard in its number.
    pub(super) async fn register_elsewhere(&self, grant: Grant) -> Result<bool, ShardRefusal> {
        let home = grant.used.inode.shard();
        match self.ask_home(home, FileCall::Register(grant.used)).await? {
            FileReply::Registered { writer_gone } => Ok(writer_gone),
            other => Err(unexpected(home, &other)),
        }
    }

    /// Registers a use of a file that was decided before.
    pub async fn register(&self, used: FileUse) -> Result<(), ShardRefusal> {
        match self.register_here(used) {
            (_, Some(grant)) => self.register_elsewhere(grant).await.map(drop),
            (_, None) => Ok(()),
        }
    }

    /// See [`FileCall::HasOpen`].
    pub async fn session_has_open(
        &self,
        session: SessionId,
        inode: InodeId,
        writes: bool,
        or_changed: bool,
    ) -> Result<bool, ShardRefusal> {
        match self.ask_home(inode.shard(), FileCall::HasOpen { session, inode, writes, or_changed }).await? {
            FileReply::HasOpen(open) => Ok(open),
            other => Err(unexpected(inode.shard(), &other)),
        }
    }

    /// Asks for the judgement of a measurement, if another shard has to judge it.
    pub async fn judging(&self, measurement: Measurement) -> Result<Judging<'_>, ShardRefusal> {
        let home = measurement.inode.shard();
        if home == self.id {
            return Ok(Judging { shard: self, measurement, asked: None });
        }
        let watch = self.opens_elsewhere.watch(measurement.inode);
        match self.ask_home(home, FileCall::Judge(measurement)).await? {
            FileReply::Judged(verdict) => Ok(Judging { shard: self, measurement, asked: Some((watch, verdict)) }),
            other => Err(unexpected(home, &other)),
        }
    }

    /// The backing file of `inode` was truncated.
    pub(super) async fn note_size_changed(&self, inode: InodeId) -> Result<(), ShardRefusal> {
        let noted = self.ask_home(inode.shard(), FileCall::SizeChanged(inode)).await.map(drop);
        self.opens_elsewhere.outdate(inode);
        noted
    }

    #[cfg(test)]
    pub(super) fn is_asking_about_files(&self) -> bool {
        !self.opens_elsewhere.is_empty()
    }

    /// Whether an open of the file whose attributes are in this row is being registered at another shard.
    pub(super) fn is_being_opened(&self, state: &ShardState, key: &Key) -> bool {
        if self.opens_elsewhere.is_empty() {
            return false;
        }
        match state.resident.seen(key).0 {
            KeyState::Present(row) => file_in(key, row).is_some_and(|inode| self.opens_elsewhere.is_registering(inode)),
            KeyState::Unknown | KeyState::Absent => false,
        }
    }
}

/// The file whose attributes are in this row.
pub(super) fn file_in(key: &Key, row: &Row) -> Option<InodeId> {
    match (key, row) {
        (Key::Inode(inode), _) => Some(*inode),
        (_, Row::Entry(entry)) if matches!(entry.body, EntryBody::Node(_)) => Some(entry.inode),
        _ => None,
    }
}

fn unexpected(home: ShardId, reply: &FileReply) -> ShardRefusal {
    ShardRefusal::Failed(format!("shard {home} gave another answer about its open files: {reply:?}").into())
}
