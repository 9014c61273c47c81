//! The text tables of iozone and h5perf.

use super::{Read, entry, set};
use crate::run_file::{RunEntry, parameters, units};

/// The columns of iozone's table after the size of the file and of a record, in KiB.
const IOZONE: [&str; 6] = ["write", "rewrite", "read", "reread", "random read", "random write"];

/// `iozone -i 0 -i 1`: rates in KiB/s (or, with threads, `Children see throughput for …`).
pub(super) fn read_iozone(text: &str) -> Read<Vec<RunEntry>> {
    let version = text.lines().find_map(|line| line.split_once("Version $Revision:"));
    let version = version.and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or_default();
    let tool = format!("iozone-{version}");
    let tool = tool.trim_end_matches('-');
    let mut entries = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers: Option<Vec<f64>> = words.iter().map(|word| word.parse().ok()).collect();
        if let Some([kib, record, rates @ ..]) = numbers.as_deref().filter(|numbers| numbers.len() > 2) {
            for (metric, rate) in IOZONE.iter().zip(rates) {
                let mut found = entry("iozone", metric, units::MIB_PER_S, tool, vec![rate / 1024.0]);
                set(&mut found, parameters::CLIENTS, Some(1));
                set(&mut found, parameters::FILE_BYTES, Some((kib * 1024.0) as u64));
                set(&mut found, parameters::TRANSFER_BYTES, Some((record * 1024.0) as u64));
                super::collect(&mut entries, found);
            }
        } else if let Some(found) = children(line, tool) {
            super::collect(&mut entries, found);
        }
    }
    if entries.is_empty() { Err("it has no line of rates".to_owned()) } else { Ok(entries) }
}

/// `Children see throughput for  2 initial writers  =  123456.00 kB/sec`.
fn children(line: &str, tool: &str) -> Option<RunEntry> {
    let (_, rest) = line.split_once("Children see throughput for")?;
    let (what, rate) = rest.split_once('=')?;
    let (threads, who) = what.trim().split_once(' ')?;
    let metric = match who.trim() {
        "initial writers" => "write",
        "rewriters" => "rewrite",
        "readers" => "read",
        "re-readers" => "reread",
        "random readers" => "random read",
        "random writers" => "random write",
        _ => return None,
    };
    let kib: f64 = rate.split_whitespace().next()?.parse().ok()?;
    let mut found = entry("iozone", metric, units::MIB_PER_S, tool, vec![kib / 1024.0]);
    set(&mut found, parameters::CLIENTS, threads.parse::<u64>().ok());
    Some(found)
}

/// The titles of h5perf's blocks.
const H5PERF: [(&str, &str); 4] = [
    ("Write (", "write"),
    ("Write Open-Close", "write with open"),
    ("Read (", "read"),
    ("Read Open-Close", "read with open"),
];

/// h5perf and h5perf_serial: blocks of `IO API`, `Write (…)`, `Maximum/Average/Minimum Throughput: 123.45 MB/s`. Their
/// MB is 1,048,576 bytes.
pub(super) fn read_h5perf(text: &str) -> Read<Vec<RunEntry>> {
    let mut entries: Vec<RunEntry> = Vec::new();
    let (mut api, mut access, mut clients, mut transfer) = (String::new(), None, 1, None);
    let (mut values, mut block) = (Vec::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once("IO API = ") {
            api = name.trim().to_ascii_lowercase();
        } else if let Some(rest) = line.strip_prefix("Number of processors = ") {
            clients = rest.parse::<u64>().unwrap_or(1);
        } else if let Some((_, size)) = line.split_once("Transfer Buffer Size") {
            let digits = size.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
            transfer = digits.and_then(|digits| digits.parse::<u64>().ok());
        }
        access = H5PERF.iter().find(|(name, _)| line.starts_with(name)).map_or(access, |(_, metric)| Some(*metric));
        for name in ["Maximum", "Average", "Minimum"] {
            let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.trim().strip_prefix("Throughput:")) else {
                continue;
            };
            let rate: Option<f64> = rest.split_whitespace().next().and_then(|rate| rate.parse().ok());
            if block != access {
                (values, block) = (Vec::new(), access);
            }
            values.extend(rate);
        }
        let (&[max, mean, min], Some(metric)) = (&values[..], access) else { continue };
        let mut found = entry("h5perf", &format!("{api} {metric}"), units::MIB_PER_S, "h5perf", vec![min, mean, max]);
        if max == min {
            found.samples.truncate(1);
        } else {
            found.marks.push(super::SUMMARY_ONLY.to_owned());
        }
        set(&mut found, parameters::CLIENTS, Some(clients));
        set(&mut found, parameters::TRANSFER_BYTES, transfer);
        super::collect(&mut entries, found);
        values = Vec::new();
    }
    if entries.is_empty() { Err("it has no throughput".to_owned()) } else { Ok(entries) }
}
