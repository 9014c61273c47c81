use super::cluster::{Cluster, PATIENCE, name};
use super::hanging::pass;
use crate::shards::commit::APPEND_MAX;
use crate::shards::{Execution, Makes, PeerCall, PeerReply, RequestAddress, ShardRefusal};
use bytes::Bytes;
use futures::FutureExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use varve_posix::{At, MakeDirectory, RemoveDirectory, SetXattr, Unlink, XattrMode};
use varve_schema::Key;
use varve_types::{Credentials, Errno, InodeId, Mode, NameHash, PartitionIndex, ShardId};

pub async fn rmdir(cluster: &Cluster, directory: &str) -> Result<(), ShardRefusal> {
    let verb = RemoveDirectory { parent: InodeId::ROOT, name: name(directory) };
    cluster.at_name(InodeId::ROOT, &name(directory), Makes::Nothing, &verb).await.map(drop)
}

/// Runs `test` twice: with each shard on its own worker, and with all shards on one worker, which accesses them
/// directly.
pub fn far_and_near<F: Future<Output = ()>>(test: impl Fn(Rc<Cluster>) -> F) {
    for near in [false, true] {
        Cluster::run(4, 1000, |cluster| {
            cluster.peers.all_near.set(near);
            test(cluster)
        });
    }
}

#[test]
fn removed_directory_refuses_names_and_leaves_no_rows() {
    far_and_near(|cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", ShardId(2)).await;
        cluster.create(made, "f").await.unwrap();
        assert_eq!(rmdir(&cluster, "d").await.unwrap_err(), Errno::ENOTEMPTY.into());
        let unlink = Unlink { parent: made, name: name("f") };
        cluster.at_name(made, &name("f"), Makes::Nothing, &unlink).await.unwrap();
        rmdir(&cluster, "d").await.unwrap();
        assert_eq!(cluster.lookup(InodeId::ROOT, "d").await, None);
        assert_eq!(cluster.create(made, "late").await.unwrap_err(), Errno::ENOENT.into());
        cluster.shard(ShardId(0)).end_transactions().await;
        assert_eq!(cluster.shard(ShardId(2)).status().transactions_open, 0);
        for key in [Key::Directory(made), Key::Partition(made, PartitionIndex::FIRST)] {
            match cluster.peers.call(ShardId(2), PeerCall::Fetch(vec![key])).await {
                PeerReply::Rows(rows) => assert_eq!(rows[0], None),
                other => panic!("{other:?}"),
            }
        }
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, 0);
    });
}

/// The memory of removed rows is freed: an id is never reused, and the table knows that its rows are gone.
#[test]
fn removed_directories_are_not_remembered() {
    far_and_near(|cluster| async move {
        let home = cluster.shard(ShardId(2));
        cluster.mkdir(InodeId::ROOT, "stays", ShardId(2)).await;
        let before = home.state.borrow().resident.len();
        for round in 0..20 {
            let directory = format!("d{round}");
            cluster.mkdir(InodeId::ROOT, &directory, ShardId(2)).await;
            rmdir(&cluster, &directory).await.unwrap();
        }
        cluster.shard(ShardId(0)).end_transactions().await;
        cluster.sync().await;
        // Rows made absent by the last batch are dropped with the one after it.
        cluster.mkdir(InodeId::ROOT, "last", ShardId(2)).await;
        assert!(home.state.borrow().resident.len() <= before + 4, "{before}, {}", home.state.borrow().resident.len());
    });
}

/// The name and the directory's rows are in two shards: a removal costs one call between them.
#[test]
fn empty_directory_is_removed_with_one_peer_call() {
    Cluster::run(4, 1000, |cluster| async move {
        cluster.mkdir(InodeId::ROOT, "d", ShardId(2)).await;
        let before = cluster.peers.calls.get();
        rmdir(&cluster, "d").await.unwrap();
        assert_eq!(cluster.peers.calls.get() - before, 1);
    });
}

