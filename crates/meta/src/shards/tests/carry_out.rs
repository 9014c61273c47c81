//! The end of a cross-shard transaction after its commit, and its recovery: a transaction is committed if and only if
//! all its intents are on stable storage.

use super::cluster::{Cluster, name};
use super::transactions::rename;
use crate::shards::{PeerCall, PeerReply};
use varve_schema::{
    Change, DirectoryMovesRow, EntryBody, EntryRow, IntentRow, Key, Kind, ReplyRecord, Row, TransactionId,
};
use varve_types::{FileKind, InodeId, SessionId, ShardId, Timestamp};

const COORDINATOR: ShardId = ShardId(1);
const SESSION: SessionId = SessionId(9);

/// The names of a transaction in progress: each in a directory of another shard.
struct Names {
    /// At the coordinator.
    own: InodeId,
    /// At the participants, shards 2 and 3.
    others: [InodeId; 2],
}

impl Names {
    async fn make(cluster: &Cluster) -> Names {
        let make = |at: u16| async move { cluster.mkdir(InodeId::ROOT, &format!("d{at}"), ShardId(at)).await };
        Names { own: make(1).await, others: [make(2).await, make(3).await] }
    }

    /// Whether the transaction has made its names. It has made all of them or none.
    async fn are_made(&self, cluster: &Cluster) -> bool {
        let own = cluster.lookup(self.own, "new").await.is_some();
        for directory in self.others {
            assert_eq!(cluster.lookup(directory, "new").await.is_some(), own, "the transaction is half done");
            assert_eq!(cluster.counted_once(directory).await, u64::from(own));
        }
        assert_eq!(cluster.counted_once(self.own).await, u64::from(own));
        own
    }
}

fn makes(directory: InodeId) -> Vec<Change> {
    let row = EntryRow { inode: InodeId::new(ShardId(1), 1_000), body: EntryBody::Reference(FileKind::Regular) };
    vec![
        Change::put(Key::Entry(directory, name("new")), Row::Entry(row)),
        Change::Tally { directory, name: name("new"), entries: 1, subdirectories: 0, at: Timestamp::NEVER },
    ]
}

fn transaction(cluster: &Cluster) -> TransactionId {
    TransactionId { coordinator: COORDINATOR, epoch: cluster.shard(COORDINATOR).table.epoch(), counter: 77 }
}

fn part(directory: InodeId, reply: Option<ReplyRecord>) -> IntentRow {
    IntentRow { participants: vec![ShardId(2), ShardId(3)], changes: makes(directory), reads: Vec::new(), reply }
}

async fn prepare(cluster: &Cluster, transaction: TransactionId, directory: InodeId) {
    let call = PeerCall::Prepare(transaction, part(directory, None), Vec::new(), None);
    assert!(matches!(cluster.peers.call(directory.shard(), call).await, PeerReply::Vote(true)));
}

async fn propose(cluster: &Cluster, transaction: TransactionId, directory: InodeId) {
    let shard = cluster.shard(COORDINATOR);
    let reply = ReplyRecord { session: SESSION, slot: 0, number: 1, about: None, reply: b"done".as_slice().into() };
    let batch = shard.write_own_intent(transaction, part(directory, Some(reply)));
    shard.durable(batch).await.unwrap();
}

fn is_replied(cluster: &Cluster) -> bool {
    cluster.shard(COORDINATOR).find_reply(SESSION, 0, 1).is_some()
}

/// The number of intents, marks and decisions in all tables.
pub async fn records(cluster: &Cluster) -> usize {
    let mut found = 0;
    for shard in cluster.settings.shards.all() {
        for kind in [Kind::Intent, Kind::Decision] {
            found += cluster.shard(shard).rows_of(kind).await.unwrap().len();
        }
    }
    found
}

#[test]
fn next_owner_commits_if_all_parts_are_stored() {
    Cluster::run(4, 1000, |cluster| async move {
        let names = Names::make(&cluster).await;
        let id = transaction(&cluster);
        prepare(&cluster, id, names.others[0]).await;
        prepare(&cluster, id, names.others[1]).await;
        propose(&cluster, id, names.own).await;
        assert!(!is_replied(&cluster));
        cluster.reopen_after_crash().await;
        assert!(names.are_made(&cluster).await);
        assert!(is_replied(&cluster), "a retry gets the reply");
        cluster.shard(COORDINATOR).end_transactions().await;
        cluster.sync().await;
        assert_eq!(records(&cluster).await, 0);
        cluster.reopen_after_crash().await;
        assert!(names.are_made(&cluster).await);
    });
}

#[test]
fn next_owner_aborts_if_a_part_is_missing() {
    for stored in [[true, false], [false, true], [false, false]] {
        Cluster::run(4, 1000, |cluster| async move {
            let names = Names::make(&cluster).await;
            let id = transaction(&cluster);
            for (directory, stored) in names.others.into_iter().zip(stored) {
                if stored {
                    prepare(&cluster, id, directory).await;
                }
            }
            propose(&cluster, id, names.own).await;
            cluster.reopen_after_crash().await;
            assert!(!names.are_made(&cluster).await);
            assert!(!is_replied(&cluster));
            cluster.create(names.own, "new").await.unwrap();
        });
    }
}

