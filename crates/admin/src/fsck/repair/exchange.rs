//! Replaces a damaged table by a new one and keeps the damaged one.
//!
//! The complete new table is first moved to the path where the old one will be kept. Then the two exchange their
//! places, by one rename if the store supports that. So a killed repair leaves the old table either in its place or
//! kept, and at worst a superfluous new one among the kept tables. Otherwise the exchange takes three renames, with the
//! old table next to its kept path in between. While it is there, the exchange is incomplete, and the next repair
//! completes it before it reads any table.

use super::super::FsckError;
use super::Repaired;
use super::salvage::failed;
use super::session::make_private;
use std::io;
use std::os::unix::fs::MetadataExt;
use varve_env::disk;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_types::{ShardId, VolumeSettings};

/// Names tried for the kept table: one for each salvage of a shard.
const KEPT_MAX: u32 = 10_000;

/// Suffix of the name of a table that is being moved to its kept path.
const UNDER_WAY: &str = ".old";

/// Puts the new table `new` in the place of a shard's table. Returns the path where the old one is kept.
pub fn exchange(volume: &VolumeDir, new: &StorePath, shard: ShardId) -> Result<StorePath, FsckError> {
    let (old, aside) = (volume.shard(shard), volume.damaged());
    make_private(&aside)?;
    // The new table gets the mode of the old one, so that the same users have access.
    let mode = old.metadata().map_err(failed("look at", &old))?.mode() & 0o777;
    new.set_directory_mode(mode).map_err(failed("set the mode of", new))?;
    let mut free = (0..KEPT_MAX).map(|number| aside.join(format!("{}-{number}", VolumeDir::shard_name(shard))));
    let full = || failed("keep a damaged table in", &aside)(io::ErrorKind::AlreadyExists.into());
    let kept = free.find(|path| !path.exists()).ok_or_else(full)?;
    rename(new, &kept)?;
    disk::sync_directory(&aside).map_err(failed("fsync", &aside))?;
    match disk::exchange(&kept, &old) {
        Ok(()) => sync(volume)?,
        Err(error) if error.kind() == io::ErrorKind::Unsupported => by_renames(volume, &kept, &old)?,
        Err(error) => {
            // The next repair creates it again.
            if let Err(error) = disk::remove_tree(&kept) {
                tracing::warn!("cannot remove the unused new table {}: {error}", kept.display());
            }
            return Err(failed("put the new table in the place of", &old)(error));
        }
    }
    Ok(kept)
}

/// Exchanges by renames: the new table is at `kept`, the old one in its `place`.
fn by_renames(volume: &VolumeDir, kept: &StorePath, place: &StorePath) -> Result<(), FsckError> {
    rename(place, &under_way(kept))?;
    sync(volume)?;
    end(volume, kept, place).map(drop)
}

/// The table that is in a shard's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeState {
    New,
    Old,
}

/// Completes an exchange that an earlier repair has begun.
pub fn end_begun(volume: &VolumeDir, settings: &VolumeSettings, repaired: &mut Repaired) -> Result<(), FsckError> {
    let aside = volume.damaged();
    let entries = match aside.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed("list", &aside))?,
    };
    for entry in entries {
        let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(UNDER_WAY)).map(str::to_owned)
        else {
            continue;
        };
        let of = |shard: &ShardId| name.split('-').next() == Some(&VolumeDir::shard_name(*shard));
        let Some(shard) = settings.shards.all().find(of) else { continue };
        let kept = aside.join(&name);
        repaired.note(match end(volume, &kept, &volume.shard(shard))? {
            ExchangeState::New => format!(
                "shard {shard}: the new table of an interrupted repair is in place; the old one is in {}",
                kept.display()
            ),
            ExchangeState::Old => format!("shard {shard}: put the table back that an interrupted repair had moved"),
        });
    }
    Ok(())
}

/// The old table has the temporary name: moves the new one to `place` and the old one to `kept`. Without a new one, the
/// old one goes back.
fn end(volume: &VolumeDir, kept: &StorePath, place: &StorePath) -> Result<ExchangeState, FsckError> {
    let there = |path: &StorePath| path.try_exists().map_err(failed("look at", path));
    let stands = match (there(place)?, there(kept)?) {
        (false, true) => {
            rename(kept, place)?;
            sync(volume)?;
            rename(&under_way(kept), kept)?;
            ExchangeState::New
        }
        (true, false) => {
            rename(&under_way(kept), kept)?;
            ExchangeState::New
        }
        (false, false) => {
            rename(&under_way(kept), place)?;
            ExchangeState::Old
        }
        // Another table was created in the place meanwhile, and it is unknown which one is right.
        (true, true) => {
            let doing = format!(
                "cannot move the new table {} to {}, where another table exists: move the wrong one to a directory \
                 outside the store",
                kept.display(),
                place.display()
            );
            return Err(FsckError::Io { doing, source: io::ErrorKind::AlreadyExists.into() });
        }
    };
    sync(volume)?;
    Ok(stands)
}

