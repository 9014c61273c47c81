//! Shards that the workers of a server have released because another server opened them, for the thread of the
//! membership: it takes a shard back that the cluster's map still gives to this server.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;
use varve_cluster::map::Term;
use varve_types::ShardId;

/// At most one report for each shard.
#[derive(Default)]
pub struct ReleasedShards {
    /// With the term in which this server had the shard.
    shards: Mutex<BTreeMap<ShardId, Term>>,
    changed: Notify,
}

impl ReleasedShards {
    pub fn report(&self, shard: ShardId, term: Term) {
        self.shards.lock().insert(shard, term);
        self.changed.notify_one();
    }

    /// Waits for a report and takes it.
    pub async fn next(&self) -> (ShardId, Term) {
        loop {
            if let Some(report) = self.shards.lock().pop_first() {
                return report;
            }
            self.changed.notified().await;
        }
    }
}
