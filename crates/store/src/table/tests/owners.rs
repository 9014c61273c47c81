//! Takeovers while a process of the previous owner is stopped.

use super::*;
use collection::Collection;
use rustix::fs::FlockOperation;
use slatedb::wal::WalError;
use tokio::time::Instant;
use varve_env::disk;
use varve_env::flock::Locked;

/// A stopped process that holds the lock for replacements in a shard's directory delays no takeover of the shard: an
/// opening, a flush and a close create files and replace none.
#[test]
fn held_lock_of_the_store_delays_no_takeover() {
    let env = TestEnv::new();
    env.worker(async || {
        let first = Table::open(env.config(LONG)).await.unwrap();
        put(&first, 0..10).await;
        first.flush().await.unwrap();
        let lock = env.config(LONG).volume.shard(ShardId(1)).join(".~lock");
        let held =
            Locked::take(disk::open_lock_file(&lock).unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
        let began = Instant::now();
        let second = Table::open(env.config(LONG)).await.unwrap();
        put(&second, 10..20).await;
        second.flush().await.unwrap();
        assert_eq!(numbers(&second).await, (0..20).collect::<Vec<_>>());
        second.close().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        drop(held);
    });
}

/// An owner that was stopped until its garbage was due, and has a successor by then, collects nothing and ends.
#[test]
fn fenced_owner_collects_nothing() {
    let env = TestEnv::new();
    env.worker(async || {
        let first = Table::open(env.config(LONG)).await.unwrap();
        put(&first, 0..10).await;
        first.sync().await.unwrap();
        let mut collection = Collection::new(&env.config(LONG));
        let now = Instant::now();
        let due = collection.round(&first.log, 1, now).await.unwrap();
        let second = Table::open(env.config(LONG)).await.unwrap();
        assert!(!first.has_ended(), "it has not noticed");
        let names = || {
            let entries = env.config(LONG).volume.shard_log(ShardId(1)).read_dir().unwrap().into_iter();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_owned()).collect();
            names.sort();
            names
        };
        let before = names();
        let next = collection.round(&first.log, 1, due).await.unwrap();
        assert!(next > due && names() == before);
        assert!(matches!(first.log.failure(), Some(WalError::Fenced)));
        assert_eq!(numbers(&second).await, (0..10).collect::<Vec<_>>());
        second.close().await.unwrap();
    });
}
