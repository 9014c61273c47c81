//! Checks a volume that no server uses: the consistency of its tables with each other and with the backing files.
//!
//! The check reads every table completely, with the part of its log that is not in the table yet, as if the decided
//! transactions were applied ([`crate::snapshot`]); it writes nothing. It reads rows in order and does not keep them:
//! it keeps some hundred bytes per directory, partition and file with an inode row, and some 8 to 40 bytes per other
//! file.
//!
//! ```text
//! 1. partitions, directories, inodes, orphans, intents of every shard   → rows
//! 2. which partitions make up each directory                            → directories
//! 3. entries and extended attributes of every shard                     → files
//! 4. names against rows, rows against names                             → directories, files
//! 5. rows against backing files                                         → data
//! ```
//!
//! Each finding that can be repaired has a [`Fix`]. [`repair()`] carries the fixes out, the lowest layer first, and
//! checks again until none is left.

mod census;
mod data;
mod directories;
mod files;
mod fix;
mod logs;
mod missing_shards;
mod repair;
mod rows;

pub use repair::MissingContent;
pub(crate) use repair::repair_locked;
pub use repair::{Repaired, repair};

use crate::maintenance::{Maintenance, MaintenanceError};
use crate::snapshot::Unreadable;
use census::Census;
use fix::{Fix, RepairStage};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use varve_env::volume_dir::{LockError, VolumeDir, VolumeFileError};
use varve_types::{ShardId, VolumeSettings};

/// Findings kept with their text; more are only counted. A person must be able to read them.
pub const FINDINGS_MAX: usize = 10_000;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A leftover of a crash: a server removes or completes it by itself, or it takes space until it is repaired.
    /// Nothing is lost.
    Leftover,
    /// The volume is inconsistent or incomplete.
    Damage,
}

macro_rules! kinds {
    ($($kind:ident = $severity:ident, $name:literal, $advice:literal;)*) => {
        /// Kind of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingKind { $($kind),* }

        impl FindingKind {
            pub fn name(self) -> &'static str {
                match self { $(FindingKind::$kind => $name),* }
            }

            pub fn severity(self) -> Severity {
                match self { $(FindingKind::$kind => Severity::$severity),* }
            }

            /// The recommended action.
            pub fn advice(self) -> &'static str {
                match self { $(FindingKind::$kind => $advice),* }
            }
        }
    };
}

