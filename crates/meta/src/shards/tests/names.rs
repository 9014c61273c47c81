use super::cluster::{Cluster, name};
use crate::shards::{Execution, Makes, ReplyRecorder, RequestAddress};
use varve_posix::{RemoveDirectory, Unlink};
use varve_types::{Credentials, Errno, InodeId, NameHash, SessionId, ShardId};

#[test]
fn crash_keeps_names_and_never_reuses_ids() {
    Cluster::run(4, 1000, |cluster| async move {
        let mut ids = std::collections::BTreeSet::new();
        for round in 0..3 {
            for n in 0..50 {
                let node = cluster.create(InodeId::ROOT, &format!("{round}-{n}")).await.unwrap();
                assert!(ids.insert(node.inode), "{} was made twice", node.inode);
            }
            cluster.reopen_after_crash().await;
        }
        let expected = (0..3).flat_map(|round| (0..50).map(move |n| format!("{round}-{n}")));
        cluster.check_lists(InodeId::ROOT, expected).await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, 150);
        assert_eq!(cluster.create(InodeId::ROOT, "0-7").await.unwrap_err(), Errno::EEXIST.into());
    });
}

#[test]
fn directories_spread_over_shards_and_go_when_empty() {
    Cluster::run(4, 1000, |cluster| async move {
        let directory = cluster.mkdir(InodeId::ROOT, "d", ShardId(3)).await;
        assert_eq!(directory.shard(), ShardId(3));
        cluster.create(directory, "f").await.unwrap();
        let rmdir = RemoveDirectory { parent: InodeId::ROOT, name: name("d") };
        let refused = cluster.at_name(InodeId::ROOT, &name("d"), Makes::Nothing, &rmdir).await.unwrap_err();
        assert_eq!(refused, Errno::ENOTEMPTY.into());
        let unlink = Unlink { parent: directory, name: name("f") };
        cluster.at_name(directory, &name("f"), Makes::Nothing, &unlink).await.unwrap();
        cluster.at_name(InodeId::ROOT, &name("d"), Makes::Nothing, &rmdir).await.unwrap();
        assert_eq!(cluster.lookup(InodeId::ROOT, "d").await, None);
        assert_eq!(cluster.create(directory, "g").await.unwrap_err(), Errno::ENOENT.into());
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.lookup(InodeId::ROOT, "d").await, None);
        assert_eq!(cluster.create(directory, "g").await.unwrap_err(), Errno::ENOENT.into());
    });
}

#[test]
fn recorded_reply_is_found_by_call_id() {
    Cluster::run(2, 1000, |cluster| async move {
        let verb = Unlink { parent: InodeId::ROOT, name: name("f") };
        cluster.create(InodeId::ROOT, "f").await.unwrap();
        let encode = |_: &_| bytes::Bytes::from_static(b"first answer");
        let run = Execution {
            caller: &Credentials::root(),
            address: RequestAddress::Name(InodeId::ROOT, NameHash::of(b"f")),
            makes: Makes::Nothing,
            record: Some(ReplyRecorder { session: SessionId(9), slot: 2, number: 5, encode: &encode }),
            registrar: None,
        };
        cluster.shard(ShardId(0)).run(&verb, run).await.unwrap();
        for _ in 0..2 {
            let shard = cluster.shard(ShardId(0));
            let replied = shard.find_reply(SessionId(9), 2, 5).unwrap();
            assert_eq!(*shard.reply_again(replied).await.unwrap(), b"first answer"[..]);
            assert!(shard.find_reply(SessionId(9), 2, 6).is_none());
            cluster.reopen_after_crash().await;
        }
    });
}

/// Promise: an fsync that finds the log ended marks the shard as failed, so that it is opened again, even without
/// writes.
#[test]
fn a_sync_that_finds_the_log_ended_fails_the_shard() {
    Cluster::run(1, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "file").await.unwrap();
        let shard = cluster.shard(ShardId(0));
        shard.sync().await.unwrap();
        assert_eq!(shard.failed(), None);
        // As after a store error met by the table's own work.
        shard.table.close().await.unwrap();
        shard.sync().await.unwrap_err();
        assert!(shard.failed().is_some());
        cluster.reopen_after_crash().await;
        assert!(cluster.lookup(InodeId::ROOT, "file").await.is_some());
    });
}

