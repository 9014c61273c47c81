//! Result directories of IO500: `result_summary.txt`, or the same lines in `result.txt` of old versions.

use super::{Read, entry, set};
use crate::run_file::{RunEntry, marks, parameters, units};
use crate::{Error, Result};
use std::path::Path;

/// The files that may hold the results, the best first.
const FILES: [&str; 3] = ["result_summary.txt", "io500-summary.txt", "result.txt"];

/// The mark of a result that IO500 itself does not accept.
const INVALID: &str = "invalid by IO500's rules";

pub(super) fn read_directory(directory: &Path, label: &str) -> Result<Vec<RunEntry>> {
    let Some(file) = FILES.iter().map(|name| directory.join(name)).find(|file| file.is_file()) else {
        return Err(Error::Usage(format!(
            "cannot import the directory {}: it has none of IO500's files {}",
            directory.display(),
            FILES.join(", ")
        )));
    };
    super::ForeignFormat::Io500.read(&super::read_text(&file)?, label)
}

pub(super) fn read(text: &str) -> Read<Vec<RunEntry>> {
    let version = text.lines().find_map(|line| line.trim().strip_prefix("IO500 version "));
    let version = version.and_then(|rest| rest.split_whitespace().next()).unwrap_or("io500").to_owned();
    let entries: Vec<RunEntry> = text.lines().filter_map(|line| result(line.trim(), &version)).collect();
    if entries.is_empty() { Err("it has no lines of [RESULT]".to_owned()) } else { Ok(entries) }
}

/// `[RESULT]       ior-easy-write        2.303423 GiB/s : time 305.345 seconds [INVALID]`.
fn result(line: &str, version: &str) -> Option<RunEntry> {
    let rest = line.strip_prefix("[RESULT]")?;
    let mut words = rest.split_whitespace();
    let phase = words.next()?;
    let value: f64 = words.next()?.parse().ok()?;
    let (unit, rate) = match words.next()? {
        "GiB/s" => (units::MIB_PER_S, value * 1024.0),
        "kIOPS" => (units::OPS_PER_S, value * 1000.0),
        _ => return None,
    };
    let mut entry = entry("io500", phase, unit, version, vec![rate]);
    if phase.starts_with("mdtest-hard") {
        // The rules fix it.
        set(&mut entry, parameters::FILE_BYTES, Some(3901));
    }
    if rest.contains("INVALID") {
        entry.marks.push(INVALID.to_owned());
        entry.marks.push(marks::PARTIAL.to_owned());
    }
    Some(entry)
}