#[test]
fn missing_intent_of_the_coordinator_aborts() {
    Cluster::run(4, 1000, |cluster| async move {
        let names = Names::make(&cluster).await;
        let id = transaction(&cluster);
        prepare(&cluster, id, names.others[0]).await;
        prepare(&cluster, id, names.others[1]).await;
        cluster.reopen_after_crash().await;
        assert!(!names.are_made(&cluster).await);
    });
}

/// Promise: a part that was applied proves that the transaction is committed, if a power failure takes the decision.
#[test]
fn mark_of_an_applied_part_counts_as_stored() {
    Cluster::run(4, 1000, |cluster| async move {
        let names = Names::make(&cluster).await;
        let id = transaction(&cluster);
        prepare(&cluster, id, names.others[0]).await;
        prepare(&cluster, id, names.others[1]).await;
        propose(&cluster, id, names.own).await;
        let commit = PeerCall::Resolve { transaction: id, commit: true };
        assert!(matches!(cluster.peers.call(ShardId(2), commit).await, PeerReply::Done));
        cluster.reopen_after_crash().await;
        assert!(names.are_made(&cluster).await);
    });
}

/// Promise: the next owner of a coordinator that failed has the transaction applied everywhere.
#[test]
fn next_owner_carries_out_a_decision() {
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(2)).await;
        let moved = cluster.mkdir(a, "x", ShardId(3)).await;
        cluster.peers.keeps_decisions.set(true);
        rename(&cluster, (a, "x"), (b, "x")).await.unwrap();
        cluster.shard(ShardId(1)).state.borrow_mut().failed = Some("its store is away".into());
        cluster.peers.keeps_decisions.set(false);
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.lookup(b, "x").await, Some((moved, true)));
        assert_eq!(cluster.lookup(a, "x").await, None);
        assert_eq!(cluster.parent_of(moved).await, b);
    });
}

#[test]
fn settled_transactions_leave_no_records() {
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(2)).await;
        for number in 0..20 {
            let file = format!("f{number}");
            cluster.create(a, &file).await.unwrap();
            rename(&cluster, (a, &file), (b, &file)).await.unwrap();
        }
        for shard in cluster.settings.shards.all() {
            cluster.shard(shard).end_transactions().await;
        }
        for shard in cluster.settings.shards.all() {
            assert_eq!(cluster.shard(shard).status().transactions_open, 0);
        }
        cluster.sync().await;
        assert_eq!(records(&cluster).await, 0);
    });
}

/// Promise: before the coordinator has recovered the transaction, a participant that asks gets no outcome, and a retry
/// of the call is not decided anew.
#[test]
fn outcome_and_retry_wait_for_the_recovery() {
    Cluster::run(4, 1000, |cluster| async move {
        let names = Names::make(&cluster).await;
        let id = transaction(&cluster);
        prepare(&cluster, id, names.others[0]).await;
        prepare(&cluster, id, names.others[1]).await;
        propose(&cluster, id, names.own).await;
        cluster.peers.keeps_preparations.set(true);
        cluster.reopen_after_crash().await;
        let asked = cluster.shard(COORDINATOR).peer_call(PeerCall::Outcome(id)).await;
        assert!(matches!(asked, PeerReply::Busy), "{asked:?}");
        assert!(cluster.shard(COORDINATOR).is_recovering(SESSION, 0));
        cluster.peers.keeps_preparations.set(false);
        assert!(names.are_made(&cluster).await);
        assert!(!cluster.shard(COORDINATOR).is_recovering(SESSION, 0));
        assert!(is_replied(&cluster));
    });
}

async fn directory_moves(cluster: &Cluster) -> u64 {
    let fetch = PeerCall::Fetch(vec![Key::DirectoryMoves]);
    match cluster.peers.call(InodeId::ROOT.shard(), fetch).await {
        PeerReply::Rows(rows) => match &rows[0] {
            Some(Row::DirectoryMoves(row)) => row.count,
            None => 0,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Promise: a move of a directory between parents is decided again if another one was committed in the meantime.
/// Otherwise two moves could each put a directory beneath the other's.
#[test]
fn directory_move_conflicts_with_another_one() {
    Cluster::run(4, 1000, |cluster| async move {
        let a = cluster.mkdir(InodeId::ROOT, "a", ShardId(1)).await;
        let b = cluster.mkdir(InodeId::ROOT, "b", ShardId(2)).await;
        let moved = cluster.mkdir(a, "x", ShardId(3)).await;
        cluster.create(a, "f").await.unwrap();
        rename(&cluster, (a, "f"), (b, "f")).await.unwrap();
        assert_eq!(directory_moves(&cluster).await, 0, "a file makes no cycle");
        let root = cluster.shard(InodeId::ROOT.shard());
        *cluster.peers.before_prepare.borrow_mut() = Some(Box::new(move || {
            let other = Row::DirectoryMoves(DirectoryMovesRow { count: 7 });
            root.take_rows(vec![Change::put(Key::DirectoryMoves, other)]);
        }));
        rename(&cluster, (a, "x"), (b, "x")).await.unwrap();
        assert!(cluster.peers.before_prepare.borrow().is_none());
        assert_eq!(directory_moves(&cluster).await, 8);
        assert_eq!(cluster.lookup(b, "x").await, Some((moved, true)));
        assert_eq!(cluster.parent_of(moved).await, b);
    });
}