/// Promise: a directory is in use while the names of its large partition are read. Afterwards no existing name counts
/// as free, and most free names are known to be free.
#[test]
fn names_are_gathered_while_they_change() {
    const FILES: u64 = 600;
    Cluster::run(1, 1_000_000, |cluster| async move {
        let at = |n: u64| format!("{n}");
        let unlink = async |n| {
            let unlink = Unlink { parent: InodeId::ROOT, name: name(&at(n)) };
            cluster.at_name(InodeId::ROOT, &name(&at(n)), Makes::Nothing, &unlink).await.unwrap();
        };
        for n in 0..FILES {
            cluster.create(InodeId::ROOT, &at(n)).await.unwrap();
        }
        for round in 0..20 {
            cluster.reopen_after_crash().await;
            let shard = cluster.shard(ShardId(0));
            let are_gathered = || {
                let state = shard.state.borrow();
                state.partitions.get(InodeId::ROOT).is_none_or(|partition| partition.names.are_gathered())
            };
            let mut changed = 0;
            while are_gathered() {
                // Some names are read already when they change, some are not; and some come back.
                let n = (changed * 7 + round) % FILES;
                unlink(n).await;
                assert_eq!(cluster.lookup(InodeId::ROOT, &at(n)).await, None);
                cluster.create(InodeId::ROOT, &at(n)).await.unwrap();
                assert_eq!(cluster.create(InodeId::ROOT, &at(n)).await.unwrap_err(), Errno::EEXIST.into());
                let (new, gone) = (FILES + changed, format!("gone-{changed}"));
                cluster.create(InodeId::ROOT, &at(new)).await.unwrap();
                unlink(new).await;
                cluster.create(InodeId::ROOT, &gone).await.unwrap();
                let unlink = Unlink { parent: InodeId::ROOT, name: name(&gone) };
                cluster.at_name(InodeId::ROOT, &name(&gone), Makes::Nothing, &unlink).await.unwrap();
                changed += 1;
            }
            assert!(changed > 2, "nothing was done while names were gathered");
            {
                let state = shard.state.borrow();
                let names = &state.partitions.get(InodeId::ROOT).unwrap().names;
                assert!((0..FILES).all(|n| names.may_hold(name(&at(n)).hash())));
                let free = (0..1000).filter(|n| !names.may_hold(name(&format!("free-{n}")).hash())).count();
                assert_eq!(free, 1000);
            }
            for n in 0..FILES {
                assert_eq!(cluster.create(InodeId::ROOT, &at(n)).await.unwrap_err(), Errno::EEXIST.into());
            }
            cluster.check_lists(InodeId::ROOT, (0..FILES).map(at)).await;
        }
    });
}

/// Promise: if memory is too small for the names of a large directory in use, they are dropped, and only memory is
/// lost.
#[test]
fn large_name_sets_are_evicted_when_memory_is_short() {
    Cluster::run(1, 1_000_000, |cluster| async move {
        cluster.create(InodeId::ROOT, "there").await.unwrap();
        {
            let shard = cluster.shard(ShardId(0));
            let state = &mut *shard.state.borrow_mut();
            let appended = state.appended;
            let partition = state.partitions.get_mut(InodeId::ROOT).unwrap();
            let others = (0..500_000).map(|n| name(&format!("other-{n}")).hash());
            others.for_each(|hash| partition.names.insert(hash));
            // Names are counted once in this many batches.
            (0..1000).for_each(|_| state.partitions.shrink(appended));
            assert_eq!(state.partitions.names(), 0, "they take more than all shards may hold");
            assert!(state.partitions.get(InodeId::ROOT).is_some(), "it is used");
        }
        assert_eq!(cluster.create(InodeId::ROOT, "there").await.unwrap_err(), Errno::EEXIST.into());
        cluster.create(InodeId::ROOT, "other-1").await.unwrap();
        cluster.check_lists(InodeId::ROOT, ["other-1", "there"].map(str::to_owned).into_iter()).await;
    });
}

/// Promise: a set that is cut as it grows holds the same as an uncut one, and counts names that share a hash.
#[test]
fn large_name_set_keeps_all_names() {
    use crate::shards::names::NameSet;
    let hash = |n: u64| name(&format!("{n}")).hash();
    let mut names = NameSet::default();
    (0..100_000).for_each(|n| names.insert(hash(n)));
    (0..100_000).step_by(10).for_each(|n| names.insert(hash(n)));
    assert_eq!((names.len(), names.count(varve_types::HashRange::ALL)), (100_000, 110_000));
    (0..100_000).step_by(2).for_each(|n| names.remove(hash(n)));
    for n in 0..100_000 {
        assert_eq!(names.may_hold(hash(n)), n % 2 == 1 || n % 10 == 0, "name {n}");
    }
    let half = varve_types::PartitionIndex(1).range(1);
    names.keep(half);
    assert!((0..100_000).step_by(10).all(|n| names.may_hold(hash(n)) == half.contains(hash(n))));
    assert_eq!(names.count(varve_types::HashRange::ALL), names.count(half));
}

/// Promise: the same holds for names chosen so that all of them fall into one of the sets.
#[test]
fn colliding_name_hashes_are_kept() {
    use crate::shards::names::NameSet;
    use varve_types::NameHash;
    let hash = |n: u64| NameHash(n << 6 | 5);
    let mut names = NameSet::default();
    (1..100_000).for_each(|n| names.insert(hash(n)));
    (1..100_000).step_by(2).for_each(|n| names.remove(hash(n)));
    assert!((1..100_000).all(|n| names.may_hold(hash(n)) == (n % 2 == 0)));
    assert!((1..100_000).all(|n| !names.may_hold(NameHash(hash(n).0 + 1))));
    assert_eq!(names.len(), 49_999);
}