/// If two requests create the same name at the same time, one is refused, and the rows stored for it are removed.
#[test]
fn unnamed_directory_leaves_no_rows() {
    Cluster::run(4, 1000, |cluster| async move {
        cluster.peers.all_near.set(true);
        let first = cluster.mkdir(InodeId::ROOT, "first", ShardId(2)).await;
        let verb = MakeDirectory { parent: InodeId::ROOT, name: name("d"), mode: Mode::new(0o755) };
        let at = name("d");
        let makes = Makes::Directory { home: ShardId(2) };
        let make = || cluster.at_name(InodeId::ROOT, &at, makes, &verb);
        let (one, other) = futures::join!(make(), make());
        let (made, refused) = if one.is_ok() { (one, other) } else { (other, one) };
        assert_eq!(refused.unwrap_err(), Errno::EEXIST.into());
        let made = made.unwrap().inode;
        let taken = [InodeId(first.0 + 1), InodeId(first.0 + 2)];
        assert!(taken.contains(&made));
        for inode in taken.into_iter().filter(|inode| *inode != made) {
            for key in [Key::Directory(inode), Key::Partition(inode, PartitionIndex::FIRST)] {
                match cluster.peers.call(ShardId(2), PeerCall::Fetch(vec![key])).await {
                    PeerReply::Rows(rows) => assert_eq!(rows[0], None),
                    other => panic!("{other:?}"),
                }
            }
        }
        cluster.create(made, "f").await.unwrap();
    });
}

/// Promise: the rows of a directory are deleted when its removal is in the log, even if it was decided just now and its
/// batch is not sent yet.
#[test]
fn rows_go_after_the_removal_is_in_the_log() {
    Cluster::run(4, 1000, |cluster| async move {
        cluster.peers.all_near.set(true);
        let made = cluster.mkdir(InodeId::ROOT, "d", ShardId(2)).await;
        cluster.sync().await;
        let verb = RemoveDirectory { parent: InodeId::ROOT, name: name("d") };
        let caller = &Credentials::root();
        let address = RequestAddress::Name(InodeId::ROOT, NameHash::of(b"d"));
        let run = Execution { caller, address, makes: Makes::Nothing, record: None, registrar: None };
        let shard = cluster.shard(ShardId(0));
        let mut call = pin!(shard.run(&verb, run));
        cluster.commits.set_open(true);
        assert!(call.as_mut().now_or_never().is_none(), "the other shard's part waits for its log");
        assert!(cluster.commits.send());
        assert!(call.as_mut().now_or_never().is_none(), "the decision waits for its log");
        cluster.commits.set_open(false);
        shard.end_transactions().await;
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.lookup(InodeId::ROOT, "d").await, None);
        match cluster.peers.call(ShardId(2), PeerCall::Fetch(vec![Key::Directory(made)])).await {
            PeerReply::Rows(rows) => assert_eq!(rows[0], None),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn refused_removal_releases_prepared_rows() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", ShardId(2)).await;
        let verb = RemoveDirectory { parent: InodeId::ROOT, name: name("d") };
        let caller = &Credentials::user(7, 7, Vec::new());
        let address = RequestAddress::Name(InodeId::ROOT, NameHash::of(b"d"));
        for near in [true, false] {
            cluster.peers.all_near.set(near);
            let run = Execution { caller, address, makes: Makes::Nothing, record: None, registrar: None };
            let refused = cluster.shard(ShardId(0)).run(&verb, run).await;
            assert_eq!(refused.unwrap_err(), Errno::EACCES.into());
        }
        for shard in [ShardId(0), ShardId(2)] {
            assert_eq!(cluster.shard(shard).status().transactions_open, 0, "shard {shard}");
        }
        cluster.create(made, "f").await.unwrap();
        assert_eq!(rmdir(&cluster, "d").await.unwrap_err(), Errno::ENOTEMPTY.into());
        cluster.create(made, "g").await.unwrap();
    });
}

