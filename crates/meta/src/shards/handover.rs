//! Hands a shard over to its next owner in the same server while both live.
//!
//! 1. The caller flushes the table while the shard serves, so that the next owner has little to replay.
//! 2. The caller lets no new call begin, and waits until those in progress have ended. Calls that end something
//!    (`PeerCall::ends_something`) still begin.
//! 3. The shard is closed with its log synced and otherwise left as it is.
//!
//! Background tasks of the shard may leave work undone. The next owner finds it by its rows, as after a crash: splits,
//! transactions to carry out, backing files and orphans to remove.

use super::open::ShardError;
use super::shard::Shard;
use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::Notify;

/// The caller of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrigin {
    Client,
    /// Another shard.
    Peer,
}

/// Counts the calls in progress at a shard.
#[derive(Default)]
pub(super) struct CallsInProgress {
    of_clients: Cell<usize>,
    of_peers: Cell<usize>,
    /// A handover waits for their end.
    awaited: Cell<bool>,
    ended: Notify,
}

impl CallsInProgress {
    fn count(&self, origin: CallOrigin) -> &Cell<usize> {
        match origin {
            CallOrigin::Client => &self.of_clients,
            CallOrigin::Peer => &self.of_peers,
        }
    }
}

/// A call in progress at a shard, until dropped.
pub struct CallInProgress(Rc<CallsInProgress>, CallOrigin);

impl Drop for CallInProgress {
    fn drop(&mut self) {
        let CallInProgress(calls, origin) = self;
        let count = calls.count(*origin);
        count.set(count.get() - 1);
        if calls.awaited.get() && count.get() == 0 {
            calls.ended.notify_waiters();
        }
    }
}

impl Shard {
    /// To be held while a call is in progress, from before its decision until its reply.
    pub fn begin_call(&self, origin: CallOrigin) -> CallInProgress {
        let count = self.calls.count(origin);
        count.set(count.get() + 1);
        CallInProgress(Rc::clone(&self.calls), origin)
    }

    /// Returns when no call of `origin` is in progress. The caller keeps new ones from beginning.
    pub async fn calls_ended(&self, origin: CallOrigin) {
        self.calls.awaited.set(true);
        loop {
            let ended = self.calls.ended.notified();
            if self.calls.count(origin).get() == 0 {
                break;
            }
            ended.await;
        }
        self.calls.awaited.set(false);
    }

    /// Moves all rows in memory into tables. Fails soon if the store refuses a table.
    pub async fn flush(&self) -> Result<(), ShardError> {
        Ok(self.table.flush().await?)
    }

    /// Writes and syncs all decided changes and closes the table without a flush. No call may be in progress. After an
    /// error the shard is as after a failure of its store.
    pub async fn close_for_successor(&self) -> Result<(), ShardError> {
        let batch = self.state.borrow().open.number;
        self.appended(batch).await?;
        self.sync().await?;
        self.end();
        Ok(self.table.close_unflushed().await?)
    }

    /// Whether another server has taken the shard over.
    pub fn is_fenced(&self) -> bool {
        self.table.is_fenced()
    }
}