kinds! {
    DamagedVolumeFile = Damage, "damaged-volume-file",
        "no server starts without it: restore the file from a copy, or let --repair recreate it from the copy in \
         shards/";
    DamagedVolumeCopy = Damage, "damaged-volume-copy",
        "the volume can be served, but not if its volume file is damaged too: check the underlying disks; the next \
         server recreates the copy, and so does --repair";
    DamagedKey = Damage, "damaged-key",
        "no server starts without the key: restore the file from a copy, or let --repair create another one, which \
         requires no other change";
    DamagedTable = Damage, "damaged-table",
        "the store returned bytes that Varve did not write: check the underlying disks; restore the file from a copy, \
         or let --repair save what else is in the table";
    DamagedLog = Damage, "damaged-log",
        "acknowledged changes cannot be read: restore the file from a copy, or let --repair save what else is in the log";
    MissingLog = Damage, "missing-log",
        "files of the log are gone, and with them acknowledged changes that were only in the log: restore them from a \
         copy of the store, or let --repair continue with the remaining files";
    TornLog = Leftover, "torn-log",
        "the log ends with incomplete bytes, without a mark that they were fsynced: normal after a power loss, and the \
         next server cuts them off; otherwise check the underlying disks, because the content of these bytes is lost";
    MissingShard = Damage, "missing-shard",
        "the whole content of the shard is gone: bring its directory back, restore it from a copy of the store, or let \
         --repair continue with the other shards";
    UnreadableShard = Damage, "unreadable-shard",
        "the shard and rows that refer to it cannot be checked: see the reason";
    DamagedRow = Damage, "damaged-row",
        "the store returned bytes that Varve did not write: check the underlying disks and restore the file or \
         directory from a copy";
    MisplacedRow = Damage, "misplaced-row",
        "the row is in a shard where no server looks for it; please report this bug of Varve";
    NoRoot = Damage, "no-root",
        "the root directory has no rows: was the directory of shard 0 replaced or emptied? restore it from a copy";
    MissingPartition = Damage, "missing-partition",
        "names in this range of the directory cannot be found: was a shard's directory replaced or emptied? restore it from a copy";
    StrayPartition = Damage, "stray-partition",
        "no split made this partition; please report this bug of Varve";
    AbortedSplit = Leftover, "aborted-split",
        "a split was interrupted before its commit; the next split removes this";
    ImportedPartition = Leftover, "arrived-partition",
        "a split was committed and its target not used since; a server records it when the directory is used";
    WrongPartition = Damage, "wrong-partition",
        "the partition row contradicts its key or its directory; please report this bug of Varve";
    WrongCount = Damage, "wrong-count",
        "the directory shows a wrong size or link count, and rmdir may fail or succeed wrongly; please report this";
    WrongMap = Damage, "wrong-map",
        "the directory's map lacks one of its partitions; please report this bug of Varve";
    StrayEntries = Leftover, "stray-entries",
        "rows that a split moved, or of a removed directory; a server removes them when it loads the partition";
    DirectoryWithoutName = Leftover, "directory-without-name",
        "a mkdir was interrupted, or a server was killed right after an rmdir; the rows only take space, until `varve \
         fsck --repair`";
    LostDirectory = Leftover, "lost-directory",
        "no name refers to this directory, which is not empty: its name was lost in a power loss, or with another row";
    DirectoryWithoutRow = Leftover, "directory-without-row",
        "a mkdir was interrupted by a power loss; the name is an empty directory";
    SeveralNames = Damage, "several-names",
        "a directory, or a file that should have one name, has several; remove all but one with care, and please report this";
    WrongParent = Damage, "wrong-parent",
        "'..' of this directory is not the directory with its name; please report this bug of Varve";
    Unreachable = Damage, "unreachable",
        "these directories refer to each other and no path leads to them; please report this bug of Varve";
    WrongAttributes = Damage, "wrong-attributes",
        "the row contradicts itself; please report this bug of Varve";
    MissingInode = Damage, "missing-inode",
        "the name refers to no inode; remove it, and restore the file from a copy";
    WrongLinkCount = Damage, "wrong-link-count",
        "names and link count differ; the file may outlive its names or be removed before them; please report this";
    InodeWithoutName = Damage, "inode-without-name",
        "the file has content and no name; please report this bug of Varve";
    Orphan = Leftover, "orphan",
        "the file was unlinked, perhaps while open; the server removes it half a minute after its start";
    RemovedContent = Leftover, "removed-content",
        "the backing file of a file that was removed; a server removes it within seconds of its start";
    RemovedContentInUse = Damage, "removed-content-in-use",
        "the next server would remove the backing file, but a file with this id exists; do not serve the volume before \
         this is repaired";
    OrphanWithName = Damage, "orphan-with-name",
        "the next server would remove the file, but it has a name; do not serve the volume before this is repaired";
    DuplicateInode = Damage, "duplicate-inode",
        "two files have one id and may share a backing file: copy both, then remove them; please report this";
    CounterTooLow = Damage, "counter-too-low",
        "the shard may assign ids a second time; do not create files before this is repaired; please report this";
    MissingXattr = Damage, "missing-xattr",
        "an extended attribute is listed and has no value; set it again or remove it";
    StrayXattr = Leftover, "stray-xattr",
        "an extended attribute of a file that does not list it; it only takes space";
    Intent = Leftover, "intent",
        "a cross-shard transaction was interrupted; the next server commits or aborts it before it serves these rows";
    MissingData = Damage, "missing-data",
        "the content of all large files is missing: bring the directory back (is something not mounted, or not copied \
         yet?) or restore it from a copy; if it is permanently lost, --repair --without-data makes them empty and \
         moves them to lost+found";
    MissingBackingFile = Damage, "missing-backing-file",
        "the file's content is gone from the store: restore it from a copy";
    WrongSize = Damage, "wrong-size",
        "another program changed the backing file, or the store lost writes: compare it with a copy; --repair sets the \
         file's size to what is left, and lists truncated files in damaged/cut.txt";
    StaleSize = Leftover, "unsettled-size",
        "a writer was interrupted, and the backing file has the right size; the first open records it, from half a \
         minute after the server's start on";
    PendingTruncate = Leftover, "pending-truncate",
        "a truncate was interrupted; a server finishes it when the file is next opened";
    StrayBackingFile = Leftover, "stray-backing-file",
        "content that no row refers to, of a file whose rows were lost or of one that was growing large at a crash; no \
         server removes it, and --repair gives it a name in lost+found";
    StrangeFile = Leftover, "strange-file",
        "Varve did not create this file";
}

/// One inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    /// The shard, key, file or path concerned.
    pub place: String,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind.name(), self.place, self.what)
    }
}

/// Number of objects that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    pub shards: u64,
    pub rows: u64,
    pub directories: u64,
    pub partitions: u64,
    /// Names of all objects, including directories.
    pub entries: u64,
    /// Files with an inode row: several names, xattrs, or unlinked while open.
    pub inodes: u64,
    pub xattrs: u64,
    pub orphans: u64,
    /// Backing files that a server has yet to remove.
    pub removed: u64,
    pub intents: u64,
    pub files_inline: u64,
    pub bytes_inline: u64,
    pub files_backing: u64,
    pub bytes_backing: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    pub counts: CheckCounts,
    /// At most [`FINDINGS_MAX`], in the order in which they were found.
    pub findings: Vec<Finding>,
    /// Number of findings of each kind, including those beyond the kept ones.
    pub totals: BTreeMap<FindingKind, u64>,
    /// A table or log could not be read to its end, so nothing was compared.
    pub incomplete: bool,
    /// Unreadable shards whose damage is known.
    damaged_shards: Vec<ShardId>,
    /// Shards whose directory is missing.
    gone: Vec<ShardId>,
    /// All backing files are missing, although there should be some.
    data_gone: bool,
    /// The fixes, at most [`fix::FIXES_MAX`] of each stage.
    fixes: BTreeMap<RepairStage, Vec<Fix>>,
}

