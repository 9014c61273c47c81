//! IOR's table of results, of versions 3 and 4.

use super::{Read, bytes_of, entry, set};
use crate::run_file::{RunEntry, parameters, units};

pub(super) fn read(text: &str) -> Read<Vec<RunEntry>> {
    let version =
        text.lines().find_map(|line| line.trim().split_once(':').filter(|(name, _)| name.starts_with("IOR-")));
    let version = version.map_or("IOR", |(name, _)| name).trim().to_ascii_lowercase();
    let mut options: Vec<(&str, &str)> = Vec::new();
    let mut entries: Vec<RunEntry> = Vec::new();
    let mut in_results = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("Results:") {
            in_results = true;
        } else if line.starts_with("Options:") {
            // Another test with options of its own.
            (in_results, options) = (false, Vec::new());
        } else if let Some((name, value)) = line.split_once(':').filter(|_| !in_results) {
            options.push((name.trim(), value.trim()));
        } else if in_results && let Some((access, rate)) = result(line) {
            let mut entry = entry("ior", access, units::MIB_PER_S, &version, vec![rate]);
            let option = |wanted: &str| options.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
            set(&mut entry, parameters::CLIENTS, option("tasks").and_then(|tasks| tasks.parse::<u64>().ok()));
            set(&mut entry, parameters::TRANSFER_BYTES, option("xfersize").and_then(bytes_of));
            let layout =
                option("access").map(|access| if access.starts_with("file-per") { "unique" } else { "shared" });
            set(&mut entry, parameters::LAYOUT, layout);
            let segments = option("segments").and_then(|segments| segments.parse::<u64>().ok()).unwrap_or(1);
            let per_task = option("blocksize").and_then(bytes_of).map(|block| block.saturating_mul(segments));
            set(&mut entry, parameters::FILE_BYTES, per_task);
            super::collect(&mut entries, entry);
        }
    }
    if entries.is_empty() { Err("it has no table of results".to_owned()) } else { Ok(entries) }
}

/// `write     580.00     580.01 …`: one iteration.
fn result(line: &str) -> Option<(&'static str, f64)> {
    let mut words = line.split_whitespace();
    let access = match words.next()? {
        "write" => "write",
        "read" => "read",
        _ => return None,
    };
    let rate = words.next()?.parse().ok()?;
    // The table at the end also begins with the name of the operation, and has more columns.
    (words.count() <= 10).then_some((access, rate))
}
