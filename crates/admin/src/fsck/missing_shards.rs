//! Missing directories of shards. They are checked before anything is read, because opening a table retries a missing
//! directory again and again. A repair creates them, empty, and continues as with shards that have lost all their data.

use super::repair::Repaired;
use super::{FindingKind, FsckError, FsckReport};
use std::io;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_types::{ShardId, VolumeSettings};

/// Records the shards without a directory. Returns whether their parent directory is missing.
pub fn compare(volume: &VolumeDir, settings: &VolumeSettings, report: &mut FsckReport) -> Result<bool, FsckError> {
    let shards = volume.shards();
    if is_gone(&shards)? {
        report.add(FindingKind::MissingShard, shards.display(), "it is missing, and with it the tables of all shards");
        report.gone = settings.shards.all().collect();
        return Ok(true);
    }
    let traced = traced(volume, settings);
    for shard in settings.shards.all() {
        let directory = volume.shard(shard);
        if !is_gone(&directory)? {
            continue;
        }
        let what = match traced.is_some_and(|traced| u64::from(shard.0) >= traced) {
            true => "it is missing, without a trace: shards in varve.toml and its copy may be wrong",
            false => "it is missing, although `varve format` created it",
        };
        report.add(FindingKind::MissingShard, directory.display(), what);
        report.gone.push(shard);
    }
    Ok(false)
}

/// Creates the directories of the shards in `gone`, unless they may never have existed.
pub fn make(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    gone: &[ShardId],
    repaired: &mut Repaired,
) -> Result<(), FsckError> {
    refuse_doubtful(volume, settings)?;
    let failed = |source| FsckError::Io { doing: format!("cannot make {}", volume.shards().display()), source };
    let all = is_gone(&volume.shards())?;
    volume.make_shards(gone).map_err(failed)?;
    for shard in gone {
        repaired.note(format!("shard {shard}: created its directory, empty: the former content is lost"));
    }
    if all {
        volume.copy_volume_file(settings).map_err(failed)?;
        repaired.note("recreated the copy of the volume file".to_owned());
    }
    Ok(())
}

/// Fails if the upper half of the shards, or more, has left no trace: the volume may have fewer shards.
fn refuse_doubtful(volume: &VolumeDir, settings: &VolumeSettings) -> Result<(), FsckError> {
    let value = settings.shards.get();
    match traced(volume, settings) {
        Some(found) if found < u64::from(value) => {
            let last = volume.shard(ShardId(value - 1)).into();
            Err(FsckError::OtherShards {
                file: volume.volume_file().into(),
                value,
                directory: volume.shards().into(),
                found,
                last,
            })
        }
        // Without a trace of any shard, nothing contradicts the number, and no data is left that could be
        // misinterpreted.
        _ => Ok(()),
    }
}

/// The number of shards according to the existing directories and marks: a power of two.
fn traced(volume: &VolumeDir, settings: &VolumeSettings) -> Option<u64> {
    let leaves_trace = |shard: &ShardId| {
        let [_, mark] = volume.shard_marks(*shard);
        volume.shard(*shard).symlink_metadata().is_ok() || mark.symlink_metadata().is_ok()
    };
    let highest = settings.shards.all().filter(leaves_trace).last()?;
    Some((u64::from(highest.0) + 1).next_power_of_two())
}

fn is_gone(directory: &StorePath) -> Result<bool, FsckError> {
    match directory.symlink_metadata() {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(FsckError::Io { doing: format!("cannot look at {}", directory.display()), source }),
    }
}
