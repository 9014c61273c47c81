//! Where new inode ids come from. An id is never made twice: a block of counters is recorded and fsynced before any of it
//! is used, and what a dead epoch left unused is never used.

use super::peers::{PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::shard::Shard;
use crate::tables::{Change, CounterRow, Key, Row};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use varve_env::key_hash::KeyHashing;
use varve_types::{Errno, InodeId, ShardId};

/// Ids recorded as used at a time. One fsync for so many creates; as many are lost at most when a server dies, of 2^48.
const BLOCK: u64 = 65_536;

/// Ids of another shard fetched at a time, for directories whose home it will be.
const BORROWED: u64 = 64;

#[derive(Default)]
pub(super) struct InodeBlock {
    /// Counters that may be given out.
    free: Range<u64>,
    /// Recorded end of the blocks taken so far.
    end: u64,
    taking: bool,
    /// Ids of other shards.
    borrowed: HashMap<ShardId, Range<u64>, KeyHashing>,
}

impl InodeBlock {
    /// `end` as recorded by earlier epochs.
    pub fn after(end: u64) -> InodeBlock {
        InodeBlock { free: end..end, end, ..InodeBlock::default() }
    }
}

impl Shard {
    /// An id of this shard that was never given before.
    pub(super) async fn fresh_inode(self: &Rc<Self>) -> Result<InodeId, ShardRefusal> {
        match self.inode_at_hand() {
            Some(inode) => Ok(inode),
            None => Ok(InodeId::new(self.id, Box::pin(self.fresh_counters(1)).await?)),
        }
    }

    /// The same, if no block must be taken for it.
    pub(super) fn inode_at_hand(&self) -> Option<InodeId> {
        let counter = self.state.borrow_mut().inodes.free.next()?;
        Some(InodeId::new(self.id, counter))
    }

    /// The first of `count` counters that were never given before.
    pub(super) async fn fresh_counters(self: &Rc<Self>, count: u64) -> Result<u64, ShardRefusal> {
        assert!(count <= BLOCK, "{count} ids asked for at once, of blocks of {BLOCK}");
        loop {
            let batch = {
                let mut state = self.state.borrow_mut();
                let block = &mut state.inodes;
                if block.free.end - block.free.start >= count {
                    let first = block.free.start;
                    block.free.start += count;
                    return Ok(first);
                }
                if block.taking {
                    None
                } else {
                    let end = block.end + BLOCK;
                    if end > InodeId::COUNTER_MAX {
                        tracing::error!("shard {} has given all the inode ids that it has", self.id);
                        return Err(Errno::ENOSPC.into());
                    }
                    block.taking = true;
                    self.apply(&mut state, Change::put(Key::Counter, Row::Counter(CounterRow { inodes_end: end })));
                    Some((state.open.number, end))
                }
            };
            let Some((batch, end)) = batch else {
                self.wait_until(|state| !state.inodes.taking).await?;
                continue;
            };
            self.work.notify_one();
            let recorded = match self.appended(batch).await {
                Ok(()) => self.sync().await,
                Err(refusal) => Err(refusal),
            };
            let mut state = self.state.borrow_mut();
            state.inodes.taking = false;
            if recorded.is_ok() {
                // What is left of the old block is adjacent to the new one.
                state.inodes.free.end = end;
                state.inodes.end = end;
            }
            drop(state);
            self.changed.notify_waiters();
            recorded?;
        }
    }

    /// An id of `home` that was never given before, if there is one at hand.
    pub(super) fn inode_of_at_hand(&self, home: ShardId) -> Option<InodeId> {
        if home == self.id {
            return self.inode_at_hand();
        }
        let counter = self.state.borrow_mut().inodes.borrowed.get_mut(&home)?.next()?;
        Some(InodeId::new(home, counter))
    }

    /// An id of `home` that was never given before.
    pub(super) async fn fresh_inode_of(self: &Rc<Self>, home: ShardId) -> Result<InodeId, ShardRefusal> {
        if home == self.id {
            return self.fresh_inode().await;
        }
        loop {
            if let Some(inode) = self.inode_of_at_hand(home) {
                return Ok(inode);
            }
            match self.peers.call(home, PeerCall::FreshInodes(BORROWED)).await {
                PeerReply::InodesFrom(first) => {
                    // Two requests may borrow at once; the ids of the block that is replaced are lost, not given twice.
                    self.state.borrow_mut().inodes.borrowed.insert(home, first..first + BORROWED);
                }
                PeerReply::Busy => return Err(ShardRefusal::Busy),
                other => return Err(other.unexpected(format_args!("shard {home} gave no inode ids"))),
            }
        }
    }
}
