//! mdtest's summary table, of versions 1.8 to 4.

use super::{Read, SUMMARY_ONLY, entry, set};
use crate::run_file::{RunEntry, parameters, units};

/// The rows of the table and their metrics. Those of files have the names of `bench mdtest`.
const ROWS: [(&str, &str); 12] = [
    ("Directory creation", "mkdir"),
    ("Directory stat", "directory stat"),
    ("Directory rename", "directory rename"),
    ("Directory removal", "rmdir"),
    ("File creation", "create"),
    ("File stat", "stat"),
    ("File read", "read"),
    ("File rename", "rename"),
    ("File removal", "delete"),
    ("Tree creation", "tree creation"),
    ("Tree stat", "tree stat"),
    ("Tree removal", "tree removal"),
];

pub(super) fn read(text: &str) -> Read<Vec<RunEntry>> {
    let launched = text.lines().find(|line| line.contains("was launched with"));
    let version = launched.and_then(|line| line.split_whitespace().next()).unwrap_or("mdtest");
    let words: Vec<&str> = launched.map(|line| line.split_whitespace().collect()).unwrap_or_default();
    let after = |word: &str| words.iter().position(|given| *given == word).and_then(|at| words.get(at + 1));
    let tasks = after("with").and_then(|number| number.parse::<u64>().ok());
    let files = text.lines().find_map(files_of);
    let command = text.lines().find(|line| line.starts_with("Command line used:")).unwrap_or_default();
    let mut entries = Vec::new();
    let (mut in_table, mut iterations) = (false, 1);
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("SUMMARY") {
            // The table of times repeats the rates in another unit.
            in_table = !line.starts_with("SUMMARY time");
            let counted = line.split_once("(of ").and_then(|(_, rest)| rest.split(' ').next());
            iterations = counted.and_then(|count| count.parse().ok()).unwrap_or(1);
        }
        let Some((row, metric)) = ROWS.iter().find(|(row, _)| in_table && line.starts_with(row)) else { continue };
        let numbers: Vec<f64> = line[row.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // With -P, the rates of single ranks come first; those of iterations are the last four.
        let [.., max, min, mean, _deviation] = numbers[..] else { continue };
        // A phase that was not run has rate 0.
        if max <= 0.0 {
            continue;
        }
        let mut entry = entry("mdtest", metric, units::OPS_PER_S, version, samples(iterations, max, min, mean));
        set(&mut entry, parameters::CLIENTS, tasks);
        set(&mut entry, parameters::FILES, files);
        let unique = has_option(command, 'u');
        set(&mut entry, parameters::LAYOUT, (!command.is_empty()).then_some(if unique { "unique" } else { "shared" }));
        if metric == &"create" || metric == &"stat" || metric == &"read" || metric == &"delete" {
            set(&mut entry, parameters::FILE_BYTES, (!command.is_empty()).then(|| value_of(command, 'w').unwrap_or(0)));
        }
        if iterations > 3 {
            entry.marks.push(SUMMARY_ONLY.to_owned());
        }
        entries.push(entry);
    }
    if entries.is_empty() { Err("it has no summary table with rates".to_owned()) } else { Ok(entries) }
}

/// Up to three iterations follow from the extremes and the mean. Of more, only these three are known.
fn samples(iterations: u32, max: f64, min: f64, mean: f64) -> Vec<f64> {
    match iterations {
        1 => vec![mean],
        2 => vec![max, min],
        3 => vec![max, min, (3.0 * mean - max - min).clamp(min, max)],
        _ => vec![min, mean, max],
    }
}

/// `4 tasks, 4000 files/directories`.
fn files_of(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(" tasks, ")?;
    let (count, what) = rest.split_once(' ')?;
    what.starts_with("files").then(|| count.parse().ok()).flatten()
}

/// Whether the command line has a flag. mdtest quotes each word in new versions.
fn has_option(command: &str, letter: char) -> bool {
    command.split_whitespace().any(|word| word.trim_matches('\'') == format!("-{letter}"))
}

fn value_of(command: &str, letter: char) -> Option<u64> {
    let mut words = command.split_whitespace().map(|word| word.trim_matches('\''));
    words.find(|word| *word == format!("-{letter}"))?;
    super::bytes_of(words.next()?)
}
