//! `varve fsck STORE`: checks a volume that nobody serves.

use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use varve_meta::fsck::{self, FsckError, Progress, Report, Severity};
use varve_world::store_url::StoreUrl;
use varve_world::volume_dir::VolumeDir;

/// fsck(8)'s exit codes: something is wrong and was left so; the check itself failed.
const ERRORS_LEFT: u8 = 4;
const OPERATIONAL_ERROR: u8 = 8;

/// Check a volume that nobody serves; changes nothing, exits as fsck(8) does
///
/// Exit codes: 0 sound, 4 damage was found, 8 the check could not be made, 2 wrong usage. What a crash leaves and a
/// server clears away by itself is listed as left over and is not damage.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where the volume is: a directory, or a file:// URL of one
    store: StoreUrl,
}

#[derive(Serialize)]
struct Checked {
    store: PathBuf,
    sound: bool,
    counts: Counts,
    /// How often each kind was found.
    totals: Vec<Total>,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Counts {
    shards: u64,
    rows: u64,
    directories: u64,
    partitions: u64,
    entries: u64,
    inodes: u64,
    xattrs: u64,
    orphans: u64,
    intents: u64,
    files_inline: u64,
    bytes_inline: u64,
    files_backing: u64,
    bytes_backing: u64,
}

#[derive(Serialize)]
struct Total {
    kind: &'static str,
    damage: bool,
    found: u64,
    advice: &'static str,
}

#[derive(Serialize)]
struct Finding {
    kind: &'static str,
    damage: bool,
    place: String,
    what: String,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let bar = if output.shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    let report = fsck::check(&VolumeDir::new(&store), &mut |progress| bar.set_message(shown(progress)));
    bar.finish_and_clear();
    let report = report.map_err(|error| {
        let problem = Problem::new(format!("cannot check {}", store.display()))
            .caused_by(&error)
            .exits(Exit::Fsck(OPERATIONAL_ERROR));
        match error {
            FsckError::Locked(_) => problem.next("Unmount the volume or stop its server, then check again."),
            _ => problem,
        }
    })?;
    let sound = report.is_sound();
    output.result("fsck", &checked(store, report), text)?;
    Ok(Exit::Fsck(if sound { 0 } else { ERRORS_LEFT }))
}

fn shown(progress: Progress) -> String {
    match progress {
        Progress::Opening => "opening the tables".into(),
        Progress::Reading { pass, shard, shards, rows } => {
            format!("pass {pass} of 2: shard {shard} of {shards}, {rows} rows")
        }
        Progress::Data { directories } => format!("backing files: directory {directories} of 256"),
    }
}

fn checked(store: PathBuf, report: Report) -> Checked {
    let counts = report.counts;
    let damage = |kind: fsck::FindingKind| kind.severity() == Severity::Damage;
    Checked {
        store,
        sound: report.is_sound(),
        counts: Counts {
            shards: counts.shards,
            rows: counts.rows,
            directories: counts.directories,
            partitions: counts.partitions,
            entries: counts.entries,
            inodes: counts.inodes,
            xattrs: counts.xattrs,
            orphans: counts.orphans,
            intents: counts.intents,
            files_inline: counts.files_inline,
            bytes_inline: counts.bytes_inline,
            files_backing: counts.files_backing,
            bytes_backing: counts.bytes_backing,
        },
        totals: report
            .totals
            .iter()
            .map(|(kind, found)| Total {
                kind: kind.name(),
                damage: damage(*kind),
                found: *found,
                advice: kind.advice(),
            })
            .collect(),
        findings: report
            .findings
            .into_iter()
            .map(|finding| Finding {
                kind: finding.kind.name(),
                damage: damage(finding.kind),
                place: finding.place,
                what: finding.what,
            })
            .collect(),
    }
}

fn text(checked: &Checked) -> String {
    let counts = &checked.counts;
    let mut text = columns(&[
        ("store", checked.store.display().to_string()),
        ("rows", format!("{} in {} shards", counts.rows, counts.shards)),
        ("directories", format!("{} in {} partitions", counts.directories, counts.partitions)),
        ("names", counts.entries.to_string()),
        ("small files", format!("{}, {}", counts.files_inline, Bytes(counts.bytes_inline))),
        ("large files", format!("{}, {}", counts.files_backing, Bytes(counts.bytes_backing))),
    ]);
    for finding in &checked.findings {
        let grade = if finding.damage { "damage" } else { "left over" };
        text += &format!("{grade}: {} {}: {}\n", finding.kind, finding.place, finding.what);
    }
    for total in &checked.totals {
        text += &format!("{} × {}: {}\n", total.found, total.kind, total.advice);
    }
    text += if checked.sound { "The volume is sound.\n" } else { "The volume is damaged.\n" };
    text
}
