//! Allocates inode ids. An id is never allocated twice: a block of counters is recorded and fsynced before any of them
//! is used, and ids that a dead epoch left unused stay unused.

use super::inode_block::BLOCK;
use super::peers::{PeerCall, PeerReply, unexpected};
use super::refusal::ShardRefusal;
use super::shard::Shard;
use std::rc::Rc;
use varve_schema::{Change, CounterRow, Key, Row};
use varve_types::{Errno, InodeId, ShardId};

/// Ids fetched from another shard in one step, for directories whose home it will be.
const BORROWED: u64 = 64;

impl Shard {
    /// A new id of this shard.
    pub(super) async fn fresh_inode(self: &Rc<Self>) -> Result<InodeId, ShardRefusal> {
        match self.inode_at_hand() {
            Some(inode) => Ok(inode),
            None => Ok(InodeId::new(self.id, Box::pin(self.fresh_counters(1)).await?)),
        }
    }

    /// A new id of this shard, if the current block has one left.
    pub(super) fn inode_at_hand(&self) -> Option<InodeId> {
        let counter = self.state.borrow_mut().inodes.allocate(1)?;
        Some(InodeId::new(self.id, counter))
    }

    /// The first of `count` new counters.
    pub(super) async fn fresh_counters(self: &Rc<Self>, count: u64) -> Result<u64, ShardRefusal> {
        if count > BLOCK {
            return Err(ShardRefusal::Failed(format!("{count} ids asked for at once, of blocks of {BLOCK}").into()));
        }
        loop {
            let batch = {
                let mut state = self.state.borrow_mut();
                let block = &mut state.inodes;
                if let Some(first) = block.allocate(count) {
                    return Ok(first);
                }
                if block.is_taking() {
                    None
                } else {
                    let Some(end) = block.begin_take() else {
                        tracing::error!("shard {} has no inode ids left", self.id);
                        return Err(Errno::ENOSPC.into());
                    };
                    self.apply(&mut state, Change::put(Key::Counter, Row::Counter(CounterRow { inodes_end: end })));
                    Some((state.open.number, end))
                }
            };
            let Some((batch, end)) = batch else {
                self.wait_until(|state| !state.inodes.is_taking()).await?;
                continue;
            };
            self.work.notify_one();
            let recorded = match self.appended(batch).await {
                Ok(()) => self.sync().await,
                Err(refusal) => Err(refusal),
            };
            self.state.borrow_mut().inodes.end_take(recorded.is_ok().then_some(end));
            self.changed.notify_waiters();
            recorded?;
        }
    }

    /// A new id of `home`, if one is available without a call.
    pub(super) fn inode_of_at_hand(&self, home: ShardId) -> Option<InodeId> {
        if home == self.id {
            return self.inode_at_hand();
        }
        let counter = self.state.borrow_mut().inodes.allocate_borrowed(home)?;
        Some(InodeId::new(home, counter))
    }

    /// A new id of `home`.
    pub(super) async fn fresh_inode_of(self: &Rc<Self>, home: ShardId) -> Result<InodeId, ShardRefusal> {
        if home == self.id {
            return self.fresh_inode().await;
        }
        if let Some(cause) = self.takes_no_changes() {
            return Err(ShardRefusal::Failed(cause));
        }
        loop {
            if let Some(inode) = self.inode_of_at_hand(home) {
                return Ok(inode);
            }
            match self.peers.call(home, PeerCall::FreshInodes(BORROWED)).await {
                PeerReply::InodesFrom(first) => {
                    // Two requests may borrow at the same time; the ids of the replaced block are lost, not allocated
                    // twice.
                    self.state.borrow_mut().inodes.borrow_from(home, first..first + BORROWED);
                }
                PeerReply::Busy => return Err(ShardRefusal::Busy),
                other => return Err(unexpected(other, format_args!("shard {home} gave no inode ids"))),
            }
        }
    }
}
