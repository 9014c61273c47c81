//! A hung store: changes decided in the meantime are only in memory, and no caller gets a success.

use super::cluster::{Cluster, PATIENCE, name};
use super::split::settle;
use crate::shards::commit::APPEND_MAX;
use crate::shards::transaction_state::{ASK_AFTER, ASK_AGAIN};
use crate::shards::{
    BatchNumber, Execution, Makes, PeerCall, PeerReply, ReplyRecorder, RequestAddress, Shard, ShardRefusal,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use varve_posix::{MakeDirectory, Rename, RenameFlags, Unlink};
use varve_schema::{Change, IntentRow, Key, Row, TransactionId, codec};
use varve_types::{Credentials, Epoch, Errno, InodeId, Mode, PartitionIndex, SessionId, ShardId};

/// Time for a reply that waits for nothing.
const NO_WAIT: Duration = Duration::from_millis(100);

/// Promise: a decided change is reported as applied when it is in the participant's log, whichever call applies it and
/// however often. Until then its coordinator keeps the decision. An abort need not wait for the log.
#[test]
fn resolve_waits_for_log_append() {
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
        let vote = cluster.peers.call(shard, PeerCall::Prepare(transaction, intent, Vec::new(), None)).await;
        assert!(matches!(vote, PeerReply::Vote(true)), "{vote:?}");

        let snapshots = cluster.snapshots(shard);
        let hung = snapshots.hang().await;
        for reported in ["first", "again"] {
            let apply = cluster.peers.call(shard, PeerCall::Resolve { transaction, commit: true });
            let applied = tokio::time::timeout(NO_WAIT, apply).await;
            assert!(applied.is_err(), "told {reported}, it answers {applied:?}");
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

/// Promise: if a size becomes stale once more, and lower, while the first change is being fsynced, the second change is
/// fsynced too before its writer may truncate the file.
#[test]
fn repeated_mark_size_stale_waits_for_its_own_sync() {
    Cluster::run(1, 1000, |cluster| async move {
        let inode = cluster.create(InodeId::ROOT, "f").await.unwrap().inode;
        let shard = cluster.shard(ShardId(0));
        let (first, second) = (BatchNumber(1), BatchNumber(2));
        let size_stale = |batch| shard.state.borrow_mut().size_stale.insert(inode, batch);
        size_stale(first);
        let hung = cluster.hang_fsyncs();
        // A change that is not fsynced.
        cluster.create(InodeId::ROOT, "g").await.unwrap();
        let mut waits = Box::pin(shard.mark_size_stale_on_disk(inode));
        assert!(futures::poll!(&mut waits).is_pending());
        size_stale(second);
        drop(hung);
        waits.await.unwrap();
        assert_eq!(shard.state.borrow().size_stale.get(&inode), Some(&second));
        shard.mark_size_stale_on_disk(inode).await.unwrap();
        assert_eq!(shard.state.borrow().size_stale.get(&inode), None);
    });
}

/// Makes all requests that wait for the hung store of `shard` fail, as if it had hung for [`APPEND_MAX`].
pub async fn hang_for_long(shard: &Shard) {
    while shard.state.borrow().in_flight.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    pass(APPEND_MAX).await;
}

/// Advances timers by `time`.
pub async fn pass(time: Duration) {
    // Tasks that were just spawned start their wait first.
    tokio::time::sleep(Duration::from_millis(1)).await;
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Promise: rows sent by an abandoned split attempt are dropped before the next attempt sends any, even if they reach
/// the log after that has begun: a name removed in between stays removed.
#[test]
fn abandoned_split_on_a_hanging_store_is_dropped() {
    const FILES: usize = 41;
    Cluster::run(2, FILES as u64 - 1, |cluster| async move {
        let made: Vec<_> = (0..FILES).map(|n| format!("{n}")).collect();
        let snapshots = cluster.snapshots(ShardId(1));
        let hung = snapshots.hang().await;
        for at in &made {
            cluster.create(InodeId::ROOT, at).await.unwrap();
        }
        let target = cluster.shard(ShardId(1));
        let half = PartitionIndex(1).range(1);
        let brought = || target.state.borrow().resident.entries_of(InodeId::ROOT, half).count();
        while brought() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let removed = made.iter().find(|at| half.contains(name(at).hash())).unwrap();
        let unlink = Unlink { parent: InodeId::ROOT, name: name(removed) };
        cluster.at_name(InodeId::ROOT, &name(removed), Makes::Nothing, &unlink).await.unwrap();
        hang_for_long(&target).await;
        while cluster.shard(ShardId(0)).state.borrow().splits_begun < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Time to have sent all rows again.
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(hung);
        settle(&cluster, InodeId::ROOT, 2).await;
        let left = || made.iter().filter(|at| *at != removed).cloned();
        cluster.check_lists(InodeId::ROOT, left()).await;
        cluster.reopen_after_crash().await;
        cluster.check_lists(InodeId::ROOT, left()).await;
        assert_eq!(cluster.counted(InodeId::ROOT).await, FILES as u64 - 1);
    });
}

/// Promise: a change given up while the store hung is acknowledged on a retry once it is in the log: an acknowledged
/// change survives the death of the process.
#[test]
fn a_retry_is_answered_when_its_change_is_in_the_log() {
    Cluster::run(1, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "f").await.unwrap();
        let shard = cluster.shard(ShardId(0));
        let snapshots = cluster.snapshots(shard.id());
        let hung = snapshots.hang().await;
        let verb = Unlink { parent: InodeId::ROOT, name: name("f") };
        let encode = |_: &_| bytes::Bytes::from_static(b"first answer");
        let run = Execution {
            caller: &Credentials::root(),
            address: RequestAddress::Name(InodeId::ROOT, name("f").hash()),
            makes: Makes::Nothing,
            record: Some(ReplyRecorder { session: SessionId(9), slot: 2, number: 5, encode: &encode }),
            registrar: None,
        };
        let (first, ()) = futures::join!(shard.run(&verb, run), hang_for_long(&shard));
        assert!(matches!(&first, Err(ShardRefusal::Failed(why)) if why.errno == Errno::ETIMEDOUT), "{first:?}");

        let retry = async || shard.reply_again(shard.find_reply(SessionId(9), 2, 5).unwrap()).await;
        let early = tokio::time::timeout(NO_WAIT, retry()).await;
        assert!(early.is_err(), "while the store hangs it is told {early:?}");
        drop(hung);
        assert_eq!(*retry().await.unwrap(), b"first answer"[..]);
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.lookup(InodeId::ROOT, "f").await, None);
    });
}

/// Promise: a directory whose creation was given up while the store of its name's shard hung is complete if its name
/// exists in the end: its rows, in another shard, are not deleted while the name may still appear.
#[test]
fn late_named_directory_has_its_rows() {
    for near in [false, true] {
        Cluster::run(2, 1000, |cluster| async move {
            cluster.peers.all_near.set(near);
            // Ids of its home are available.
            cluster.mkdir(InodeId::ROOT, "first", ShardId(1)).await;
            let shard = cluster.shard(ShardId(0));
            let snapshots = cluster.snapshots(shard.id());
            let hung = snapshots.hang().await;
            let (at, makes) = (name("d"), Makes::Directory { home: ShardId(1) });
            let verb = MakeDirectory { parent: InodeId::ROOT, name: at.clone(), mode: Mode::new(0o755) };
            let make = cluster.at_name(InodeId::ROOT, &at, makes, &verb);
            let (made, ()) = futures::join!(make, hang_for_long(&shard));
            assert!(matches!(&made, Err(ShardRefusal::Failed(why)) if why.errno == Errno::ETIMEDOUT), "{made:?}");

            drop(hung);
            cluster.sync().await;
            for _ in 0..2 {
                let (made, _) = cluster.lookup(InodeId::ROOT, "d").await.unwrap();
                cluster.create(made, "f").await.unwrap();
                let unlink = Unlink { parent: made, name: name("f") };
                cluster.at_name(made, &name("f"), Makes::Nothing, &unlink).await.unwrap();
                cluster.reopen_after_crash().await;
            }
        });
    }
}

/// Promise: a cross-shard change whose coordinator's store hangs is aborted when its caller gives up. A shard that fails
/// in the meantime leaves the decision to its next owner.
#[test]
fn transaction_on_a_hung_store_is_aborted() {
    for fails in [false, true] {
        Cluster::run(2, 1000, |cluster| async move {
            let (from, to) = (ShardId(0), ShardId(1));
            let a = cluster.mkdir(InodeId::ROOT, "a", from).await;
            let b = cluster.mkdir(InodeId::ROOT, "b", to).await;
            let file = cluster.create(a, "f").await.unwrap().inode;
            let coordinator = cluster.shard(from);
            let open = |id| cluster.shard(id).status().transactions_open;
            let snapshots = cluster.snapshots(from);
            let hung = snapshots.hang().await;
            let (parent, new_parent, flags) = (a, b, RenameFlags::Replace);
            let verb = Rename { parent, name: name("f"), new_parent, new_name: name("g"), flags };
            let at = name("f");
            let rename = cluster.at_name(a, &at, Makes::Nothing, &verb);
            let (renamed, ()) = futures::join!(rename, hang_for_long(&coordinator));
            assert!(matches!(&renamed, Err(ShardRefusal::Failed(why)) if why.errno == Errno::ETIMEDOUT), "{renamed:?}");
            if fails {
                coordinator.state.borrow_mut().failed = Some("its store is away".into());
            }
            drop(hung);
            if fails {
                cluster.reopen_after_crash().await;
            }
            let ends = async {
                while (open(from), open(to)) != (0, 0) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(PATIENCE, ends).await.expect("nothing stays locked");
            assert_eq!(cluster.lookup(a, "f").await.map(|(inode, _)| inode), Some(file));
            assert_eq!(cluster.lookup(b, "g").await, None);
            cluster.reopen_after_crash().await;
            assert_eq!(cluster.lookup(a, "f").await.map(|(inode, _)| inode), Some(file));
            assert_eq!(cluster.lookup(b, "g").await, None);
        });
    }
}

/// Promise: a retry of a cross-shard change gets its reply when all intents are on disk, like the first call: an earlier
/// power failure undoes the change.
#[test]
fn cross_shard_retry_is_answered_once_durable() {
    Cluster::run(2, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(0)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(1)).await;
        cluster.create(a, "f").await.unwrap();
        let shard = cluster.shard(ShardId(0));
        let hung = Rc::new(RefCell::new(None));
        let (hangs, of) = (Rc::clone(&hung), Rc::clone(&cluster));
        *cluster.peers.before_prepare.borrow_mut() =
            Some(Box::new(move || drop(hangs.borrow_mut().replace(of.hang_fsyncs()))));
        let (parent, new_parent, flags) = (a, b, RenameFlags::Replace);
        let verb = Rename { parent, name: name("f"), new_parent, new_name: name("g"), flags };
        let encode = |_: &_| bytes::Bytes::from_static(b"first answer");
        let run = Execution {
            caller: &Credentials::root(),
            address: RequestAddress::Name(a, name("f").hash()),
            makes: Makes::Nothing,
            record: Some(ReplyRecorder { session: SessionId(9), slot: 2, number: 5, encode: &encode }),
            registrar: None,
        };
        let retry = async || {
            while shard.find_reply(SessionId(9), 2, 5).is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            shard.reply_again(shard.find_reply(SessionId(9), 2, 5).unwrap()).await
        };
        let (first, ()) = futures::join!(shard.run(&verb, run), async {
            let early = tokio::time::timeout(NO_WAIT, retry()).await;
            assert!(early.is_err(), "while the store hangs it is told {early:?}");
            drop(hung.borrow_mut().take());
            assert_eq!(*retry().await.unwrap(), b"first answer"[..]);
        });
        first.unwrap();
    });
}

