//! Sets the gauges of a worker every few seconds while a recorder is installed, and counts the uses of its row cache.

use super::worker::Worker;
use metrics::{counter, gauge};
use std::rc::Rc;
use std::time::Duration;
use varve_env::reserve::Reserve;
use varve_proto::ShardPhase;

/// Prometheus asks every 15 s or less often.
const REPORTED_EVERY: Duration = Duration::from_secs(2);

const PHASES: [(ShardPhase, &str); 8] = [
    (ShardPhase::Open, "open"),
    (ShardPhase::Opening, "opening"),
    (ShardPhase::Waiting, "waiting"),
    (ShardPhase::MovingAway, "moving"),
    (ShardPhase::ReadOnly, "read_only"),
    (ShardPhase::Failed, "failed"),
    (ShardPhase::Refused, "refused"),
    (ShardPhase::Released, "released"),
];

/// Reports until the worker stops.
pub async fn tend(worker: Rc<Worker>) {
    let mut stopping = std::pin::pin!(worker.stopping());
    loop {
        report(&worker);
        tokio::select! {
            () = &mut stopping => return,
            () = tokio::time::sleep(REPORTED_EVERY) => {}
        }
    }
}

fn report(worker: &Worker) {
    let label = worker.index.to_string();
    let own = worker.shared.settings.shards.all().filter(|shard| worker.owns(*shard));
    let phases: Vec<ShardPhase> = own.map(|shard| worker.locate(shard).phase).collect();
    for (phase, name) in PHASES {
        let count = phases.iter().filter(|found| **found == phase).count();
        gauge!("varve_shards", "worker" => label.clone(), "state" => name).set(count as f64);
    }
    let shards = worker.slots.all_open();
    let sum = |figure: fn(&crate::shards::ShardFigures) -> u64| {
        shards.iter().map(|shard| figure(&shard.status())).sum::<u64>() as f64
    };
    let set = |name: &'static str, value: f64| gauge!(name, "worker" => label.clone()).set(value);
    set("varve_open_files", sum(|figures| figures.open_files));
    set("varve_leases", sum(|figures| figures.leases));
    set("varve_partitions_loaded", sum(|figures| figures.partitions_loaded));
    set("varve_transactions_open", sum(|figures| figures.transactions_open));
    set("varve_orphans", sum(|figures| figures.backing_files_to_remove));
    set("varve_log_unsynced_bytes", sum(|figures| figures.log_bytes_unsynced));
    let uses = shards.iter().map(|shard| shard.take_row_uses());
    let (hits, misses) = uses.fold((0, 0), |(hits, misses), (hit, missed)| (hits + hit, misses + missed));
    for (result, count) in [("hit", hits), ("miss", misses)] {
        counter!("varve_row_reads_total", "worker" => label.clone(), "result" => result).increment(count);
    }
    if worker.index == 0 {
        report_server(worker);
    }
}

/// Sets the gauges of the parts that all workers share.
fn report_server(worker: &Worker) {
    gauge!("varve_sessions").set(worker.shared.sessions.count() as f64);
    gauge!("varve_store_full").set(f64::from(u8::from(worker.shared.reserve.is_short())));
    let (memtables, memtables_max) = worker.tables.table.cache.memtables();
    let (rows, names) = (&worker.tables.cache, &worker.tables.names);
    for (cache, held, limit) in [
        ("rows", rows.held() as f64, rows.bytes_max() as f64),
        ("names", names.held() as f64, names.bytes_max() as f64),
        ("memtables", memtables as f64, memtables_max as f64),
    ] {
        gauge!("varve_cache_bytes", "cache" => cache).set(held);
        gauge!("varve_cache_limit_bytes", "cache" => cache).set(limit);
    }
}

/// Reports the store's space; blocks on the store.
pub fn report_store(reserve: &Reserve) {
    if let Ok(space) = reserve.store_space() {
        gauge!("varve_store_size_bytes").set(space.bytes as f64);
        gauge!("varve_store_free_bytes").set(space.free_bytes as f64);
    }
}
