//! A shard is closed for its next owner: what it waits for, and what the next owner finds.

use super::cluster::Cluster;
use crate::shards::{CallOrigin, PeerCall, PeerReply};
use futures::FutureExt;
use varve_schema::{Key, TransactionId};
use varve_types::{Epoch, InodeId, PartitionIndex, ShardId};

/// Promise: a handover waits for the calls in progress of clients, and for those of other shards.
#[test]
fn handover_waits_for_calls_in_progress() {
    Cluster::run(2, 1000, |cluster| async move {
        let shard = cluster.shard(ShardId(1));
        for origin in [CallOrigin::Client, CallOrigin::Peer] {
            let calls = [shard.begin_call(origin), shard.begin_call(origin)];
            let mut ended = Box::pin(shard.calls_ended(origin));
            assert!(!shard.is_quiet() && ended.as_mut().now_or_never().is_none());
            let [first, last] = calls;
            drop(first);
            assert!(ended.as_mut().now_or_never().is_none());
            drop(last);
            ended.await;
            assert!(shard.is_quiet());
        }
    });
}

/// Promise: a shard is not handed over while another one relies on a removal that it has prepared in memory. The call
/// that ends the removal is served.
#[test]
fn handover_waits_for_prepared_removals() {
    Cluster::run(2, 1000, |cluster| async move {
        let directory = cluster.mkdir(InodeId::ROOT, "d", ShardId(1)).await;
        let shard = cluster.shard(ShardId(1));
        let transaction = TransactionId { coordinator: ShardId(0), epoch: Epoch(1), counter: 1 };
        let keys = vec![Key::Directory(directory), Key::Partition(directory, PartitionIndex::FIRST)];
        let held = cluster.peers.call(ShardId(1), PeerCall::FetchToRemove(transaction, keys)).await;
        assert!(matches!(held, PeerReply::Held(_)), "{held:?}");
        let mut ended = Box::pin(shard.prepared_removals_ended());
        assert!(!shard.is_quiet() && ended.as_mut().now_or_never().is_none());
        let end = PeerCall::Resolve { transaction, commit: false };
        assert!(end.ends_something());
        assert!(matches!(cluster.peers.call(ShardId(1), end).await, PeerReply::Done));
        assert!(ended.await && shard.is_quiet());
    });
}

/// Promise: the next owner of a shard that was closed without a flush has everything that was acknowledged.
#[test]
fn successor_finds_what_is_only_in_the_log() {
    Cluster::run(1, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "flushed").await.unwrap();
        let shard = cluster.shard(ShardId(0));
        shard.flush().await.unwrap();
        for n in 0..100 {
            cluster.create(InodeId::ROOT, &format!("file {n}")).await.unwrap();
        }
        let epoch = shard.epoch();
        shard.close_for_successor().await.unwrap();
        assert!(shard.has_failed(), "it serves nothing any more");
        drop(shard);
        cluster.open().await;
        assert_eq!(cluster.shard(ShardId(0)).epoch(), Epoch(epoch.0 + 1));
        assert!(!cluster.shard(ShardId(0)).is_fenced());
        let names = (0..100).map(|n| format!("file {n}")).chain(["flushed".to_owned()]);
        cluster.check_lists(InodeId::ROOT, names).await;
    });
}