/// Promise: a participant asks for the outcome of intents locked when its store began to hang, even if no abort
/// arrives.
#[test]
fn intents_prepared_during_a_hang_are_resolved() {
    Cluster::run(2, 1000, |cluster| async move {
        let shard = cluster.shard(ShardId(1));
        let directory = cluster.mkdir(InodeId::ROOT, "d", shard.id()).await;
        cluster.create(directory, "f").await.unwrap();
        let transaction = TransactionId { coordinator: ShardId(0), epoch: Epoch(1), counter: 1_000 };
        let changes = vec![Change::Delete(Key::Entry(directory, name("f")))];
        let intent = IntentRow { participants: vec![shard.id()], changes, reads: Vec::new(), reply: None };
        let snapshots = cluster.snapshots(shard.id());
        let hung = snapshots.hang().await;
        let prepare = cluster.peers.call(shard.id(), PeerCall::Prepare(transaction, intent, Vec::new(), None));
        let (vote, ()) = futures::join!(prepare, hang_for_long(&shard));
        assert!(matches!(vote, PeerReply::Failed(_)), "{vote:?}");
        drop(hung);
        assert_eq!(shard.status().transactions_open, 1);
        pass(ASK_AFTER).await;
        let ends = async {
            while shard.status().transactions_open > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ends).await.expect("it is not locked for ever");
        assert!(cluster.lookup(directory, "f").await.is_some());
    });
}

