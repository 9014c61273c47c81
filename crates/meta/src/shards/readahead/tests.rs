use super::super::tests::cluster::{Cluster, name};
use super::*;
use crate::shards::Makes;
use std::rc::Rc;
use varve_posix::{KeyState, Unlink};
use varve_types::{Name, PartitionIndex, ShardId};

/// A directory with this many files and no resident rows. Returns the names in the order of their hashes.
async fn filled(cluster: &Rc<Cluster>, files: usize) -> Vec<Name> {
    for n in 0..files {
        cluster.create(InodeId::ROOT, &format!("file {n}")).await.unwrap();
    }
    cluster.reopen_after_crash().await;
    let mut names: Vec<Name> = (0..files).map(|n| name(&format!("file {n}"))).collect();
    names.sort_by_key(Name::hash);
    names
}

fn entry(name: &Name) -> Key {
    Key::Entry(InodeId::ROOT, name.clone())
}

fn is_resident(cluster: &Cluster, name: &Name) -> bool {
    matches!(cluster.shard(ShardId(0)).state.borrow().resident.seen(&entry(name)).0, KeyState::Present(_))
}

async fn unlink(cluster: &Rc<Cluster>, name: &Name) {
    let verb = Unlink { parent: InodeId::ROOT, name: name.clone() };
    cluster.at_name(InodeId::ROOT, name, Makes::Nothing, &verb).await.unwrap();
}

/// Promise: a client that removes names in listing order finds most of their rows in memory, and all names are removed.
#[test]
fn removal_in_listing_order_reads_ahead() {
    Cluster::run(1, 10_000, |cluster| async move {
        let names = filled(&cluster, 400).await;
        let mut found = 0;
        for name in &names {
            found += usize::from(is_resident(&cluster, name));
            unlink(&cluster, name).await;
        }
        assert!(found > 350, "{found} rows were resident");
        cluster.check_lists(InodeId::ROOT, std::iter::empty()).await;
        cluster.reopen_after_crash().await;
        cluster.check_lists(InodeId::ROOT, std::iter::empty()).await;
    });
}

/// Promise: lookups in any other order read none ahead.
#[test]
fn other_orders_trigger_no_readahead() {
    Cluster::run(1, 10_000, |cluster| async move {
        let names = filled(&cluster, 200).await;
        for name in names.iter().rev().step_by(2) {
            cluster.lookup(InodeId::ROOT, &String::from_utf8_lossy(name.as_bytes())).await.unwrap();
        }
        assert!(names.iter().rev().skip(1).step_by(2).all(|name| !is_resident(&cluster, name)));
    });
}

/// Promise: rows read ahead do not hide decisions made in the meantime, even if the cache has no room.
#[test]
fn readahead_hides_no_decision() {
    Cluster::run(1, 10_000, |cluster| async move {
        let names = filled(&cluster, 40).await;
        let shard = cluster.shard(ShardId(0));
        shard.load_partition(InodeId::ROOT).await.unwrap();
        let key = entry(&names[2]);
        let readahead = {
            let state = &mut *shard.state.borrow_mut();
            assert!(names[..2].iter().all(|name| shard.begin_readahead(state, &entry(name)).is_none()));
            shard.begin_readahead(state, &key).unwrap()
        };
        let mut others = Vec::new();
        let asked = shard.scan_readahead(&key, &readahead, &mut others).await;
        assert!(matches!(asked, Some(Some(Row::Entry(_)))));
        assert!(others.iter().map(|(key, _)| key).eq(&names[3..19].iter().map(entry).collect::<Vec<_>>()));
        unlink(&cluster, &names[5]).await;
        {
            // Twice: the first pass only clears the used flags.
            let state = &mut *shard.state.borrow_mut();
            let none = std::sync::Arc::new(crate::shards::CacheBudget::new(0, 1));
            state.resident.measure_by(none);
            (0..2).for_each(|_| shard.shrink(state));
        }
        shard.end_readahead(&mut shard.state.borrow_mut(), &readahead, others);
        assert!(is_resident(&cluster, &names[6]));
        assert_eq!(cluster.lookup(InodeId::ROOT, &String::from_utf8_lossy(names[5].as_bytes())).await, None);
        // The readahead has ended: nothing is kept for it any more.
        assert!(!shard.state.borrow().partitions.hold(&key));
        assert!(shard.state.borrow().partitions.hold(&Key::Partition(InodeId::ROOT, PartitionIndex::FIRST)));
    });
}
