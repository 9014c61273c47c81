//! Totals of a directory over all its partitions.

use super::cluster::{Cluster, PATIENCE};
use crate::shards::ShardRefusal;
use crate::shards::directory_totals::ASKED_AT_ONCE;
use futures::future::{join, join_all};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use varve_types::{Credentials, InodeId, ShardId};

const ROOT: InodeId = InodeId::ROOT;

async fn counted(cluster: &Cluster) -> Result<u64, ShardRefusal> {
    let whole = cluster.shard(ShardId(0)).directory_totals(&Credentials::root(), ROOT).await?;
    Ok(whole.counts.entries)
}

async fn counted_at_last(cluster: &Cluster) -> u64 {
    let begun = Instant::now();
    loop {
        match counted(cluster).await {
            Ok(entries) => return entries,
            Err(ShardRefusal::Busy) if begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

/// Creates this many files, and records before and after each how many there may be and must be.
async fn make(cluster: &Rc<Cluster>, count: u64, begun: &Cell<u64>, made: &Cell<u64>) {
    for chunk in (0..count).collect::<Vec<_>>().chunks(10) {
        begun.set(begun.get() + chunk.len() as u64);
        let creates = chunk.iter().map(|n| {
            let cluster = cluster.clone();
            async move { cluster.create(ROOT, &format!("file {n}")).await }
        });
        join_all(creates).await.into_iter().for_each(|node| drop(node.unwrap()));
        made.set(begun.get());
    }
}

/// Promise: each name is counted once, even during splits.
#[test]
fn each_name_is_counted_once_during_a_split() {
    const FILES: u64 = 800;
    Cluster::run(16, 20, |cluster| async move {
        let (begun, made) = (Cell::new(0), Cell::new(0));
        let counts = async {
            let (mut counts, begun_at) = (0, Instant::now());
            while made.get() < FILES || cluster.map(ROOT).await.len() < 16 {
                let least = made.get();
                if let Ok(entries) = counted(&cluster).await {
                    let most = begun.get();
                    assert!((least..=most).contains(&entries), "{entries} names, of {least} to {most}");
                    counts += 1;
                }
                assert!(begun_at.elapsed() < PATIENCE, "it is split into {} parts", cluster.map(ROOT).await.len());
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            assert!(counts > 0, "it was counted meanwhile");
        };
        join(make(&cluster, FILES, &begun, &made), counts).await;
        assert_eq!(counted_at_last(&cluster).await, FILES);
    });
}

/// The shards of a directory are asked in parallel, up to the limit.
#[test]
fn partitions_are_queried_in_parallel() {
    Cluster::run(32, 20, |cluster| async move {
        let (begun, made) = (Cell::new(0), Cell::new(0));
        make(&cluster, 800, &begun, &made).await;
        super::split::settle(&cluster, ROOT, 32).await;
        while counted(&cluster).await.is_err() || cluster.is_splitting(ROOT) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cluster.reopen_after_crash().await;
        cluster.peers.most_fetches.set(0);
        assert_eq!(counted_at_last(&cluster).await, 800);
        let most = cluster.peers.most_fetches.get();
        assert!((2..=ASKED_AT_ONCE).contains(&most), "{most} at once");
    });
}
