use super::super::compaction::TABLES_MAX;
use super::*;

/// As a server with little memory has it.
fn small(world: &World, merges: &Merges) -> TableConfig {
    TableConfig {
        cache: TableCache::with_memtables(8 * 1024 * 1024, 256 * 1024),
        memtable_bytes: 64 * 1024,
        merges: merges.clone(),
        ..world.config(LONG)
    }
}

/// A table with as many unmerged tables as there may be, and more in memory that waits to become one: all places for merges are
/// taken by what comes with it. How many rows it has.
async fn full(world: &World, merges: &Merges) -> (Table, u32, impl Sized) {
    let mut places = Vec::new();
    while let Ok(place) = tokio::time::timeout(Duration::from_millis(100), merges.place()).await {
        places.push(place);
    }
    let table = Table::open(small(world, merges)).await.unwrap();
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

/// Opens it, with places for merges free; what was written is there.
async fn has_all(world: &World, written: u32) {
    let merges = Merges::on(world.background.handle().clone());
    let opening = tokio::time::timeout(Duration::from_secs(120), Table::open(small(world, &merges)));
    let table = opening.await.expect("it is opened").unwrap();
    let mut rows = table.scan(Bytes::from_static(b"k"), Bytes::from_static(b"l")).await.unwrap();
    for number in 0..written {
        assert_eq!(rows.next().await.unwrap().expect("what was written is there").0, key(number));
    }
    drop(rows);
    tokio::time::timeout(Duration::from_secs(120), table.close()).await.expect("it is closed").unwrap();
}

/// A shard that died with as many unmerged tables as there may be, and more in its log than its memtables may hold, is opened:
/// what is replayed makes tables, for which others have to be merged.
#[test]
fn unmerged_tables_are_merged_while_a_long_log_is_replayed() {
    let mut world = World::new();
    let merges = Merges::on(world.background.handle().clone());
    let written = world.worker(async || full(&world, &merges).await.1);
    world.background = background();
    world.worker(async || has_all(&world, written).await);
}

/// Promise: one that is closed so is closed, though nothing is merged any more: what it has in memory stays in its log.
#[test]
fn a_table_that_waits_for_merges_is_closed() {
    let mut world = World::new();
    let merges = Merges::on(world.background.handle().clone());
    let written = world.worker(async || {
        let (table, written, _places) = full(&world, &merges).await;
        tokio::time::timeout(Duration::from_secs(60), table.close()).await.expect("it is closed").unwrap();
        written
    });
    world.background = background();
    world.worker(async || has_all(&world, written).await);
}
