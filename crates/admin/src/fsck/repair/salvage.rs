//! Salvages shards with damaged tables or logs: a new table with the intact rows replaces the old one, which is kept.

use super::super::{FindingKind, FsckError, FsckReport};
use super::Repaired;
use super::exchange::exchange;
use crate::snapshot::{Unreadable, offline};
use std::io;
use varve_env::disk;
use varve_env::posix_store::PosixStore;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_store::{DamagedPlace, Salvage, TableConfig, damaged_ends};
use varve_types::{ShardId, VolumeSettings};

/// Reports, for each shard that cannot be read, the damaged file and position. Returns the shards with damage.
pub fn inspect(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    shards: &[Unreadable],
    report: &mut FsckReport,
) -> Result<Vec<ShardId>, FsckError> {
    let runtime = offline::runtime().map_err(|source| failed("start threads for", &volume.at_root())(source))?;
    let store = offline::store_for_reading(volume);
    let config = offline::table_config(volume, settings, store, runtime.handle().clone());
    let mut damaged = Vec::new();
    for Unreadable { shard, .. } in shards {
        let config = TableConfig { shard: *shard, ..config.clone() };
        let Ok(salvage) = runtime.block_on(Salvage::read(&config)) else { continue };
        for place in salvage.damaged.iter().chain(&salvage.ends) {
            note(*shard, place, report);
        }
        if !(salvage.damaged.is_empty() && salvage.ends.is_empty()) {
            damaged.push(*shard);
        }
    }
    Ok(damaged)
}

/// Checks the parts of table files that reading their rows does not cover. Returns the shards with damage.
pub fn inspect_ends(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    report: &mut FsckReport,
) -> Result<Vec<ShardId>, FsckError> {
    let runtime = offline::runtime().map_err(|source| failed("start threads for", &volume.at_root())(source))?;
    let store = offline::store_for_reading(volume);
    let config = offline::table_config(volume, settings, store, runtime.handle().clone());
    let mut damaged = Vec::new();
    for shard in settings.shards.all() {
        let config = TableConfig { shard, ..config.clone() };
        let places = runtime.block_on(damaged_ends(&config)).map_err(|error| Unreadable::new(shard, error))?;
        places.iter().for_each(|place| note(shard, place, report));
        if !places.is_empty() {
            damaged.push(shard);
        }
    }
    Ok(damaged)
}

fn note(shard: ShardId, place: &DamagedPlace, report: &mut FsckReport) {
    let of_log = place.path.extension().is_some_and(|extension| extension == "log" || extension == "seal");
    let kind = match (of_log, place.offset) {
        (true, None) => FindingKind::MissingLog,
        (true, Some(_)) => FindingKind::DamagedLog,
        (false, _) => FindingKind::DamagedTable,
    };
    let at = format_args!("shard {shard} {}", place.path.display());
    match place.offset {
        Some(offset) => report.add(kind, at, format_args!("at byte {offset}: {}", place.reason)),
        None => report.add(kind, at, &place.reason),
    }
}

/// Replaces the tables of `shards`. After a crash, the old or the new table is in its place.
pub fn salvage(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    shards: &[ShardId],
    repaired: &mut Repaired,
) -> Result<(), FsckError> {
    let scratch = volume.within("salvage");
    let result = shards.iter().try_for_each(|shard| replace(volume, &scratch, settings, *shard, repaired));
    remove(&scratch.at_root())?;
    result
}

fn replace(
    volume: &VolumeDir,
    scratch: &VolumeDir,
    settings: &VolumeSettings,
    shard: ShardId,
    repaired: &mut Repaired,
) -> Result<(), FsckError> {
    let unreadable = |error: varve_store::TableError| Unreadable::new(shard, error);
    // The remains of a killed repair are useless: they may be an incomplete table.
    remove(&scratch.at_root())?;
    super::session::make_private(&scratch.at_root())?;
    let log = scratch.shard_log(shard);
    disk::create_directories(&log).map_err(failed("make", &log))?;
    let runtime = offline::runtime().map_err(failed("start threads for", &volume.at_root()))?;
    let old = TableConfig {
        shard,
        ..offline::table_config(volume, settings, offline::store_for_reading(volume), runtime.handle().clone())
    };
    let store = PosixStore::open(scratch.shards()).map_err(failed("use", &scratch.shards()))?;
    let new = TableConfig { shard, ..offline::table_config(scratch, settings, store, runtime.handle().clone()) };
    let (places, rows) = runtime.block_on(async {
        let salvage = Salvage::read(&old).await.map_err(unreadable)?;
        let places = (salvage.damaged.len(), salvage.ends.len());
        Ok::<_, FsckError>((places, salvage.write(new).await.map_err(unreadable)?))
    })?;
    drop(runtime);
    let kept = exchange(volume, &scratch.shard(shard), shard)?;
    let kept = kept.display();
    repaired.note(match places {
        (0, ends) => format!(
            "shard {shard}: rewrote a table with {ends} damaged places, where there are no rows, with all its {rows} \
             rows; the old table is in {kept}"
        ),
        (places, _) => format!(
            "shard {shard}: saved {rows} rows of a table and its log with {places} damaged places: changes that were \
             only there are lost (names are gone, files have their earlier content), so compare this shard's recent \
             changes with a copy; the old table is in {kept}"
        ),
    });
    Ok(())
}

fn remove(scratch: &StorePath) -> Result<(), FsckError> {
    match disk::remove_tree(scratch) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("remove", scratch)),
    }
}

pub(super) fn failed(action: &str, path: &StorePath) -> impl FnOnce(io::Error) -> FsckError + use<> {
    let doing = format!("cannot {action} {}", path.display());
    move |source| FsckError::Io { doing, source }
}
