//! A store that hangs: what was decided meanwhile is in memory alone, and nobody is told that it is done.

use super::cluster::{Cluster, name};
use crate::shards::{PeerCall, PeerReply, Peers};
use crate::tables::{Change, IntentRow, Key, TransactionId};
use std::time::Duration;
use varve_types::{Epoch, InodeId, ShardId};

/// Time for an answer that waits for nothing.
const NO_WAIT: Duration = Duration::from_millis(100);

/// Promise: a decided change is called applied when that is in the participant's log, whoever tells it to apply it and however
/// often; until then its coordinator keeps the decision. That one is aborted need not wait for the log.
#[test]
fn a_change_that_was_applied_a_moment_ago_is_done_when_that_is_in_the_log() {
    Cluster::run(2, 1000, |cluster| async move {
        let shard = ShardId(1);
        let directory = cluster.mkdir(InodeId::ROOT, "d", shard).await;
        cluster.create(directory, "f").await.unwrap();
        let transaction = TransactionId { coordinator: ShardId(0), epoch: Epoch(1), counter: 1_000 };
        let intent = IntentRow {
            participants: vec![shard],
            changes: vec![Change::Delete(Key::Entry(directory, name("f")))],
            reads: Vec::new(),
            reply: None,
        };
        let vote = cluster.peers.call(shard, PeerCall::Prepare(transaction, intent, Vec::new())).await;
        assert!(matches!(vote, PeerReply::Vote(true)), "{vote:?}");

        let moments = cluster.moments(shard);
        let hung = moments.hang().await;
        for told in ["first", "again"] {
            let apply = cluster.peers.call(shard, PeerCall::Resolve { transaction, commit: true });
            let applied = tokio::time::timeout(NO_WAIT, apply).await;
            assert!(applied.is_err(), "told {told}, it answers {applied:?}");
        }
        let other = TransactionId { counter: 1_001, ..transaction };
        let abort = cluster.peers.call(shard, PeerCall::Resolve { transaction: other, commit: false });
        assert!(matches!(tokio::time::timeout(NO_WAIT, abort).await, Ok(PeerReply::Done)));

        drop(hung);
        let applied = cluster.peers.call(shard, PeerCall::Resolve { transaction, commit: true }).await;
        assert!(matches!(applied, PeerReply::Done), "{applied:?}");
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.lookup(directory, "f").await, None);
    });
}
