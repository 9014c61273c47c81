use super::cluster::{Cluster, PATIENCE, name};
use crate::shards::partitions::Split;
use crate::shards::{Makes, PageLimit, PeerCall, PeerReply, ShardRefusal};
use std::task::Poll;
use std::time::Duration;
use varve_posix::{At, ChangeAttributes, Link, RemoveDirectory, Rename, RenameFlags, ReviveDirectory, Unlink};
use varve_schema::{Change, EntryBody, EntryRow, IntentRow, Key, Row, TransactionId};
use varve_types::{Errno, FileKind, HashRange, InodeId, Mode, NameHash, PartitionIndex, SetAttributes, ShardId};

pub async fn rename(cluster: &Cluster, from: (InodeId, &str), to: (InodeId, &str)) -> Result<(), ShardRefusal> {
    let verb = Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        flags: RenameFlags::Replace,
    };
    cluster.at_name(from.0, &name(from.1), Makes::Nothing, &verb).await.map(|_| ())
}

#[test]
fn cross_shard_rename_is_atomic_across_a_crash() {
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(2)).await;
        let file = cluster.create(a, "f").await.unwrap().inode;
        cluster.create(b, "g").await.unwrap();
        rename(&cluster, (a, "f"), (b, "g")).await.unwrap();
        for _ in 0..2 {
            assert_eq!(cluster.lookup(a, "f").await, None);
            assert_eq!(cluster.lookup(b, "g").await.map(|(inode, _)| inode), Some(file));
            assert_eq!((cluster.counted(a).await, cluster.counted(b).await), (0, 1));
            cluster.reopen_after_crash().await;
        }
        assert_eq!(rename(&cluster, (a, "f"), (b, "h")).await.unwrap_err(), Errno::ENOENT.into());
    });
}

/// Promise: a directory into which a rename is committed is not empty, even between a crash and the time when its shard
/// learns of the decision: it stays, and the file is in it.
#[test]
fn target_directory_survives_a_crashed_rename() {
    for near in [false, true] {
        Cluster::run(4, 1000, |cluster| async move {
            cluster.peers.all_near.set(near);
            let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
            // Their names and their rows are in one shard, and in two.
            for home in [InodeId::ROOT.shard(), ShardId(2)] {
                let at = format!("into-{home}");
                let into = cluster.mkdir(InodeId::ROOT, &at, home).await;
                let file = cluster.create(a, "f").await.unwrap().inode;
                cluster.peers.keeps_decisions.set(true);
                rename(&cluster, (a, "f"), (into, "g")).await.unwrap();
                cluster.reopen_after_crash().await;
                let named = name(&at);
                let rmdir = RemoveDirectory { parent: InodeId::ROOT, name: named.clone() };
                let removal = cluster.at_name(InodeId::ROOT, &named, Makes::Nothing, &rmdir);
                let (removed, ()) = futures::join!(removal, async {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    cluster.peers.keeps_decisions.set(false);
                });
                assert_eq!(removed.map(drop).unwrap_err(), Errno::ENOTEMPTY.into());
                assert_eq!(cluster.lookup(into, "g").await.map(|(inode, _)| inode), Some(file));
                assert_eq!(cluster.counted_once(into).await, 1);
                let unlink = Unlink { parent: into, name: name("g") };
                cluster.at_name(into, &name("g"), Makes::Nothing, &unlink).await.unwrap();
                cluster.at_name(InodeId::ROOT, &named, Makes::Nothing, &rmdir).await.unwrap();
            }
        });
    }
}

#[test]
fn file_linked_on_two_shards_is_removed_with_the_last() {
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(2)).await;
        let file = cluster.create(a, "f").await.unwrap().inode;
        let source = At::Entry { parent: a, name: name("f"), inode: file };
        let link = Link { source, parent: b, name: name("g") };
        cluster.at_name(b, &name("g"), Makes::Nothing, &link).await.unwrap();
        for _ in 0..2 {
            assert_eq!(cluster.lookup(a, "f").await, Some((file, true)));
            assert_eq!(cluster.lookup(b, "g").await, Some((file, true)));
            cluster.reopen_after_crash().await;
        }
        let unlink = Unlink { parent: a, name: name("f") };
        cluster.at_name(a, &name("f"), Makes::Nothing, &unlink).await.unwrap();
        assert_eq!(cluster.lookup(b, "g").await, Some((file, true)));
        let unlink = Unlink { parent: b, name: name("g") };
        cluster.at_name(b, &name("g"), Makes::Nothing, &unlink).await.unwrap();
        assert_eq!(cluster.lookup(b, "g").await, None);
    });
}