#[test]
fn rmdir_removes_xattrs_and_all_partitions() {
    Cluster::run(4, 20, |cluster| async move {
        let marked = cluster.mkdir(InodeId::ROOT, "marked", ShardId(1)).await;
        let mark = SetXattr {
            at: At::Inode(marked),
            name: Bytes::from_static(b"user.mark"),
            value: Bytes::from_static(b"1"),
            mode: XattrMode::Create,
        };
        let caller = &Credentials::root();
        let run = Execution {
            caller,
            address: RequestAddress::Inode(marked),
            makes: Makes::Nothing,
            record: None,
            registrar: None,
        };
        cluster.shard(ShardId(1)).run(&mark, run).await.unwrap();
        let cut = cluster.mkdir(InodeId::ROOT, "cut", ShardId(3)).await;
        for n in 0..100 {
            cluster.create(cut, &n.to_string()).await.unwrap();
        }
        super::split::settle(&cluster, cut, 4).await;
        for n in 0..100 {
            let at = name(&n.to_string());
            let unlink = Unlink { parent: cut, name: at.clone() };
            cluster.at_name(cut, &at, Makes::Nothing, &unlink).await.unwrap();
        }
        rmdir(&cluster, "marked").await.unwrap();
        rmdir(&cluster, "cut").await.unwrap();
        cluster.shard(ShardId(0)).end_transactions().await;
        let xattr = Key::Xattr(marked, Bytes::from_static(b"user.mark"));
        let mut rows =
            vec![(ShardId(1), Key::Directory(marked)), (ShardId(1), xattr), (ShardId(3), Key::Directory(cut))];
        rows.extend(
            cluster.settings.shards.all().map(|shard| {
                (shard, Key::Partition(cut, PartitionIndex::at(shard, ShardId(3), cluster.settings.shards)))
            }),
        );
        for (shard, key) in rows {
            assert_eq!(cluster.shard(shard).status().transactions_open, 0, "shard {shard}");
            match cluster.peers.call(shard, PeerCall::Fetch(vec![key.clone()])).await {
                PeerReply::Rows(rows) => assert_eq!(rows[0], None, "{key:?}"),
                PeerReply::Absent => {}
                other => panic!("{key:?}: {other:?}"),
            }
        }
    });
}

/// If a create in a directory and the removal of the directory run at the same time, one of them is refused; never both
/// succeed.
#[test]
fn rmdir_and_create_never_both_succeed() {
    far_and_near(|cluster| async move {
        for n in 0..200 {
            let at = format!("d{n}");
            let made = cluster.mkdir(InodeId::ROOT, &at, ShardId(n % 4)).await;
            let (created, removed) = match n % 2 {
                0 => futures::join!(cluster.create(made, "f"), rmdir(&cluster, &at)),
                _ => {
                    let (removed, created) = futures::join!(rmdir(&cluster, &at), cluster.create(made, "f"));
                    (created, removed)
                }
            };
            match (created, removed) {
                (Ok(_), Err(refusal)) => assert_eq!(refusal, Errno::ENOTEMPTY.into()),
                (Err(refusal), Ok(())) => assert_eq!(refusal, Errno::ENOENT.into()),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Promise: removals whose fsync was given up while the store hung are carried out when it resumes: none stays
/// undecided.
#[test]
fn late_synced_removals_are_completed() {
    Cluster::run(4, 1000, |cluster| async move {
        cluster.mkdir(InodeId::ROOT, "d", ShardId(2)).await;
        let (decides, holds) = (cluster.shard(ShardId(0)), cluster.shard(ShardId(2)));
        let hung = cluster.hang_fsyncs();
        rmdir(&cluster, "d").await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        pass(APPEND_MAX).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(decides.status().transactions_open > 0);
        drop(hung);
        let ends = async {
            while decides.status().transactions_open + holds.status().transactions_open > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ends).await.expect("both forget it");
    });
}
