//! Repairs a volume.
//!
//! Alternates check and repair in rounds. Each round carries out the fixes of the earliest [`RepairStage`] that has
//! any, based on the preceding check, and the next check follows. Within a round, edits are made in four steps, each
//! fsynced before the next: new rows, then new names, then removals, then rows that mark their end. So after a crash at
//! any time everything that was reachable is still reachable; at worst there is a surplus row or name, which the next
//! repair finds. Backing files are removed after all rows.

mod cuts;
mod data;
mod directories;
mod exchange;
mod files;
#[cfg(test)]
pub(super) mod kill_point;
mod partitions;
mod rounds;
mod rows;
pub(super) mod salvage;
mod session;

use super::census::Census;
use super::fix::{Fix, RepairStage};
use super::{CheckProgress, FINDINGS_MAX, FsckError, FsckReport, check_locked, missing_shards};
use crate::maintenance::Maintenance;
use crate::snapshot::Unreadable;
use rounds::Rounds;
use session::RepairSession;
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeSettings;

/// Maximum number of rounds: each stage needs a few, and each [`super::fix::FIXES_MAX`] fixes one more.
const ROUNDS_MAX: usize = 1000;

/// Result of a repair.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// The findings before the repair.
    pub before: FsckReport,
    /// The repairs made, at most [`FINDINGS_MAX`] of them.
    pub repairs: Vec<String>,
    /// Number of repairs made.
    pub repairs_total: u64,
    /// The findings that are left.
    pub after: FsckReport,
}

impl Repaired {
    pub(super) fn note(&mut self, what: String) {
        self.repairs_total += 1;
        if self.repairs.len() < FINDINGS_MAX {
            self.repairs.push(what);
        }
    }
}

impl From<Unreadable> for FsckError {
    fn from(error: Unreadable) -> FsckError {
        FsckError::Table(error)
    }
}

/// Checks `volume`, whose lock must be free, and repairs its findings. It may be interrupted at any time and run again.
/// Must not be called on a thread of an asynchronous runtime.
pub fn repair(
    volume: &VolumeDir,
    missing: MissingContent,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<Repaired, FsckError> {
    let (settings, _) = volume.read_settings_or_copy()?;
    let volume = super::open(volume)?;
    let alone = Maintenance::begin(&volume, &settings, "varve fsck --repair")?;
    let _lock = volume.lock()?;
    repair_locked(&volume, &settings, missing, &alone, progress)
}

/// Treatment of files whose content is not in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingContent {
    SetApart,
    /// As `SetApart`, unless the content of all files is missing at once: then it may only be somewhere else.
    SetApartUnlessAll,
    /// The content may still be restored.
    Leave,
}