/// Promise: a name can be replaced while other shards replace it at the same time. It is no damage if its entry is read
/// before another rename and its inode's row after it.
#[test]
fn concurrently_replaced_name_stays_consistent() {
    Cluster::run(4, 1000, |cluster| async move {
        let target = cluster.mkdir(InodeId::ROOT, "target", ShardId(3)).await;
        let replace = async |shard: u16| {
            let own = cluster.mkdir(InodeId::ROOT, &format!("own-{shard}"), ShardId(shard)).await;
            for _ in 0..100 {
                let file = cluster.create(own, "f").await.unwrap().inode;
                // A file with two names has an inode row, and keeps it.
                let source = At::Entry { parent: own, name: name("f"), inode: file };
                let link = Link { source, parent: own, name: name("g") };
                cluster.at_name(own, &name("g"), Makes::Nothing, &link).await.unwrap();
                let unlink = Unlink { parent: own, name: name("g") };
                cluster.at_name(own, &name("g"), Makes::Nothing, &unlink).await.unwrap();
                rename(&cluster, (own, "f"), (target, "name")).await.unwrap();
            }
        };
        futures::join!(replace(0), replace(1), replace(2));
        assert_eq!(cluster.counted(target).await, 1);
    });
}

/// Whether the inode has an inode row, and an orphan row.
pub async fn kept(cluster: &Cluster, inode: InodeId) -> (bool, bool) {
    let keys = vec![Key::Inode(inode), Key::Orphan(inode)];
    match cluster.peers.call(inode.shard(), PeerCall::Fetch(keys)).await {
        PeerReply::Rows(rows) => (rows[0].is_some(), rows[1].is_some()),
        other => panic!("{other:?}"),
    }
}

/// The action of a session on a file while it is replaced.
#[derive(Clone, Copy, PartialEq)]
enum Meanwhile {
    Opens,
    Closes,
    /// Opens the file and closes it before the change is decided a second time.
    OpensForAMoment,
}

/// Promise: a file replaced from another shard stays for sessions that have it open, even if they open or close it
/// during the replacement, and is removed when no session has it open.
#[test]
fn file_opened_during_cross_shard_replacement_stays() {
    use Meanwhile::{Closes, Opens, OpensForAMoment};
    let session = varve_types::SessionId(7);
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        // The first replaced file is of the shard that is asked, the others are of the shard that asks.
        let orders = [[Opens, OpensForAMoment], [Closes, Opens], [OpensForAMoment, Closes]];
        for (round, order) in orders.into_iter().enumerate() {
            let b = cluster.mkdir(InodeId::ROOT, &format!("b{round}"), ShardId(2)).await;
            for meanwhile in order {
                let new = cluster.create(a, "new").await.unwrap().inode;
                let old = match cluster.lookup(b, "f").await {
                    Some((inode, _)) => inode,
                    None => cluster.create(b, "f").await.unwrap().inode,
                };
                let (files, shard) = (cluster.open_files(old).clone(), cluster.shard(old.shard()));
                if meanwhile == Closes {
                    files.open(session, old, false);
                }
                *cluster.peers.before_prepare.borrow_mut() = Some(Box::new(move || {
                    match meanwhile {
                        Closes => return shard.release(session, old),
                        Opens | OpensForAMoment => files.open(session, old, false),
                    }
                    if meanwhile == OpensForAMoment {
                        tokio::task::spawn_local(async move { shard.release(session, old) });
                    }
                }));
                rename(&cluster, (a, "new"), (b, "f")).await.unwrap();
                assert!(cluster.peers.before_prepare.borrow().is_none());
                assert_eq!(cluster.lookup(b, "f").await.map(|(inode, _)| inode), Some(new));
                if meanwhile == Opens {
                    assert_eq!(kept(&cluster, old).await, (true, true), "it is open");
                    cluster.shard(old.shard()).release(session, old);
                }
                let begun = std::time::Instant::now();
                while kept(&cluster, old).await != (false, false) {
                    assert!(begun.elapsed() < PATIENCE, "nobody has it open");
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
        }
    });
}

