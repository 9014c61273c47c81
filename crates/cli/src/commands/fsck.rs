//! `varve fsck STORE`: checks a volume without a server, and repairs it on request.

use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Rounded;
use crate::server;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use varve_admin::fsck::{self, CheckProgress, FsckError, FsckReport, MissingContent, Repaired, Severity};
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{LockError, VolumeDir};

/// fsck(8)'s exit codes: errors were found and repaired; errors were found and left; the check itself failed.
const REPAIRED: u8 = 1;
const ERRORS_LEFT: u8 = 4;
pub const OPERATIONAL_ERROR: u8 = 8;
/// Usage error.
pub const USAGE: u8 = 16;

/// Check a volume that is not served, and repair it on request; exits as fsck(8) does
///
/// Exit codes: 0 sound, 1 damage was found and repaired, 4 damage was found and left, 8 the check failed, 16 usage
/// error. Leftovers of a crash are not damage: they are counted, and listed with --verbose. A server removes some of
/// them by itself, such as the content of removed files. Others, such as the rows of directories removed just before
/// the crash, take space until --repair. A backing file without a row is never removed. The bytes of large files have
/// no checksum and are not read; only their lengths are compared. Without --repair nothing is written, except that servers
/// with --join are kept away: no server joins while the check runs.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store of the volume: a directory, or a file:// URL of one
    store: StoreUrl,
    /// Repair the volume; inodes that no path leads to go to lost+found in the root directory, under their inode ids
    #[arg(long)]
    repair: bool,
    /// With --repair: continue without the volume's data directory, which is lost for good. All large files become
    /// empty ones in lost+found; without this flag they stay as they are until the directory is restored
    #[arg(long, requires = "repair")]
    without_data: bool,
    /// List leftovers too, not only their number (--json always does)
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Serialize)]
struct FsckOutput {
    store: PathBuf,
    /// With --repair: the state after it.
    sound: bool,
    /// With --repair: the state before it.
    #[serde(skip)]
    was_sound: bool,
    /// With --repair: the state after it. Whether everything was read. If not, reading ended at damage, and the counts
    /// cover the rows read until then.
    complete: bool,
    /// The repairs made.
    repairs: Vec<String>,
    repairs_total: u64,
    /// Findings left after a repair.
    left: Vec<FindingOutput>,
    /// With --repair: the counts after it.
    counts: FsckCounts,
    /// The number of findings of each kind.
    totals: Vec<Total>,
    findings: Vec<FindingOutput>,
}

#[derive(Serialize)]
struct FsckCounts {
    shards: u64,
    rows: u64,
    directories: u64,
    partitions: u64,
    entries: u64,
    inodes: u64,
    xattrs: u64,
    orphans: u64,
    removed: u64,
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
struct FindingOutput {
    kind: &'static str,
    damage: bool,
    place: String,
    what: String,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let doing = if arguments.repair { "check and repair" } else { "check" };
    let failed = || Problem::new(format!("cannot {doing} {}", store.display())).exits(Exit::Fsck(OPERATIONAL_ERROR));
    identity::take(&store, Work::Store, failed)?;
    let bar = if output.shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    let volume = VolumeDir::new(&store);
    let mut progress = |progress| bar.set_message(shown(progress));
    let result = match arguments.repair {
        true => {
            let missing =
                if arguments.without_data { MissingContent::SetApart } else { MissingContent::SetApartUnlessAll };
            fsck::repair(&volume, missing, &mut progress).map(FsckOutcome::of_repair)
        }
        false => fsck::check(&volume, &mut progress).map(FsckOutcome::of_check),
    };
    bar.finish_and_clear();
    let outcome = result.map_err(|error| {
        let problem = failed().caused_by(&error);
        match error {
            FsckError::Locked(LockError::Held { .. }) => {
                problem.next("Unmount the volume or stop its server, then check again.")
            }
            FsckError::Locked(lock) => problem.next(server::to_lock(&lock)),
            FsckError::Maintenance(error) => match server::to_maintenance(&error) {
                Some(next) => problem.next(next),
                None => problem,
            },
            FsckError::Io { ref source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                problem.next("Run it as the volume's owner, or as root.")
            }
            FsckError::Table(_) | FsckError::Io { .. } if arguments.repair => {
                problem.next("The repairs made so far are complete; when the cause is gone, run it again.")
            }
            _ => problem,
        }
    })?;
    let code = outcome.exit_code();
    let reported = output.result("fsck", &checked(store, outcome), |checked| text(checked, arguments.verbose));
    reported.map_err(|problem| problem.exits(Exit::Fsck(OPERATIONAL_ERROR)))?;
    Ok(Exit::Fsck(code))
}

/// The findings and the repairs.
struct FsckOutcome {
    report: FsckReport,
    repairs: Vec<String>,
    repairs_total: u64,
    /// The report after a repair.
    after: Option<FsckReport>,
}

impl FsckOutcome {
    fn of_check(report: FsckReport) -> FsckOutcome {
        FsckOutcome { report, repairs: Vec::new(), repairs_total: 0, after: None }
    }

