//! The names of a server's metrics with their help texts and units.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

const COUNTERS: [(&str, &str); 9] = [
    ("varve_calls_total", "Calls that were answered, by outcome: done, refused (an errno such as ENOENT), failed"),
    ("varve_received_bytes_total", "Bytes of requests that came over sockets"),
    ("varve_sent_bytes_total", "Bytes of replies that went over sockets"),
    ("varve_log_appends_total", "Batches appended to the logs of shards"),
    ("varve_log_appended_bytes_total", "Bytes appended to the logs of shards"),
    ("varve_row_reads_total", "Rows that requests read, by result: hit (in memory) or miss (read from a table)"),
    ("varve_splits_total", "Directory partitions that were split"),
    ("varve_transactions_total", "Changes over several shards, by outcome: committed or aborted (and then retried)"),
    ("varve_shard_openings_total", "Attempts to open a shard, by outcome: done or failed"),
];

const HISTOGRAMS: [(&str, &str); 4] = [
    ("varve_call_seconds", "Time from the decoded request to its reply"),
    ("varve_log_append_seconds", "Time of the write of one batch to a log"),
    ("varve_log_sync_seconds", "Time of one fsync of a log"),
    ("varve_store_request_seconds", "Time of one request of the tables to the store"),
];

const GAUGES: [(&str, &str); 14] = [
    ("varve_connections", "Open connections of clients"),
    ("varve_sessions", "Sessions of clients, connected or within their grace period"),
    ("varve_open_files", "Files that sessions have open"),
    ("varve_leases", "Leases on cached names and attributes"),
    ("varve_shards", "Shards of this server, by state"),
    ("varve_partitions_loaded", "Directory partitions in memory"),
    ("varve_transactions_open", "Changes over several shards that are in progress"),
    ("varve_orphans", "Backing files of removed files that are not removed yet"),
    ("varve_cache_bytes", "Memory in use by a cache: rows, names, or memtables (in bytes of their logs)"),
    ("varve_cache_limit_bytes", "Limit of a cache"),
    ("varve_memory_limit_bytes", "The memory limit of the server, --memory"),
    ("varve_replies_synced", "1 if replies to changes wait for their fsync, else 0"),
    ("varve_store_full", "1 if writes are refused because the store is full, else 0"),
    ("varve_log_unsynced_bytes", "Bytes of log that are not fsynced yet"),
];

const STORE_SPACE: [(&str, &str); 2] = [
    ("varve_store_size_bytes", "Size of the file system of the store"),
    ("varve_store_free_bytes", "Free space of the file system of the store for this user"),
];

/// Registers the help texts of all metrics of a server.
pub fn describe() {
    COUNTERS.iter().for_each(|(name, help)| describe_counter!(*name, *help));
    HISTOGRAMS.iter().for_each(|(name, help)| describe_histogram!(*name, Unit::Seconds, *help));
    GAUGES.iter().chain(&STORE_SPACE).for_each(|(name, help)| describe_gauge!(*name, *help));
}