#[test]
fn opposite_renames_finish_without_a_cycle() {
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(2)).await;
        let x = cluster.mkdir(a, "x", ShardId(3)).await;
        let y = cluster.mkdir(b, "y", ShardId(0)).await;
        let (one, other) = futures::join!(rename(&cluster, (a, "x"), (y, "x")), rename(&cluster, (b, "y"), (x, "y")));
        assert!(one.is_ok() ^ other.is_ok(), "one of two opposite moves is a cycle: {one:?}, {other:?}");
        let (moved, into) = if one.is_ok() { (x, y) } else { (y, x) };
        assert_eq!(cluster.parent_of(moved).await, into);
        // Files that change places many times, from both ends at once.
        cluster.create(a, "f").await.unwrap();
        cluster.create(b, "g").await.unwrap();
        for _ in 0..20 {
            let (one, other) =
                futures::join!(rename(&cluster, (a, "f"), (b, "f")), rename(&cluster, (b, "g"), (a, "g")));
            one.unwrap();
            other.unwrap();
            let (one, other) =
                futures::join!(rename(&cluster, (b, "f"), (a, "f")), rename(&cluster, (a, "g"), (b, "g")));
            one.unwrap();
            other.unwrap();
        }
        assert!(cluster.lookup(a, "f").await.is_some() && cluster.lookup(b, "g").await.is_some());
    });
}

fn nth(cluster: &Cluster, counter: u64) -> TransactionId {
    TransactionId { coordinator: ShardId(1), epoch: cluster.shard(ShardId(1)).table.epoch(), counter }
}

/// A cross-shard change, as one of its participants first receives it.
fn under_way(cluster: &Cluster, counter: u64, change: Change) -> PeerCall {
    let participants = vec![ShardId(0), ShardId(1)];
    let intent = IntentRow { participants, changes: vec![change], reads: Vec::new(), reply: None };
    PeerCall::Prepare(nth(cluster, counter), intent, Vec::new(), None)
}

fn makes(cluster: &Cluster, counter: u64, at: &str) -> PeerCall {
    let row = EntryRow { inode: InodeId::new(ShardId(1), 1_000), body: EntryBody::Reference(FileKind::Regular) };
    under_way(cluster, counter, Change::put(Key::Entry(InodeId::ROOT, name(at)), Row::Entry(row)))
}

fn ended(cluster: &Cluster, counter: u64, commit: bool) -> PeerCall {
    PeerCall::Resolve { transaction: nth(cluster, counter), commit }
}

/// Promise: a listing waits for the cross-shard changes that it finds in progress, and not for later ones: under
/// constant renames there is always another.
#[test]
fn a_listing_waits_for_the_changes_that_it_finds() {
    Cluster::run(2, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "f").await.unwrap();
        let root = cluster.shard(InodeId::ROOT.shard());
        assert!(matches!(root.peer_call(makes(&cluster, 1, "one")).await, PeerReply::Vote(true)));
        let mut listing =
            Box::pin(root.list(InodeId::ROOT, NameHash(0), PageLimit { bytes_max: 2000, entry_bytes: 80 }));
        assert!(futures::poll!(&mut listing).is_pending(), "it may be decided");
        assert!(matches!(root.peer_call(makes(&cluster, 2, "other")).await, PeerReply::Vote(true)));
        assert!(futures::poll!(&mut listing).is_pending());
        assert!(matches!(root.peer_call(ended(&cluster, 1, false)).await, PeerReply::Done));
        let listed = tokio::time::timeout(PATIENCE, listing).await.unwrap().unwrap();
        assert_eq!(listed.entries.len(), 1);
        assert!(!root.state.borrow().locks.is_empty());
        assert!(matches!(root.peer_call(ended(&cluster, 2, false)).await, PeerReply::Done));
    });
}

/// Promise: a cross-shard change does not wait for the final phase of a split, which may itself wait for a change that
/// waits for this one: it is decided again.
#[test]
fn a_change_over_shards_does_not_wait_for_a_split() {
    Cluster::run(2, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "f").await.unwrap();
        let root = cluster.shard(InodeId::ROOT.shard());
        let split = |held| {
            let mut split = Split::of(HashRange::ALL);
            split.held = held;
            root.state.borrow_mut().partitions.get_mut(InodeId::ROOT).unwrap().split = held.then_some(split);
        };
        split(true);
        let mut refused = Box::pin(root.peer_call(makes(&cluster, 1, "g")));
        assert!(matches!(futures::poll!(&mut refused), Poll::Ready(PeerReply::Vote(false))));
        split(false);
        assert!(matches!(root.peer_call(makes(&cluster, 2, "g")).await, PeerReply::Vote(true)));
        assert!(matches!(root.peer_call(ended(&cluster, 2, false)).await, PeerReply::Done));
    });
}