    fn of_repair(repaired: Repaired) -> FsckOutcome {
        let Repaired { before, repairs, repairs_total, after } = repaired;
        FsckOutcome { report: before, repairs, repairs_total, after: Some(after) }
    }

    fn is_sound(&self) -> bool {
        self.after.as_ref().unwrap_or(&self.report).is_sound()
    }

    fn exit_code(&self) -> u8 {
        match (self.is_sound(), self.report.is_sound()) {
            (false, _) => ERRORS_LEFT,
            (true, true) => 0,
            (true, false) => REPAIRED,
        }
    }
}

fn shown(progress: CheckProgress) -> String {
    match progress {
        CheckProgress::Opening => "opening the tables".into(),
        CheckProgress::Reading { pass, shard, shards, rows } => {
            format!("pass {pass} of 2: shard {shard} of {shards}, {rows} rows")
        }
        CheckProgress::Data { directories } => format!("backing files: directory {directories} of 256"),
        CheckProgress::Repairing { fixes } => format!("repairing {fixes} findings"),
    }
}

fn checked(store: PathBuf, outcome: FsckOutcome) -> FsckOutput {
    let (sound, was_sound) = (outcome.is_sound(), outcome.report.is_sound());
    let FsckOutcome { report, repairs, repairs_total, after } = outcome;
    let FsckReport { counts, incomplete, .. } = *after.as_ref().unwrap_or(&report);
    let damage = |kind: fsck::FindingKind| kind.severity() == Severity::Damage;
    FsckOutput {
        store,
        sound,
        was_sound,
        complete: !incomplete,
        repairs,
        repairs_total,
        left: after.map(|report| findings(report.findings)).unwrap_or_default(),
        counts: FsckCounts {
            shards: counts.shards,
            rows: counts.rows,
            directories: counts.directories,
            partitions: counts.partitions,
            entries: counts.entries,
            inodes: counts.inodes,
            xattrs: counts.xattrs,
            orphans: counts.orphans,
            removed: counts.removed,
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
        findings: findings(report.findings),
    }
}

fn findings(findings: Vec<fsck::Finding>) -> Vec<FindingOutput> {
    findings
        .into_iter()
        .map(|finding| FindingOutput {
            kind: finding.kind.name(),
            damage: finding.kind.severity() == Severity::Damage,
            place: finding.place,
            what: finding.what,
        })
        .collect()
}

fn text(checked: &FsckOutput, verbose: bool) -> String {
    let counts = &checked.counts;
    let mut text = columns(&[
        ("store", checked.store.display().to_string()),
        ("rows", format!("{} in {} shards", counts.rows, counts.shards)),
        ("directories", format!("{} in {} partitions", counts.directories, counts.partitions)),
        ("names", counts.entries.to_string()),
        ("small files", format!("{}, {}", counts.files_inline, Rounded(counts.bytes_inline))),
        ("large files", format!("{}, {}", counts.files_backing, Rounded(counts.bytes_backing))),
    ]);
    if !checked.complete {
        text += "Reading ended at damage: these are counts of what was read until then, nothing was compared, and there may be \
                 more.\n";
    }
    let line = |finding: &FindingOutput| {
        let grade = if finding.damage { "damage" } else { "left over" };
        format!("{grade}: {} {}: {}\n", finding.kind, finding.place, finding.what)
    };
    let listed = |finding: &&FindingOutput| verbose || finding.damage;
    checked.findings.iter().filter(listed).for_each(|finding| text += &line(finding));
    for total in &checked.totals {
        let grade = if total.damage { "" } else { "left over: " };
        text += &format!("{grade}{} × {}: {}\n", total.found, total.kind, total.advice);
    }
    checked.repairs.iter().for_each(|repair| text += &format!("repaired: {repair}\n"));
    let unsaid = checked.repairs_total - checked.repairs.len() as u64;
    if unsaid > 0 {
        text += &format!("repaired: {unsaid} more\n");
    }
    let left: String = checked.left.iter().filter(listed).map(line).collect();
    if !left.is_empty() {
        text += &format!("Left:\n{left}");
    }
    text += match (checked.sound, checked.repairs_total) {
        (true, 0) => "The volume is sound.\n",
        (true, _) if checked.was_sound => "Leftovers were removed. The volume is sound.\n",
        (true, _) => "The volume was repaired and is sound.\n",
        (false, _) => "The volume is damaged.\n",
    };
    if !checked.sound {
        text += "`varve path STORE INODE` shows the paths of an inode that is named above.\n";
        text += "If there is a dump of the volume (varve dump), a new volume from it and from the large files that are left is \
                 another way: varve load DUMP NEW_STORE --data STORE/data\n";
    }
    text
}
