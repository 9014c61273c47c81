use super::cluster::{Cluster, name};
use crate::shards::{Makes, PageLimit, PeerCall, PeerReply, ShardRefusal};
use varve_env::power_loss::DiskState;
use varve_posix::Lookup;
use varve_schema::{Change, IntentRow, Key, TransactionId};
use varve_types::{Epoch, Errno, InodeId, NameHash, ShardId};

/// Promise: in a read-only view everything acknowledged can be looked up and listed, over all shards, whether it is in
/// tables or only in the log. Changes are refused, and the next owner finds everything unchanged.
#[test]
fn read_only_view_serves_reads_and_refuses_changes() {
    Cluster::run(4, 16, |cluster| async move {
        let directory = cluster.mkdir(InodeId::ROOT, "d", ShardId(3)).await;
        let names: Vec<String> = (0..60).map(|number| format!("n{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            cluster.create(directory, name).await.unwrap();
            if number == 30 {
                cluster.flush().await;
            }
        }
        // Splits in progress have ended when all entries can be counted.
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.counted(directory).await, 60);

        cluster.rest_after_crash().await;
        cluster.check_lists(directory, names.iter().cloned()).await;
        for name in &names {
            assert!(cluster.lookup(directory, name).await.is_some(), "{name}");
        }
        assert_eq!(cluster.lookup(directory, "absent").await, None);
        let refused = cluster.create(directory, "fresh").await.unwrap_err();
        assert!(matches!(&refused, ShardRefusal::Failed(why) if why.errno == Errno::EROFS), "{refused:?}");

        cluster.reopen_after_crash().await;
        cluster.create(directory, "fresh").await.unwrap();
        cluster.check_lists(directory, names.into_iter().chain(["fresh".to_owned()])).await;
    });
}

/// Promise: a read-only view writes nothing.
#[test]
fn read_only_view_writes_nothing() {
    Cluster::run(2, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "file").await.unwrap();
        cluster.close().await;
        let before = DiskState::read_from(cluster.volume.root()).unwrap().digest();
        cluster.rest_after_crash().await;
        assert!(cluster.lookup(InodeId::ROOT, "file").await.is_some());
        cluster.create(InodeId::ROOT, "other").await.unwrap_err();
        assert_eq!(DiskState::read_from(cluster.volume.root()).unwrap().digest(), before);
        cluster.reopen_after_crash().await;
    });
}

/// Promise: in a read-only view a lookup of a name locked by an undecided cross-shard change fails immediately with the
/// store's error. When the shards have owners again, the name is there.
#[test]
fn read_only_view_refuses_names_of_undecided_changes() {
    Cluster::run(2, 1000, |cluster| async move {
        let directory = cluster.mkdir(InodeId::ROOT, "d", ShardId(1)).await;
        cluster.create(directory, "locked").await.unwrap();
        cluster.create(InodeId::ROOT, "free").await.unwrap();
        let transaction = TransactionId { coordinator: ShardId(0), epoch: Epoch(1), counter: 1_000 };
        let intent = IntentRow {
            participants: vec![ShardId(1)],
            changes: vec![Change::Delete(Key::Entry(directory, name("locked")))],
            reads: Vec::new(),
            reply: None,
        };
        let vote = cluster.peers.call(ShardId(1), PeerCall::Prepare(transaction, intent, Vec::new(), None)).await;
        assert!(matches!(vote, PeerReply::Vote(true)), "{vote:?}");

        cluster.rest_after_crash().await;
        let lookup = Lookup { parent: directory, name: name("locked") };
        let looked_up = cluster.at_name(directory, &name("locked"), Makes::Nothing, &lookup).await.map(drop);
        let listed = cluster
            .shard(ShardId(1))
            .list(directory, NameHash(0), PageLimit { bytes_max: 2000, entry_bytes: 80 })
            .await
            .map(drop);
        for refused in [looked_up, listed] {
            assert!(matches!(&refused, Err(ShardRefusal::Failed(why)) if why.errno == Errno::EROFS), "{refused:?}");
        }
        assert!(cluster.lookup(InodeId::ROOT, "free").await.is_some());

        cluster.reopen_after_crash().await;
        assert!(cluster.lookup(directory, "locked").await.is_some(), "its coordinator knows of no decision");
    });
}
