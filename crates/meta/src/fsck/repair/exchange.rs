//! A new table takes the place of a damaged one, which is kept.
//!
//! The new one goes to where the old one is to be kept, whole; then the two change places, by one rename where the store knows how to,
//! so that a repair that is killed leaves the old table in its place or kept, and at worst a new one too many among what is kept. Else
//! by three, with the old one beside its last place in between: while it is there, the exchange has not come to its end, and the next
//! repair ends it before it looks at anything.

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

/// Names tried for what is kept: one for each salvage of a shard.
const KEPT_MAX: u32 = 10_000;

/// What the name of a table that is on its way to be kept ends with.
const UNDER_WAY: &str = ".old";

/// Puts the table `new` in the place of a shard's. Where that is kept from then on.
pub fn exchange(volume: &VolumeDir, new: &StorePath, shard: ShardId) -> Result<StorePath, FsckError> {
    let (old, aside) = (volume.shard(shard), volume.damaged());
    make_private(&aside)?;
    // Whoever may enter the old table may enter the new one, and nobody else.
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
            // The next repair makes it anew.
            if let Err(error) = disk::remove_tree(&kept) {
                tracing::warn!("{} is a new table that is of no use, and stays: {error}", kept.display());
            }
            return Err(failed("put the new table in the place of", &old)(error));
        }
    }
    Ok(kept)
}

/// The new table is where the old one is to be `kept`, and the old one in its `place`.
fn by_renames(volume: &VolumeDir, kept: &StorePath, place: &StorePath) -> Result<(), FsckError> {
    rename(place, &under_way(kept))?;
    sync(volume)?;
    end(volume, kept, place).map(drop)
}

/// Which table is in a shard's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeState {
    New,
    Old,
}

/// Ends what an earlier repair has begun.
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
                "shard {shard}: the new table, which an earlier repair has written, is in its place; the old one is in {}",
                kept.display()
            ),
            ExchangeState::Old => format!("shard {shard}: the table that an earlier repair took from its place is there again"),
        });
    }
    Ok(())
}

/// The old table is under way: the new one comes to its `place`, and it to where it is `kept`. Where there is no new one, it goes back.
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
        // Somebody has made another table meanwhile, and nobody knows which one counts.
        (true, true) => {
            let doing = format!(
                "cannot put the new table {} in the place of {}, where another has come to be: move away the one that does not count",
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

    /// Promise: on a store that cannot exchange two directories, an exchange that was killed after any of its renames is ended by the
    /// next repair, with the new table in its place and the old one kept.
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

    /// Promise: where the store cannot exchange them the two tables change places all the same; and an old one whose new one is gone
    /// goes back to its place.
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

    /// Promise: where another table has come to the place meanwhile, nothing is replaced, and it is said.
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
