use super::cluster::Cluster;
use crate::shards::Refusal;
use varve_types::{InodeId, ShardId};
use varve_world::power_loss::State;

/// Promise: at rest everything that was acknowledged can be looked up and listed, over all shards, whether it is in tables
/// or in the log alone; changes are refused, and the next owner finds all as it was.
#[test]
fn at_rest_everything_is_read_and_changes_are_refused() {
    Cluster::run(4, 16, |cluster| async move {
        let directory = cluster.mkdir(InodeId::ROOT, "d", ShardId(3)).await;
        let names: Vec<String> = (0..60).map(|number| format!("n{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            cluster.create(directory, name).await.unwrap();
            if number == 30 {
                cluster.flush().await;
            }
        }
        // What splits have begun is over when all can be counted.
        cluster.reopen_after_crash().await;
        assert_eq!(cluster.counted(directory).await, 60);

        cluster.rest_after_crash().await;
        cluster.check_lists(directory, names.iter().cloned()).await;
        for name in &names {
            assert!(cluster.lookup(directory, name).await.is_some(), "{name}");
        }
        assert_eq!(cluster.lookup(directory, "absent").await, None);
        let refused = cluster.create(directory, "fresh").await.unwrap_err();
        assert!(matches!(&refused, Refusal::Failed(why) if why.contains("only be read")), "{refused:?}");

        cluster.reopen_after_crash().await;
        cluster.create(directory, "fresh").await.unwrap();
        cluster.check_lists(directory, names.into_iter().chain(["fresh".to_owned()])).await;
    });
}

/// Promise: reading at rest writes nothing.
#[test]
fn at_rest_nothing_is_written() {
    Cluster::run(2, 1000, |cluster| async move {
        cluster.create(InodeId::ROOT, "file").await.unwrap();
        cluster.close().await;
        let before = State::read_from(cluster.volume.root()).unwrap().digest();
        cluster.rest_after_crash().await;
        assert!(cluster.lookup(InodeId::ROOT, "file").await.is_some());
        cluster.create(InodeId::ROOT, "other").await.unwrap_err();
        assert_eq!(State::read_from(cluster.volume.root()).unwrap().digest(), before);
        cluster.reopen_after_crash().await;
    });
}