/// Promise: a committed change that cannot be applied here, because rows that it changes are damaged, is retried only
/// with pauses.
#[test]
fn failed_apply_is_retried_periodically() {
    Cluster::run(2, 1000, |cluster| async move {
        let (shard, coordinator) = (cluster.shard(ShardId(1)), cluster.shard(ShardId(0)));
        let directory = cluster.mkdir(InodeId::ROOT, "d", shard.id()).await;
        cluster.reopen_after_crash().await;
        let (shard, coordinator) = (cluster.shard(shard.id()), cluster.shard(coordinator.id()));
        let damaged = codec::encode_key(&Key::Partition(directory, PartitionIndex::FIRST));
        let batch = {
            let mut state = shard.state.borrow_mut();
            state.open.rows.put(damaged, b"no row");
            state.open.number
        };
        shard.appended_with_work(batch).await.unwrap();
        let transaction = TransactionId { coordinator: coordinator.id(), epoch: Epoch(1), counter: 1_000 };
        let changes = vec![Change::Delete(Key::Entry(directory, name("f")))];
        let intent = IntentRow { participants: vec![shard.id()], changes, reads: Vec::new(), reply: None };
        coordinator.state.borrow_mut().transactions.note_decided(transaction);
        shard.restore_transaction(Key::Intent(transaction), Row::Intent(intent));
        let before = cluster.peers.calls.get();
        tokio::time::sleep(3 * ASK_AGAIN).await;
        let calls = cluster.peers.calls.get() - before;
        assert!((1..=4).contains(&calls), "it is asked for {calls} times");
    });
}
