//! Hands a shard over to its next owner in the same server while both live.
//!
//! 1. The caller flushes the table while the shard serves, so that the next owner has little to replay.
//! 2. The caller lets no new call begin, and waits until those in progress have ended. Calls that end something
//!    (`PeerCall::ends_something`) still begin.
//! 3. The shard is closed with its log synced and otherwise left as it is.
//!
//! Background tasks of the shard may leave work undone. The next owner finds it by its rows, as after a crash: splits,
//! transactions to carry out, backing files and orphans to remove.

use super::calls_in_progress::{CallInProgress, CallOrigin};
use super::open::ShardError;
use super::shard::Shard;

impl Shard {
    /// To be held while a call is in progress, from before its decision until its reply.
    pub fn begin_call(&self, origin: CallOrigin) -> CallInProgress {
        self.calls.begin(origin)
    }

    /// Returns when no call of `origin` is in progress. The caller keeps new ones from beginning.
    pub async fn calls_ended(&self, origin: CallOrigin) {
        self.calls.ended(origin).await;
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
