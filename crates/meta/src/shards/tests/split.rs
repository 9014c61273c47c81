use super::cluster::{Cluster, name, root_rows};
use crate::shards::peers::SplitAttempt;
use crate::shards::{Makes, PeerCall, PeerReply};
use futures::future::join_all;
use std::time::Duration;
use varve_posix::Unlink;
use varve_schema::{Change, EntryBody, EntryRow, Key, PartitionRow, PartitionState, Row};
use varve_types::{Epoch, Errno, FileKind, HashRange, InodeId, NameHash, PartitionIndex, ShardId};

/// Waits until the splits in progress have ended: the map does not change any more.
pub async fn settle(cluster: &Cluster, directory: InodeId, partitions: usize) {
    for _ in 0..1000 {
        if cluster.map(directory).await.len() >= partitions {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the directory has {} partitions, not {partitions}", cluster.map(directory).await.len());
}

#[test]
fn growing_directory_splits_and_loses_no_name() {
    Cluster::run(8, 20, |cluster| async move {
        for chunk in (0..1000).collect::<Vec<_>>().chunks(50) {
            let made = join_all(chunk.iter().map(|n| {
                let cluster = cluster.clone();
                async move { cluster.create(InodeId::ROOT, &format!("file {n}")).await }
            }))
            .await;
            made.into_iter().for_each(|node| drop(node.unwrap()));
        }
        settle(&cluster, InodeId::ROOT, 8).await;
        cluster.check_lists(InodeId::ROOT, (0..1000).map(|n| format!("file {n}"))).await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, 1000);
        for n in 0..1000 {
            assert_eq!(
                cluster.create(InodeId::ROOT, &format!("file {n}")).await.unwrap_err(),
                Errno::EEXIST.into(),
                "file {n}"
            );
        }
        cluster.reopen_after_crash().await;
        cluster.check_lists(InodeId::ROOT, (0..1000).map(|n| format!("file {n}"))).await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, 1000);
    });
}

/// Promise: a partition splits above the volume's threshold and not before, whichever workers own its shards.
#[test]
fn threshold_does_not_depend_on_owners() {
    const THRESHOLD: u64 = 10;
    for one_worker in [true, false] {
        Cluster::run(2, THRESHOLD, async move |cluster| {
            cluster.peers.all_near.set(one_worker);
            for n in 0..THRESHOLD {
                cluster.create(InodeId::ROOT, &format!("file {n}")).await.unwrap();
            }
            // Time in which a split could begin.
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(cluster.map(InodeId::ROOT).await.len(), 1);
            cluster.create(InodeId::ROOT, "one more").await.unwrap();
            settle(&cluster, InodeId::ROOT, 2).await;
        });
    }
}

/// Promise: changes made while a half is copied are copied again before the half is blocked, so that few changes wait.
/// None is lost or counted twice, wherever the rows are.
#[test]
fn changes_during_a_long_split_copy_are_copied() {
    const FILES: u64 = 3000;
    for on_disk in [false, true] {
        Cluster::run(2, FILES / 2, |cluster| async move {
            let at = |n: u64| format!("{n}");
            let stay = (0..FILES).step_by(2).map(|n| {
                let cluster = cluster.clone();
                async move { cluster.create(InodeId::ROOT, &at(n)).await.unwrap() }
            });
            join_all(stay).await;
            if on_disk {
                cluster.reopen_after_crash().await;
            }
            let come_and_go = (1..FILES).step_by(2).map(|n| {
                let cluster = cluster.clone();
                async move {
                    let unlink = Unlink { parent: InodeId::ROOT, name: name(&at(n)) };
                    for _ in 0..40 {
                        cluster.create(InodeId::ROOT, &at(n)).await.unwrap();
                        cluster.at_name(InodeId::ROOT, &name(&at(n)), Makes::Nothing, &unlink).await.unwrap();
                    }
                    if n % 5 == 0 {
                        cluster.mkdir(InodeId::ROOT, &at(n), InodeId::ROOT.shard()).await;
                    }
                }
            });
            join_all(come_and_go).await;
            settle(&cluster, InodeId::ROOT, 2).await;
            let left = || (0..FILES).filter(|n| n % 2 == 0 || n % 5 == 0).map(at);
            cluster.check_lists(InodeId::ROOT, left()).await;
            assert_eq!(cluster.counted(InodeId::ROOT).await, left().count() as u64);
            cluster.reopen_after_crash().await;
            cluster.check_lists(InodeId::ROOT, left()).await;
            assert_eq!(cluster.counted(InodeId::ROOT).await, left().count() as u64);
        });
    }
}

