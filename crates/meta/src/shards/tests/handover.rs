//! A shard is closed for its next owner: what it waits for, and what the next owner finds.

use super::cluster::{Cluster, name};
use crate::shards::{CallOrigin, Makes, PeerCall};
use futures::FutureExt;
use varve_posix::RemoveDirectory;
use varve_types::{Epoch, Errno, InodeId, ShardId};

/// Promise: a handover waits for the calls in progress of clients, and for those of other shards.
#[test]
fn handover_waits_for_calls_in_progress() {
    Cluster::run(2, 1000, |cluster| async move {
        let shard = cluster.shard(ShardId(1));
        for origin in [CallOrigin::Client, CallOrigin::Peer] {
            let calls = [shard.begin_call(origin), shard.begin_call(origin)];
            let mut ended = Box::pin(shard.calls_ended(origin));
            assert!(ended.as_mut().now_or_never().is_none());
            let [first, last] = calls;
            drop(first);
            assert!(ended.as_mut().now_or_never().is_none());
            drop(last);
            ended.await;
        }
    });
}

/// Promise: the next owner of a shard finds the removals that it has prepared, and the call that ends them is served while
/// the shard is handed over.
#[test]
fn successor_carries_out_prepared_removals() {
    Cluster::run(2, 1000, |cluster| async move {
        let directory = cluster.mkdir(InodeId::ROOT, "d", ShardId(1)).await;
        cluster.peers.keeps_decisions.set(true);
        let rmdir = RemoveDirectory { parent: InodeId::ROOT, name: name("d") };
        cluster.at_name(InodeId::ROOT, &name("d"), Makes::Nothing, &rmdir).await.unwrap();
        let shard = cluster.shard(ShardId(1));
        assert_eq!(shard.status().transactions_open, 1);
        shard.close_for_successor().await.unwrap();
        drop(shard);
        cluster.open_beside(ShardId(1)).await;
        assert_eq!(cluster.shard(ShardId(1)).status().transactions_open, 1);
        assert!(PeerCall::Settle(Vec::new()).ends_something());
        cluster.peers.keeps_decisions.set(false);
        assert_eq!(cluster.create(directory, "f").await.unwrap_err(), Errno::ENOENT.into());
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
