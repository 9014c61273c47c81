//! Removals of directories whose rows are in another shard, with kills between their steps: an acknowledged removal is
//! carried out, any other leaves the directory as it was, and never does a create succeed in a directory without a name.

use super::carry_out::records;
use super::cluster::{Cluster, PATIENCE};
use super::removal::{far_and_near, rmdir};
use crate::shards::{PeerCall, PeerReply};
use std::time::Duration;
use varve_schema::{Key, TransactionId};
use varve_types::{Errno, InodeId, PartitionIndex, ShardId};

/// The shard of the root.
const COORDINATOR: ShardId = ShardId(0);
const HOLDER: ShardId = ShardId(2);

/// The rows of a directory that was never split.
fn keys(directory: InodeId) -> Vec<Key> {
    vec![Key::Directory(directory), Key::Partition(directory, PartitionIndex::FIRST)]
}

/// Has the holder prepare a removal that the coordinator has not decided.
async fn prepare(cluster: &Cluster, directory: InodeId) -> TransactionId {
    let coordinator = cluster.shard(COORDINATOR);
    let transaction = coordinator.state.borrow_mut().transactions.begin(COORDINATOR, coordinator.epoch());
    let call = PeerCall::FetchToRemove(transaction, keys(directory));
    let prepared = coordinator.peers.call(HOLDER, call).await;
    assert!(matches!(prepared, PeerReply::Prepared(_)), "{prepared:?}");
    assert_eq!(cluster.shard(HOLDER).status().transactions_open, 1);
    transaction
}

async fn check_is_kept(cluster: &Cluster, directory: InodeId) {
    assert_eq!(cluster.lookup(InodeId::ROOT, "d").await, Some((directory, true)));
    cluster.create(directory, "f").await.unwrap();
    assert_eq!(rmdir(cluster, "d").await.unwrap_err(), Errno::ENOTEMPTY.into());
}

async fn check_is_removed(cluster: &Cluster, directory: InodeId) {
    assert_eq!(cluster.create(directory, "f").await.unwrap_err(), Errno::ENOENT.into());
    assert_eq!(cluster.lookup(InodeId::ROOT, "d").await, None);
    let fetched = cluster.peers.call(HOLDER, PeerCall::Fetch(keys(directory))).await;
    assert_eq!(fetched, PeerReply::Rows(vec![None, None]));
}

/// Checks that the removal leaves no intent and no decision.
async fn check_is_settled(cluster: &Cluster) {
    let settled = async {
        let is_open = |shard| cluster.shard(shard).status().transactions_open > 0;
        while cluster.settings.shards.all().any(is_open) || records(cluster).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("every shard forgets the removal");
    cluster.reopen_after_crash().await;
}

#[test]
fn rmdir_costs_one_append_in_each_shard_and_no_fsync() {
    far_and_near(|cluster| async move {
        cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        let shards = [cluster.shard(COORDINATOR), cluster.shard(HOLDER)];
        let before = shards.each_ref().map(|shard| shard.acknowledged());
        let hung = cluster.hang_fsyncs();
        rmdir(&cluster, "d").await.unwrap();
        assert_eq!(shards.each_ref().map(|shard| shard.acknowledged()), before.map(|batch| batch + 1));
        drop(hung);
    });
}

#[test]
fn kill_before_the_intent_keeps_the_directory() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        let snapshots = cluster.snapshots(HOLDER);
        let hung = snapshots.hang().await;
        let removal = tokio::time::timeout(Duration::from_millis(100), rmdir(&cluster, "d"));
        assert!(removal.await.is_err(), "the intent is not in the log");
        cluster.reopen(HOLDER).await;
        // The killed process writes on, but not into the log of its successor.
        drop(hung);
        check_is_kept(&cluster, made).await;
    });
}

#[test]
fn kill_after_the_intent_aborts_the_removal() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        let transaction = prepare(&cluster, made).await;
        cluster.reopen(HOLDER).await;
        check_is_kept(&cluster, made).await;
        let decides = cluster.shard(COORDINATOR).state.borrow_mut().transactions.forget_undecided(transaction);
        assert!(!decides, "the coordinator cannot decide it any more");
        check_is_settled(&cluster).await;
    });
}

#[test]
fn kill_of_the_coordinator_before_its_batch_aborts() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        prepare(&cluster, made).await;
        cluster.reopen(COORDINATOR).await;
        check_is_kept(&cluster, made).await;
        check_is_settled(&cluster).await;
    });
}

#[test]
fn kill_of_all_before_the_batch_aborts() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        prepare(&cluster, made).await;
        cluster.reopen_after_crash().await;
        check_is_kept(&cluster, made).await;
        check_is_settled(&cluster).await;
    });
}

/// Removes a directory, keeps the news of the decision from the holder, kills the shards, and delivers the news.
fn kill_after_the_reply(killed: &'static [ShardId]) {
    far_and_near(|cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        cluster.peers.keeps_decisions.set(true);
        rmdir(&cluster, "d").await.unwrap();
        assert_eq!(cluster.shard(HOLDER).status().transactions_open, 1);
        for shard in killed {
            cluster.reopen(*shard).await;
        }
        assert_eq!(cluster.shard(HOLDER).status().transactions_open, 1);
        cluster.peers.keeps_decisions.set(false);
        check_is_removed(&cluster, made).await;
        check_is_settled(&cluster).await;
        check_is_removed(&cluster, made).await;
    });
}

#[test]
fn acknowledged_removal_survives_a_kill_of_the_holder() {
    kill_after_the_reply(&[HOLDER]);
}

#[test]
fn acknowledged_removal_survives_a_kill_of_the_coordinator() {
    kill_after_the_reply(&[COORDINATOR]);
}

#[test]
fn acknowledged_removal_survives_a_kill_of_both() {
    kill_after_the_reply(&[COORDINATOR, HOLDER]);
    kill_after_the_reply(&[HOLDER, COORDINATOR]);
}

/// Promise: the decision stays until the rows are deleted on stable storage. Otherwise a power failure could bring the
/// rows back with an intent of which the coordinator knows nothing.
#[test]
fn decision_stays_until_the_holder_has_fsynced() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", HOLDER).await;
        cluster.sync().await;
        let hung = cluster.hang_fsyncs();
        rmdir(&cluster, "d").await.unwrap();
        let coordinator = cluster.shard(COORDINATOR);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(coordinator.status().transactions_open, 1, "its decision is not durable");
        assert_eq!(cluster.shard(HOLDER).status().transactions_open, 1, "the rows are not deleted before");
        drop(hung);
        coordinator.end_transactions().await;
        assert_eq!(coordinator.status().transactions_open, 0);
        assert_eq!(cluster.shard(HOLDER).status().log_bytes_unsynced, 0);
        check_is_removed(&cluster, made).await;
    });
}
