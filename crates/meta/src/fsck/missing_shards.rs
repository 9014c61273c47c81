//! Directories of shards that are not there at all: looked for before anything is read, for what opens tables would ask the
//! store for them again and again. A repair makes them, empty, and goes on as with shards that have lost all they held.

use super::repair::Repaired;
use super::{FindingKind, FsckError, FsckReport};
use std::io;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_types::{ShardId, VolumeSettings};

/// Notes which shards have no directory. Returns whether the one around them is gone.
pub fn compare(volume: &VolumeDir, settings: &VolumeSettings, report: &mut FsckReport) -> Result<bool, FsckError> {
    let shards = volume.shards();
    if is_gone(&shards)? {
        report.add(
            FindingKind::MissingShard,
            shards.display(),
            "it is not there, and with it the tables of all shards",
        );
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
            true => "it is not there, nor a trace of it: shards in varve.toml and its copy may be wrong",
            false => "it is not there, which the format made",
        };
        report.add(FindingKind::MissingShard, directory.display(), what);
        report.gone.push(shard);
    }
    Ok(false)
}

/// Makes the directories of the shards that are `gone`, unless there may never have been any.
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
        repaired.note(format!("shard {shard}: made its directory, empty: what was in it is gone"));
    }
    if all {
        volume.copy_volume_file(settings).map_err(failed)?;
        repaired.note("made the copy of the volume file anew".to_owned());
    }
    Ok(())
}

/// An error if the upper half of the shards, or more, has left no trace: the volume may be one of fewer.
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
        // Where there is no trace of any, nothing contradicts the number, and nothing is left to be taken for something else.
        _ => Ok(()),
    }
}

/// For how many shards their directories and marks speak, as far as they are there: a power of two.
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