/// Repairs a volume whose lock the caller holds.
pub(crate) fn repair_locked(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    missing: MissingContent,
    alone: &Maintenance,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<Repaired, FsckError> {
    let mut repaired = Repaired::default();
    exchange::end_begun(volume, settings, &mut repaired)?;
    let (mut report, mut census) = check_locked(volume, settings, progress)?;
    repaired.before = report.clone();
    alone.check()?;
    if !report.gone.is_empty() {
        missing_shards::make(volume, settings, &report.gone, &mut repaired)?;
        (report, census) = check_locked(volume, settings, progress)?;
    }
    // A check that cannot read one shard may have stopped before the next damaged one.
    for _ in settings.shards.all() {
        if report.damaged_shards.is_empty() {
            break;
        }
        alone.check()?;
        salvage::salvage(volume, settings, &report.damaged_shards, &mut repaired)?;
        (report, census) = check_locked(volume, settings, progress)?;
    }
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS_MAX {
        if let Some(fixes) = report.fixes.get_mut(&RepairStage::Data) {
            if missing == MissingContent::Leave || missing == MissingContent::SetApartUnlessAll && report.data_gone {
                fixes.retain(|fix| !matches!(fix, Fix::Bereaved { .. }));
            }
            if missing == MissingContent::Leave {
                // Restored content counts as complete, whatever its size.
                for fix in fixes {
                    if let Fix::RecordSize { cut, .. } = fix {
                        *cut = None;
                    }
                }
            }
        }
        report.fixes.retain(|_, fixes| !fixes.is_empty());
        let Some((stage, fixes)) = report.fixes.pop_first() else { break };
        if !rounds.goes_on(stage, &fixes) {
            tracing::warn!(?stage, fixes = fixes.len(), "a repaired finding was found again; leaving it");
            break;
        }
        progress(CheckProgress::Repairing { fixes: fixes.len() });
        alone.check()?;
        carry_out((volume, settings, alone), census, &fixes, &mut repaired)?;
        (report, census) = check_locked(volume, settings, progress)?;
    }
    alone.check()?;
    repaired.after = report;
    Ok(repaired)
}

fn carry_out(
    (volume, settings, alone): (&VolumeDir, &VolumeSettings, &Maintenance),
    census: Census,
    fixes: &[Fix],
    repaired: &mut Repaired,
) -> Result<(), FsckError> {
    let threads = |source| FsckError::Io { doing: "cannot start threads".into(), source };
    let runtime = crate::snapshot::offline::runtime().map_err(threads)?;
    let handle = runtime.handle().clone();
    runtime.block_on(async {
        let mut bench = RepairSession::new(volume, settings, census, repaired, handle)?;
        bench.find_names(fixes).await?;
        let mut result = Ok(());
        for fix in fixes {
            // Tables are fenced, but files are not: nothing may be changed in them once servers may be back.
            result = alone.check().map_err(FsckError::from);
            if result.is_ok() {
                result = bench.carry_out(fix).await;
            }
            if result.is_ok() {
                result = bench.flush_if_full().await;
            }
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            result = bench.flush().await;
        }
        let closed = bench.close().await;
        result.and(closed)
    })
}

impl RepairSession<'_> {
    async fn carry_out(&mut self, fix: &Fix) -> Result<(), FsckError> {
        match fix.clone() {
            Fix::MakeVolumeFile => self.make_volume_file(),
            Fix::MakeVolumeCopy => self.make_volume_copy(),
            Fix::MakeKey => self.make_key(),
            Fix::Resolve => self.resolve().await,
            Fix::SetAside { shard, key, row } => self.set_aside(shard, &key, &row),
            Fix::EndLog { shard } => self.end_log(shard).await,
            Fix::MoveRow { from, to, key } => self.move_row(from, to, key).await,
            Fix::DropRow { shard, key } => self.drop_row(shard, key),
            Fix::RaiseCounter { shard, above } => {
                self.raise_counter(shard, above);
                Ok(())
            }
            Fix::MakeRoot => self.make_root().await,
            Fix::MakePartition { directory, index, depth } => self.make_partition(directory, index, depth).await,
            Fix::DissolvePartition { directory, index } => self.dissolve_partition(directory, index).await,
            Fix::DropPartition { directory, index } => self.drop_partition(directory, index).await,
            Fix::SetLive { directory, index } => self.set_live(directory, index).await,
            Fix::SetCounts { directory, index, entries, subdirectories } => {
                self.set_counts(directory, index, entries, subdirectories).await
            }
            Fix::CopyMode { directory, index } => self.copy_mode(directory, index).await,
            Fix::Stray { shard, directory, name, known } => self.stray(shard, directory, name, known).await,
            Fix::MakeDirectoryRow { directory, parent } => self.make_directory_row(directory, parent).await,
            Fix::DropDirectory { directory } => self.drop_directory(directory).await,
            Fix::AttachDirectory { directory } => self.attach_directory(directory).await,
            Fix::OneName { directory, keep } => self.one_name(directory, keep).await,
            Fix::SetParent { directory, parent } => self.set_parent(directory, parent).await,
            Fix::SetMap { directory } => self.set_map(directory).await,
            Fix::Duplicate { inode } => self.part_duplicates(inode).await,
            Fix::DropReferences { inode } => self.drop_references(inode).await,
            Fix::SetLinks { inode, links } => self.set_links(inode, links).await,
            Fix::AttachFile { inode } => self.attach_file(inode).await,
            Fix::DropOrphan { inode } => self.drop_orphan(inode).await,
            Fix::DropGarbage { shard, inode } => self.drop_garbage(shard, inode),
            Fix::CorrectNode { inode, at } => self.correct_node(inode, at).await,
            Fix::CorrectReference { directory, name } => self.correct_reference(directory, name).await,
            Fix::Unlist { inode, name } => self.unlist(inode, &name).await,
            Fix::StrayXattr { inode, name } => self.stray_xattr(inode, name).await,
            Fix::RecordSize { inode, cut } => self.record_sizes(inode, cut).await,
            Fix::Bereaved { inode } => self.bereaved(inode).await,
            Fix::AttachData { inode } => self.attach_data(inode).await,
        }
    }
}