fn under_way(kept: &StorePath) -> StorePath {
    let mut name = kept.file_name().unwrap_or_default().to_owned();
    name.push(UNDER_WAY);
    kept.parent().join(name)
}

fn rename(from: &StorePath, to: &StorePath) -> Result<(), FsckError> {
    disk::rename(from, to).map_err(failed(&format!("move {from} to"), to))
}

fn sync(volume: &VolumeDir) -> Result<(), FsckError> {
    for directory in [volume.shards(), volume.damaged()] {
        disk::sync_directory(&directory).map_err(failed("fsync", &directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::{ShardCount, VolumeId};

    fn table(path: &StorePath, holds: &str) {
        std::fs::create_dir_all(path).unwrap();
        std::fs::write(path.join("holds"), holds).unwrap();
    }

    fn holds(path: &StorePath) -> Option<String> {
        std::fs::read_to_string(path.join("holds")).ok()
    }

    /// Promise: on a store that cannot exchange two directories, the next repair completes an exchange that was killed
    /// after any of its renames, with the new table in its place and the old one kept.
    #[test]
    fn interrupted_table_exchange_can_be_resumed() {
        let settings = VolumeSettings {
            id: VolumeId([7; 16]),
            name: "test".into(),
            shards: ShardCount::new(2).unwrap(),
            split_threshold: 10,
            inline_limit: 0,
            sync_interval: std::time::Duration::ZERO,
            owner_uid: 0,
        };
        for renames in 0..=3 {
            let directory = tempfile::tempdir().unwrap();
            let volume = VolumeDir::new(directory.path());
            let place = volume.shard(ShardId(1));
            let kept = volume.damaged().join(format!("{}-0", VolumeDir::shard_name(ShardId(1))));
            table(&place, "old");
            table(&kept, "new");
            let steps: [(&StorePath, &StorePath); 3] =
                [(&place, &under_way(&kept)), (&kept, &place), (&under_way(&kept), &kept)];
            steps.iter().take(renames).for_each(|(from, to)| rename(from, to).unwrap());
            let mut repaired = Repaired::default();
            end_begun(&volume, &settings, &mut repaired).unwrap();
            let expected = if renames == 0 { ["old", "new"] } else { ["new", "old"] };
            assert_eq!([holds(&place).unwrap(), holds(&kept).unwrap()], expected, "after {renames} renames");
            assert_eq!(repaired.repairs.len(), usize::from(renames == 1 || renames == 2));
            assert!(!under_way(&kept).exists());
        }
    }

    /// Promise: on a store that cannot exchange directories the two tables still exchange their places; an old table
    /// whose new one is missing goes back to its place.
    #[test]
    fn tables_are_exchanged_by_renames() {
        let directory = tempfile::tempdir().unwrap();
        let volume = VolumeDir::new(directory.path());
        let (place, kept) = (volume.shard(ShardId(1)), volume.damaged().join("0001-0"));
        table(&place, "old");
        table(&kept, "new");
        by_renames(&volume, &kept, &place).unwrap();
        assert_eq!([holds(&place).unwrap(), holds(&kept).unwrap()], ["new", "old"]);
        rename(&place, &under_way(&kept)).unwrap();
        std::fs::remove_dir_all(&kept).unwrap();
        assert_eq!(end(&volume, &kept, &place).unwrap(), ExchangeState::Old);
        assert_eq!((holds(&place), holds(&kept)), (Some("new".into()), None));
    }

    /// Promise: if another table has been created in the place meanwhile, nothing is replaced, and the repair reports
    /// it.
    #[test]
    fn exchange_does_not_replace_new_files() {
        let directory = tempfile::tempdir().unwrap();
        let volume = VolumeDir::new(directory.path());
        let (place, kept) = (volume.shard(ShardId(1)), volume.damaged().join("0001-0"));
        table(&place, "another");
        table(&kept, "new");
        table(&under_way(&kept), "old");
        let refused = end(&volume, &kept, &place).unwrap_err().to_string();
        assert!(refused.contains("0001-0"), "{refused}");
        assert_eq!(holds(&under_way(&kept)), Some("old".into()));
    }
}