/// Promise: the slices of a half cover it completely, each hash once.
#[test]
fn copy_slices_cover_the_moved_half() {
    use super::super::split::slices;
    let tiny = HashRange { first: NameHash(7), last: NameHash(9) };
    for range in [HashRange::ALL, PartitionIndex(1).range(1), PartitionIndex(5).range(3), tiny] {
        for count in [0, 1, 2, 3, 100, 977] {
            let slices = slices(range, count);
            assert_eq!((slices[0].first, slices[slices.len() - 1].last), (range.first, range.last));
            assert!(slices.windows(2).all(|pair| pair[0].last.0 + 1 == pair[1].first.0));
            assert!(slices.len() as u64 <= count.max(1) + 1, "{} slices for {count}", slices.len());
        }
    }
}

#[test]
fn removes_during_splits_stay_removed() {
    Cluster::run(8, 20, |cluster| async move {
        let steps = (0..400).map(|n| {
            let cluster = cluster.clone();
            async move {
                cluster.create(InodeId::ROOT, &format!("{n}")).await.unwrap();
                if n % 3 == 0 {
                    let at = name(&format!("{n}"));
                    let unlink = Unlink { parent: InodeId::ROOT, name: at.clone() };
                    cluster.at_name(InodeId::ROOT, &at, Makes::Nothing, &unlink).await.unwrap();
                }
            }
        });
        join_all(steps).await;
        settle(&cluster, InodeId::ROOT, 4).await;
        cluster.check_lists(InodeId::ROOT, (0..400).filter(|n| n % 3 != 0).map(|n| format!("{n}"))).await;
        cluster.reopen_after_crash().await;
        cluster.check_lists(InodeId::ROOT, (0..400).filter(|n| n % 3 != 0).map(|n| format!("{n}"))).await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, 266);
    });
}

/// Moved rows are in memory at the target, with their names counted; rows that the source had only on disk move too.
#[test]
fn imported_rows_are_cached_from_memory_or_table() {
    for on_disk in [false, true] {
        Cluster::run(2, 40, |cluster| async move {
            let made: Vec<_> = (0..41).map(|n| format!("{n}")).collect();
            for (number, at) in made.iter().enumerate() {
                if on_disk && number == 40 {
                    cluster.reopen_after_crash().await;
                }
                cluster.create(InodeId::ROOT, at).await.unwrap();
            }
            settle(&cluster, InodeId::ROOT, 2).await;
            let target = cluster.shard(ShardId(1));
            while target.state.borrow().partitions.get(InodeId::ROOT).is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            {
                let state = target.state.borrow();
                let range = PartitionIndex(1).range(1);
                let theirs = made.iter().filter(|at| range.contains(name(at).hash())).count();
                assert!((5..36).contains(&theirs), "{theirs} of 41 names have a hash in the upper half");
                assert_eq!(state.resident.entries_of(InodeId::ROOT, range).count(), theirs);
                let partition = state.partitions.get(InodeId::ROOT).unwrap();
                assert_eq!(partition.names.count(range).unwrap(), theirs);
            }
            cluster.check_lists(InodeId::ROOT, made.iter().cloned()).await;
            assert_eq!(cluster.counted(InodeId::ROOT).await, 41);
            cluster.reopen_after_crash().await;
            cluster.check_lists(InodeId::ROOT, made.iter().cloned()).await;
        });
    }
}

/// A crash at any time during a split leaves each name once.
#[test]
fn a_crash_in_the_middle_of_a_split_leaves_every_name_once() {
    for crash_after_us in [0, 200, 500, 1000, 2000, 4000, 8000, 16_000] {
        Cluster::run(4, 30, |cluster| async move {
            let made: Vec<_> = (0..31).map(|n| format!("{n}")).collect();
            for at in &made {
                cluster.create(InodeId::ROOT, at).await.unwrap();
            }
            tokio::time::sleep(Duration::from_micros(crash_after_us)).await;
            cluster.reopen_after_crash().await;
            cluster.check_lists(InodeId::ROOT, made.iter().cloned()).await;
            assert_eq!(cluster.create(InodeId::ROOT, "7").await.unwrap_err(), Errno::EEXIST.into());
            cluster.create(InodeId::ROOT, "new").await.unwrap();
            cluster.check_lists(InodeId::ROOT, made.into_iter().chain(["new".to_owned()])).await;
            assert_eq!(cluster.counted(InodeId::ROOT).await, 32);
        });
    }
}