/// Promise: after a split both halves have the directory's mode, even if the mode was being changed when the split
/// began.
#[test]
fn chmod_during_a_split_reaches_both_halves() {
    Cluster::run(2, 1000, |cluster| async move {
        for n in 0..20 {
            cluster.create(InodeId::ROOT, &format!("{n}")).await.unwrap();
        }
        let root = cluster.shard(InodeId::ROOT.shard());
        let row = async |index: u16| {
            let key = Key::Partition(InodeId::ROOT, PartitionIndex(index));
            match cluster.peers.call(ShardId(index), PeerCall::Fetch(vec![key.clone()])).await {
                PeerReply::Rows(rows) => match rows[0].clone() {
                    Some(Row::Partition(row)) => (key, row),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        };
        let (key, mut changed) = row(0).await;
        changed.mode = Mode::new(0o700);
        let change = under_way(&cluster, 1, Change::put(key, Row::Partition(changed)));
        assert!(matches!(root.peer_call(change).await, PeerReply::Vote(true)));
        let split = tokio::task::spawn_local({
            let root = root.clone();
            async move { root.split(InodeId::ROOT).await }
        });
        let waits = || {
            root.state.borrow().partitions.get(InodeId::ROOT).is_some_and(|p| p.split.as_ref().is_some_and(|s| s.held))
        };
        while !waits() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(root.peer_call(ended(&cluster, 1, true)).await, PeerReply::Done));
        split.await.unwrap();
        assert_eq!([row(0).await.1.mode, row(1).await.1.mode], [Mode::new(0o700); 2]);
    });
}

#[test]
fn revived_directory_is_visible_immediately() {
    Cluster::run(4, 1000, |cluster| async move {
        for home in [ShardId(0), ShardId(1), ShardId(3)] {
            let at = format!("d{home}");
            let lost = cluster.mkdir(InodeId::ROOT, &at, home).await;
            // As a power failure leaves it: its rows are gone from its home's log, and its name is in another log.
            let rows = [Key::Directory(lost), Key::Partition(lost, PartitionIndex::FIRST)];
            let gone = PeerCall::Apply(rows.into_iter().map(Change::Delete).collect());
            assert!(matches!(cluster.peers.call(home, gone).await, PeerReply::Done));
            assert_eq!(cluster.create(lost, "f").await.unwrap_err(), Errno::ENOENT.into());
            let revive = ReviveDirectory { parent: InodeId::ROOT, name: name(&at) };
            let revived = cluster.at_name(InodeId::ROOT, &name(&at), Makes::Nothing, &revive).await.unwrap();
            assert_eq!(revived.inode, lost);
            cluster.create(lost, "f").await.unwrap();
            assert_eq!(cluster.list(lost).await, [name("f")]);
        }
    });
}

/// Promise: a change of a split directory's mode keeps the counts that its partitions tally in the meantime.
#[test]
fn concurrent_creates_are_counted() {
    const FILES: usize = 400;
    Cluster::run(4, 10, |cluster| async move {
        let make = async |n: usize| drop(cluster.create(InodeId::ROOT, &format!("file {n}")).await.unwrap());
        for n in 0..FILES / 2 {
            make(n).await;
        }
        super::split::settle(&cluster, InodeId::ROOT, 4).await;
        let makes = async {
            for n in FILES / 2..FILES {
                make(n).await;
            }
        };
        let changes = async {
            for n in 0..100 {
                let set = SetAttributes { mode: Some(Mode::new(0o700 | (n % 8))), ..SetAttributes::default() };
                let verb = ChangeAttributes { at: At::Inode(InodeId::ROOT), set };
                cluster.at_home(InodeId::ROOT, &verb).await.unwrap();
            }
        };
        futures::join!(makes, changes);
        assert_eq!(cluster.counted(InodeId::ROOT).await, FILES as u64);
    });
}
