use super::super::settings::TABLES_MAX;
use super::*;

/// Like a server with little memory.
fn small(env: &TestEnv, merges: &Merges) -> TableConfig {
    TableConfig {
        cache: TableCache::with_memtables(8 * 1024 * 1024, 256 * 1024),
        memtable_bytes: 64 * 1024,
        sync_writes: Default::default(),
        may_claim: None,
        merges: merges.clone(),
        ..env.config(LONG)
    }
}

/// A table with the maximum of unmerged tables, and more rows in memory that wait to become one. The returned value
/// takes all permits for merges. Also returns the number of rows.
async fn full(env: &TestEnv, merges: &Merges) -> (Table, u32, impl Sized) {
    let mut places = Vec::new();
    while let Ok(place) = tokio::time::timeout(Duration::from_millis(100), merges.place()).await {
        places.push(place);
    }
    let table = Table::open(small(env, merges)).await.unwrap();
    let mut written = 0u32;
    loop {
        let mut batch = TableBatch::default();
        (written..written + 256).for_each(|number| batch.put(key(number), [number as u8; 1024]));
        match tokio::time::timeout(Duration::from_secs(3), table.write(&batch)).await {
            Ok(result) => result.unwrap(),
            Err(_) => break,
        }
        written += 256;
    }
    assert!(table.db.manifest().l0().len() >= TABLES_MAX);
    (table, written, places)
}

/// Opens the table with permits for merges free; all written rows are there.
async fn has_all(env: &TestEnv, written: u32) {
    let merges = Merges::on(env.background.handle().clone());
    let opening = tokio::time::timeout(Duration::from_secs(120), Table::open(small(env, &merges)));
    let table = opening.await.expect("it is opened").unwrap();
    let mut rows = table.scan(Bytes::from_static(b"k"), Bytes::from_static(b"l")).await.unwrap();
    for number in 0..written {
        assert_eq!(rows.next().await.unwrap().expect("what was written is there").0, key(number));
    }
    drop(rows);
    tokio::time::timeout(Duration::from_secs(120), table.close()).await.expect("it is closed").unwrap();
}

/// A shard that died with the maximum of unmerged tables, and with more in its log than its memtables may hold, opens:
/// the replay makes tables, for which others have to be merged.
#[test]
fn unmerged_tables_are_merged_while_a_long_log_is_replayed() {
    let mut env = TestEnv::new();
    let merges = Merges::on(env.background.handle().clone());
    let written = env.worker(async || full(&env, &merges).await.1);
    env.background = background();
    env.worker(async || has_all(&env, written).await);
}

/// Promise: such a table closes although no merge runs any more: its rows in memory stay in its log.
#[test]
fn table_waiting_for_merges_can_close() {
    let mut env = TestEnv::new();
    let merges = Merges::on(env.background.handle().clone());
    let written = env.worker(async || {
        let (table, written, _places) = full(&env, &merges).await;
        tokio::time::timeout(Duration::from_secs(60), table.close()).await.expect("it is closed").unwrap();
        written
    });
    env.background = background();
    env.worker(async || has_all(&env, written).await);
}