/// The task of an ended source continues if its process lives on; rows that its successor has moved stay moved.
#[test]
fn ended_shard_does_not_split() {
    Cluster::run(2, 20, |cluster| async move {
        let made: Vec<_> = (0..40).map(|n| format!("{n}")).collect();
        cluster.create(InodeId::ROOT, &made[0]).await.unwrap();
        let ended = cluster.shard(ShardId(0));
        cluster.reopen_after_crash().await;
        for at in &made[1..] {
            cluster.create(InodeId::ROOT, at).await.unwrap();
        }
        settle(&cluster, InodeId::ROOT, 2).await;
        let target = ShardId(1);
        let live = PeerCall::ImportLive { directory: InodeId::ROOT, index: PartitionIndex(1) };
        while !matches!(cluster.peers.call(target, live.clone()).await, PeerReply::Done) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // As if it had checked for its end just before.
        let attempt = SplitAttempt { epoch: Epoch(1), number: 1 };
        let begin = PeerCall::ImportBegin { directory: InodeId::ROOT, attempt };
        assert!(matches!(cluster.peers.call(target, begin).await, PeerReply::Failed(_)));
        let gone = Change::Delete(Key::Entry(InodeId::ROOT, name(&made[7])));
        let rows = PeerCall::ImportRows { directory: InodeId::ROOT, attempt, changes: vec![gone], replies: Vec::new() };
        assert!(matches!(cluster.peers.call(target, rows).await, PeerReply::Failed(_)));
        ended.split(InodeId::ROOT).await;
        cluster.check_lists(InodeId::ROOT, made.iter().cloned()).await;
        cluster.reopen_after_crash().await;
        cluster.check_lists(InodeId::ROOT, made.iter().cloned()).await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, 40);
    });
}

/// Promise: an abandoned attempt deletes nothing that a later one has sent, however long it has waited for the log.
#[test]
fn superseded_split_attempt_deletes_nothing() {
    Cluster::run(2, 20, |cluster| async move {
        let (target, directory) = (cluster.shard(ShardId(1)), InodeId::ROOT);
        // Later than any that begins by itself.
        let [first, second] = [1, 2].map(|number| SplitAttempt { epoch: Epoch(1_000), number });
        let snapshots = cluster.snapshots(target.id());
        let hung = snapshots.hang().await;
        let mut begins = Box::pin(target.import_begin(directory, first));
        while !target.state.borrow().incoming_partitions.accept(directory, first) {
            assert!(futures::poll!(&mut begins).is_pending());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(hung);
        target.import_begin(directory, second).await.unwrap();
        let key = Key::Entry(directory, name("f"));
        let body = EntryBody::Reference(FileKind::Regular);
        let row = Row::Entry(EntryRow { inode: InodeId::new(ShardId(0), 1_000), body });
        target.import_rows(directory, second, vec![Change::put(key.clone(), row.clone())], Vec::new()).await.unwrap();
        begins.await.unwrap_err();
        assert_eq!(target.read_table(&key).await.unwrap().as_ref(), Some(&row));
        assert_eq!(target.decided_row(&key).await.unwrap(), Some(row));
    });
}

/// Promise: once all rows of an attempt have arrived, the source may commit at any time. A call of an earlier attempt,
/// or a second one of this attempt, deletes nothing any more.
#[test]
fn late_import_begin_deletes_nothing() {
    Cluster::run(2, 20, |cluster| async move {
        let (target, directory) = (cluster.shard(ShardId(1)), InodeId::ROOT);
        let [first, second] = [1, 2].map(|number| SplitAttempt { epoch: Epoch(1_000), number });
        target.import_begin(directory, second).await.unwrap();
        let key = Key::Entry(directory, name("f"));
        let body = EntryBody::Reference(FileKind::Regular);
        let row = Row::Entry(EntryRow { inode: InodeId::new(ShardId(0), 1_000), body });
        target.import_rows(directory, second, vec![Change::put(key.clone(), row.clone())], Vec::new()).await.unwrap();
        let source = root_rows(cluster.settings.shards).into_iter().find_map(|change| match change {
            Change::Put(Key::Partition(..), row) => Some(*row),
            _ => None,
        });
        let Some(Row::Partition(row_of_source)) = source else { panic!("the root has a partition") };
        let (index, state) = (row_of_source.index.upper_half(0), PartitionState::Incoming);
        let partition = Row::Partition(PartitionRow { index, depth: 1, state, ..row_of_source });
        target.import_end(directory, second, partition).await.unwrap();
        for late in [first, second] {
            target.import_begin(directory, late).await.unwrap_err();
            assert_eq!(target.read_table(&key).await.unwrap().as_ref(), Some(&row));
        }
    });
}
