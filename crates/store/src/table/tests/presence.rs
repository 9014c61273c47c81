//! A shard that is missing, completely or in part, does not count as a new one.

use super::*;

async fn refused(config: TableConfig, words: &[&str]) -> TableError {
    let reading = TableReader::open(&config).await.err().expect("it is not read as an empty one");
    let opening = Table::open(config).await.err().expect("nor opened");
    for error in [&reading, &opening] {
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        assert_eq!(error.errno(), varve_types::Errno::EIO, "{error:?}");
        assert_eq!(error.is_damage(), opening.is_damage(), "{error:?}");
    }
    opening
}

/// Only a shard whose log was never begun is opened as empty. A missing part of any other shard is damage, and nothing
/// is created in its place.
#[test]
fn shard_without_manifests_is_not_opened_as_new() {
    let env = TestEnv::new();
    env.worker(async || {
        assert!(numbers(&Table::open(env.config(LONG)).await.unwrap()).await.is_empty());
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..10).await;
        table.close().await.unwrap();
        let shard = env.config(LONG).volume.shard(ShardId(1));
        let aside = env.directory.path().join("aside");
        for (lost, words) in [
            (shard.join("manifest"), ["there is no manifest", "varve fsck --repair"]),
            (shard.clone(), ["is missing; restore it", "varve fsck --repair"]),
        ] {
            std::fs::rename(&lost, &aside).unwrap();
            assert!(refused(env.config(LONG), &words).await.is_damage());
            assert!(!lost.exists(), "something was made in its place");
            std::fs::rename(&aside, &lost).unwrap();
        }
        assert_eq!(numbers(&Table::open(env.config(LONG)).await.unwrap()).await, (0..10).collect::<Vec<_>>());
    });
}

/// Only the log held the written rows: an empty log, or none, does not count as that of a new shard.
#[test]
fn shard_without_log_is_not_opened_as_new() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..10).await;
        table.sync().await.unwrap();
        drop(table);
        let log = env.config(LONG).volume.shard_log(ShardId(1));
        let aside = env.directory.path().join("aside");
        std::fs::rename(&log, &aside).unwrap();
        for made in [false, true] {
            if made {
                std::fs::create_dir(&log).unwrap();
            }
            let words = ["the log in", "is gone", "varve fsck --repair"];
            assert!(refused(env.config(LONG), &words).await.is_damage());
            let salvage = Salvage::read(&env.config(LONG)).await.unwrap();
            assert_eq!(salvage.damaged.len(), 1, "{:?}", salvage.damaged);
        }
        std::fs::remove_dir(&log).unwrap();
        std::fs::rename(&aside, &log).unwrap();
        assert_eq!(numbers(&Table::open(env.config(LONG)).await.unwrap()).await, (0..10).collect::<Vec<_>>());
    });
}

/// The shard's directory is gone, and an empty one, as `varve format` makes it, is in its place.
#[test]
fn shard_without_any_files_is_not_opened_as_new() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..10).await;
        table.close().await.unwrap();
        let volume = env.config(LONG).volume;
        let (shard, log) = (volume.shard(ShardId(1)), volume.shard_log(ShardId(1)));
        let aside = env.directory.path().join("aside");
        std::fs::rename(&shard, &aside).unwrap();
        std::fs::create_dir_all(&log).unwrap();
        let words = ["the shard was opened before", "varve fsck --repair"];
        assert!(refused(env.config(LONG), &words).await.is_damage());
        let salvage = Salvage::read(&env.config(LONG)).await.unwrap();
        assert_eq!(salvage.damaged.len(), 1, "{:?}", salvage.damaged);
        assert_eq!(std::fs::read_dir(&log).unwrap().count(), 0, "something was made in its place");
        std::fs::remove_dir_all(&shard).unwrap();
        std::fs::rename(&aside, &shard).unwrap();
        assert_eq!(numbers(&Table::open(env.config(LONG)).await.unwrap()).await, (0..10).collect::<Vec<_>>());
        // As a program before that mark has left it: the shard opens, and has the mark from then on.
        let [_, outside] = volume.shard_marks(ShardId(1));
        std::fs::remove_file(&outside).unwrap();
        drop(Table::open(env.config(LONG)).await.unwrap());
        assert!(outside.exists());
    });
}

/// If the whole store is unreachable, that is no damage, and the shard works again when the store is back.
#[test]
fn shard_of_an_unreachable_store_is_not_opened_as_new() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..10).await;
        let config = env.config(LONG);
        let (shards, aside) = (config.volume.shards(), env.directory.path().join("aside"));
        std::fs::rename(&shards, &aside).unwrap();
        // Its file is still open, and accepts writes.
        put(&table, 10..20).await;
        let error = table.sync().await.unwrap_err();
        assert!(
            matches!(error, TableError::Unavailable { .. }) && error.to_string().contains("is not there"),
            "{error}"
        );
        assert!(table.has_ended());
        let error = refused(config.clone(), &["the store's directory", "is not there", "bring it back"]).await;
        assert!(matches!(error, TableError::Unavailable { .. }), "{error:?}");
        let error = Salvage::read(&config).await.err().expect("nor saved from");
        assert!(matches!(error, TableError::Unavailable { .. }), "{error:?}");
        assert!(!shards.exists(), "something was made in its place");
        let begun = std::time::Instant::now();
        while table.unsaved_bytes() > 0 {
            assert!(begun.elapsed() < LONG, "what it took is not fsynced");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(table.unsynced_bytes() > 0);
        std::fs::rename(&aside, &shards).unwrap();
        // Like a server does.
        assert!(table.close().await.is_err());
        assert_eq!(numbers(&Table::open(env.config(LONG)).await.unwrap()).await, (0..20).collect::<Vec<_>>());
    });
}
