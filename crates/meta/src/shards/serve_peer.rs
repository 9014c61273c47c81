//! Serves calls from other shards.

use super::fetch::peer_reply;
use super::peers::{LOST, PeerCall, PeerReply, PeerRequest, PeerResponse, unexpected};
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::shard::Shard;
use super::transaction_parts::is_about;
use std::rc::Rc;
use varve_posix::KeyState;
use varve_schema::{Change, Key, Row};
use varve_types::{InodeId, ShardId};

impl Shard {
    /// Carries out a request of another shard, unless its terms or its id forbid it.
    pub async fn serve(self: &Rc<Self>, request: PeerRequest) -> PeerResponse {
        if matches!(request.call, PeerCall::Files(_)) && request.to == self.id {
            return self.open_files.serve(request, self.settings.shards, self.clock.monotonic());
        }
        let reply = match self.peers.admit(&request) {
            Ok(()) => self.peer_call(request.call).await,
            Err(refused) => refused,
        };
        self.peers.respond(request.id, reply)
    }

    /// Handles one call. Large branches are boxed: together they would make a future of 8 KB, moved for every call.
    pub(super) async fn peer_call(self: &Rc<Self>, call: PeerCall) -> PeerReply {
        if let Some(cause) = self.failed() {
            return PeerReply::Failed(cause);
        }
        if let Some(cause) = self.takes_no_changes()
            && !call.only_reads()
        {
            return PeerReply::Failed(cause);
        }
        match call {
            PeerCall::Fetch(keys) => Box::pin(self.rows_for_peer(keys)).await,
            PeerCall::FetchToRemove(transaction, keys) => Box::pin(self.rows_to_remove(transaction, keys)).await,
            PeerCall::Map(directory) => Box::pin(self.map_for_peer(directory)).await,
            PeerCall::FreshInodes(count) => match self.fresh_counters(count).await {
                Ok(first) => PeerReply::InodesFrom(first),
                Err(refusal) => peer_reply(refusal),
            },
            PeerCall::Apply(changes) => self.apply_for_peer(changes).await,
            PeerCall::Prepare(transaction, intent, unopened, session) => {
                Box::pin(self.prepare(transaction, intent, &unopened, session)).await
            }
            PeerCall::Resolve { transaction, commit } => Box::pin(self.resolve(transaction, commit)).await,
            PeerCall::Settle(transactions) => Box::pin(self.settle(transactions)).await,
            PeerCall::Outcome(transaction) => Box::pin(self.outcome(transaction)).await,
            PeerCall::IsPrepared(transaction) => self.is_prepared(transaction).await,
            PeerCall::LearnMap { directory, map } => Box::pin(self.learn_map_at_home(directory, map)).await,
            PeerCall::ImportBegin { directory, attempt } => {
                Box::pin(self.import_begin(directory, attempt)).await.map_or_else(peer_reply, |()| PeerReply::Done)
            }
            PeerCall::ImportRows { directory, attempt, changes, replies } => {
                let imported = Box::pin(self.import_rows(directory, attempt, changes, replies)).await;
                imported.map_or_else(peer_reply, |()| PeerReply::Done)
            }
            PeerCall::ImportEnd { directory, attempt, partition } => {
                Box::pin(self.import_end(directory, attempt, partition)).await.unwrap_or_else(peer_reply)
            }
            PeerCall::ImportLive { directory, .. } => match Box::pin(self.load_partition(directory)).await {
                Ok(()) => PeerReply::Done,
                Err(refusal) => peer_reply(refusal),
            },
            PeerCall::SplitOutcome { directory, index } => Box::pin(self.split_outcome(directory, index)).await,
            PeerCall::Files(call) => PeerReply::Files(self.open_files.answer(call, self.clock.monotonic())),
        }
    }

    async fn map_for_peer(self: &Rc<Self>, directory: InodeId) -> PeerReply {
        let key = Key::Directory(directory);
        if let Err(refusal) = self.fetch_here(&key).await {
            return peer_reply(refusal);
        }
        match self.seen_here(&self.state.borrow(), &key).0 {
            KeyState::Present(Row::Directory(row)) => PeerReply::Map(row.map.clone()),
            KeyState::Unknown => PeerReply::Busy,
            _ => PeerReply::Absent,
        }
    }

    /// Applies rows that no other request can know of. Replies when they are appended.
    async fn apply_for_peer(self: &Rc<Self>, changes: Vec<Change>) -> PeerReply {
        if let Err(refused) = self.may_apply(&changes) {
            return refused;
        }
        let batch = self.take_rows(changes);
        self.appended(batch).await.map_or_else(peer_reply, |()| PeerReply::Done)
    }

    /// Refuses rows that others may know of. A late or repeated call must not put the empty partition row of a directory
    /// back; the request's terms and id exclude that, and this check shows a fault of theirs.
    fn may_apply(&self, changes: &[Change]) -> Result<(), PeerReply> {
        let state = self.state.borrow();
        let Some(Key::Partition(inode, _) | Key::Directory(inode) | Key::Inode(inode)) =
            changes.first().and_then(Change::key)
        else {
            return Err(PeerReply::Failed("a call applies rows of no inode".into()));
        };
        let fits = |change: &Change| is_about(change, *inode) && self.is_here(&state, change);
        let is_new = |change: &Change| {
            let known = change.put_key().map(|key| state.resident.seen(key).0);
            !matches!(known, Some(KeyState::Present(_)))
        };
        match changes.iter().all(|change| fits(change) && is_new(change) && !self.must_wait(&state, change)) {
            true => Ok(()),
            false => Err(PeerReply::Failed(format!("others may know the rows of inode {inode}").into())),
        }
    }

    /// Applies such rows. They may be shown once the returned batch is appended.
    pub(super) fn take_rows(&self, changes: Vec<Change>) -> BatchNumber {
        let mut state = self.state.borrow_mut();
        changes.into_iter().for_each(|change| self.apply(&mut state, change));
        let batch = state.open.number;
        drop(state);
        self.work.notify_one();
        batch
    }

    /// Stores the rows of a fresh inode at its home, before this shard decides on its entry.
    pub(super) async fn place_fresh(&self, fresh: InodeId, changes: Vec<Change>) -> Result<(), ShardRefusal> {
        placed_by(fresh.shard(), self.peers.call(fresh.shard(), PeerCall::Apply(changes)).await)
    }

    /// Removes the rows that [`Shard::place_fresh`] stored. Called only after a definite refusal of the entry: an entry
    /// that is only late would name a directory without rows. If the removal fails, the rows stay as debris that no
    /// name reaches and that cannot collide with another inode; fsck removes it.
    pub(super) async fn withdraw(&self, fresh: InodeId, placed: Vec<Key>) {
        let deletes = placed.into_iter().map(Change::Delete);
        match self.peers.call(fresh.shard(), PeerCall::Apply(deletes.collect())).await {
            PeerReply::Done => {}
            other => tracing::warn!("cannot remove the rows of inode {fresh}, which has no name: {other:?}"),
        }
    }
}

/// Whether `home` has stored the rows of a fresh inode, by its reply. `Busy`: it has not.
pub(super) fn placed_by(home: ShardId, reply: PeerReply) -> Result<(), ShardRefusal> {
    match reply {
        PeerReply::Done => Ok(()),
        PeerReply::Busy => Err(ShardRefusal::Busy),
        // The outcome is unknown.
        PeerReply::Failed(cause) if cause.errno == LOST => Err(ShardRefusal::Failed(cause)),
        other => Err(unexpected(other, format_args!("home shard {home} accepted no rows"))),
    }
}
