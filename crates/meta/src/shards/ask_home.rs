//! Asks the shard in a file's number about who has the file open, and registers opens there
//! ([`super::opens_elsewhere`]).

use super::open_files::{FileUse, MeasureVerdict, Measurement};
use super::opens_elsewhere::{AskedFiles, Grant, OpennessWatch, file_in};
use super::peers::{self, FileCall, FileReply, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use std::collections::BTreeMap;
use varve_posix::KeyState;
use varve_schema::Key;
use varve_types::{InodeId, SessionId, ShardId};

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
            asked.forget(&inodes);
            match self.ask_home(home, FileCall::AreOpen(inodes)).await? {
                FileReply::Openness(answers) => asked.add(watches.into_iter().zip(answers)),
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

fn unexpected(home: ShardId, reply: &FileReply) -> ShardRefusal {
    ShardRefusal::Failed(format!("shard {home} gave another answer about its open files: {reply:?}").into())
}