impl FsckReport {
    /// Whether all findings are leftovers of a crash.
    pub fn is_sound(&self) -> bool {
        !self.incomplete && self.totals.keys().all(|kind| kind.severity() == Severity::Leftover)
    }

    /// Adds the fix of the finding that was just added.
    fn fix(&mut self, fix: Fix) {
        let fixes = self.fixes.entry(fix.stage()).or_default();
        if fixes.len() < fix::FIXES_MAX {
            fixes.push(fix);
        }
    }

    fn add(&mut self, kind: FindingKind, place: impl fmt::Display, what: impl fmt::Display) {
        *self.totals.entry(kind).or_insert(0) += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { kind, place: place.to_string(), what: what.to_string() });
        }
    }
}

/// Progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckProgress {
    Opening,
    /// Pass 1 reads rows of directories and inodes, pass 2 entries, each over all shards.
    Reading {
        pass: u8,
        shard: ShardId,
        shards: u16,
        rows: u64,
    },
    /// Directories of backing files checked so far, of 256.
    Data {
        directories: u16,
    },
    Repairing {
        fixes: usize,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum FsckError {
    #[error(transparent)]
    Volume(#[from] VolumeFileError),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Maintenance(#[from] MaintenanceError),
    /// A table cannot be opened, or not be written during a repair.
    #[error(transparent)]
    Table(Unreadable),
    #[error(
        "{} has shards = {value}, but {} has traces of only {found}: a repair does not create the others, because the \
         number may be wrong. Correct it in the file and in its copy, or restore the directories of the other shards \
         from a copy of the store; if they are lost, make an empty directory {} and run the repair again, which \
         continues without their content",
        file.display(), directory.display(), last.display()
    )]
    OtherShards { file: PathBuf, value: u16, directory: PathBuf, found: u64, last: PathBuf },
    #[error("{doing}: {source}")]
    Io { doing: String, source: std::io::Error },
}

/// Checks `volume`, whose lock must be free; writes nothing. Must not be called on a thread of an asynchronous runtime.
pub fn check(volume: &VolumeDir, progress: &mut dyn FnMut(CheckProgress)) -> Result<FsckReport, FsckError> {
    let (settings, _) = volume.read_settings_or_copy()?;
    let volume = open(volume)?;
    let alone = Maintenance::begin_to_read(&volume, &settings, "varve fsck")?;
    let _lock = alone.lock_for_reading(&volume)?;
    let (report, _) = check_locked(&volume, &settings, progress)?;
    // With servers in the volume, findings may be their work in progress.
    alone.check()?;
    Ok(report)
}

/// Opens the volume's directory, which stays open from here on.
fn open(volume: &VolumeDir) -> Result<VolumeDir, FsckError> {
    let failed =
        |source| FsckError::Io { doing: format!("cannot open the volume {}", volume.root().display()), source };
    volume.opened().map_err(failed)
}

/// Checks a volume whose lock the caller holds.
fn check_locked(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<(FsckReport, Census), FsckError> {
    let mut report = FsckReport::default();
    let mut census = Census::new(settings);
    report.counts.shards = u64::from(settings.shards.get());
    if let Ok((_, Some(damaged))) = volume.read_settings_or_copy() {
        report.add(FindingKind::DamagedVolumeFile, "varve.toml", damaged);
        report.fix(Fix::MakeVolumeFile);
    } else if let Some(damaged) = volume.damage_of_copy() {
        report.add(FindingKind::DamagedVolumeCopy, "shards/varve.toml", damaged);
        // Varve does not remove the content of a directory there.
        if !volume.volume_file_copy().is_dir() {
            report.fix(Fix::MakeVolumeCopy);
        }
    }
    if let Err(error) = volume.read_key() {
        report.add(FindingKind::DamagedKey, "key", error);
        report.fix(Fix::MakeKey);
    }
    if missing_shards::compare(volume, settings, &mut report)? {
        // There is nothing to read.
        report.incomplete = true;
        return Ok((report, census));
    }
    logs::compare(volume, settings, &mut report);
    let unreadable = rows::read(volume, settings, &mut census, &mut report, progress)?;
    if !unreadable.is_empty() {
        report.incomplete = true;
        report.damaged_shards = repair::salvage::inspect(volume, settings, &unreadable, &mut report)?;
        return Ok((report, census));
    }
    report.damaged_shards = repair::salvage::inspect_ends(volume, settings, &mut report)?;
    directories::compare(&mut census, &mut report);
    files::compare(&mut census, &mut report);
    data::compare(volume, &mut census, &mut report, progress)?;
    Ok((report, census))
}

#[cfg(test)]
mod tests;
