//! Measures the costs of tables (rfcs/0001-shard-count.md, rfcs/0002-log.md). Takes long, and needs an idle machine:
//! `VARVE_SOAK=1 cargo test --release -p varve-store measured -- --nocapture --test-threads 1`

use super::*;
use std::time::Instant;
use varve_env::posix_store::PosixStore;

fn asked() -> bool {
    std::env::var_os("VARVE_SOAK").is_some()
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let read = |id| rustix::time::clock_gettime(id);
    let time = read(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn open_all(env: &TestEnv, shards: u16) -> Vec<Table> {
    let template = env.config(Duration::from_secs(5));
    let store = PosixStore::open(template.volume.shards()).unwrap();
    let config = |shard| TableConfig { shard: ShardId(shard), store: store.clone(), ..template.clone() };
    futures::future::try_join_all((0..shards).map(|shard| Table::open(config(shard)))).await.unwrap()
}

/// "An idle shard costs almost nothing": processor time, memory, and the time to open.
#[test]
fn idle_tables_use_little_cpu() {
    if !asked() {
        return;
    }
    for shards in [16, 64, 256, 1024] {
        let env = TestEnv::with_shards(shards);
        env.worker(async || {
            let (before, start) = (resident_kib(), Instant::now());
            let tables = open_all(&env, shards).await;
            let opened = start.elapsed();
            // Longer than the first collection of the log.
            tokio::time::sleep(Duration::from_secs(12)).await;
            let busy = processor_time();
            tokio::time::sleep(Duration::from_secs(30)).await;
            let busy = processor_time() - busy;
            let start = Instant::now();
            let memory = resident_kib().saturating_sub(before);
            futures::future::try_join_all(tables.iter().map(Table::close)).await.unwrap();
            println!(
                "{shards} shards: opened in {opened:?}, {memory} KiB, {busy:?} of 30 s, closed in {:?}",
                start.elapsed()
            );
            assert!(busy < Duration::from_millis(300), "{busy:?}");
        });
    }
}

/// Rates of rows written, replayed after a crash, read and scanned, by one worker.
#[test]
fn write_rate_is_reported() {
    if !asked() {
        return;
    }
    for (shards, batch, rows) in [(1, 1, 300_000), (1, 16, 1_000_000), (16, 64, 64_000)] {
        let env = TestEnv::with_shards(16);
        env.worker(async || {
            let tables = open_all(&env, shards).await;
            let start = Instant::now();
            futures::future::join_all(tables.iter().map(|table| async {
                for first in (0..rows).step_by(batch as usize) {
                    put(table, first..first + batch).await;
                }
            }))
            .await;
            let written = start.elapsed();
            let start = Instant::now();
            for number in (0..rows).step_by((rows / 1000) as usize) {
                assert!(tables[0].get(&key(number)).await.unwrap().is_some());
            }
            let read = start.elapsed() / 1000;
            let mut syncs = Vec::new();
            for number in 0..200 {
                put(&tables[0], rows + number..rows + number + 1).await;
                let start = Instant::now();
                tables[0].sync().await.unwrap();
                syncs.push(start.elapsed());
            }
            syncs.sort();
            let count = u32::from(shards) * rows;
            println!(
                "{count} rows in batches of {batch} over {shards} shards: {:.0} a second; a get {read:?}; a sync {:?}",
                f64::from(count) / written.as_secs_f64(),
                syncs[100]
            );
        });
        env.worker(async || {
            let start = Instant::now();
            let tables = open_all(&env, shards).await;
            println!("  replayed in {:?}", start.elapsed());
            let start = Instant::now();
            assert!(numbers(&tables[0]).await.len() as u32 >= rows);
            println!("  scanned {rows} rows in {:?}", start.elapsed());
        });
    }
}
