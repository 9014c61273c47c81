//! Formatting a volume.

use super::volume_file::{self, Changeable};
use super::{KEY_BYTES, KEY_MODE, LockError, VolumeDir, VolumeLock};
use crate::disk::{self, Exclusive};
use crate::random;
use crate::store_path::StorePath;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use varve_types::{AckLevel, ShardId, VolumeSettings, VolumeSettingsError};

/// Mode of the store's own directory.
const ROOT_MODE: u32 = 0o755;

/// Existing content that a format accepts in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatOver {
    /// Only an empty directory, or none.
    Nothing,
    /// Files that do not belong to a volume and have no name that a volume needs, except `data`; they stay.
    OtherFiles,
    /// An existing volume as well; the format destroys it.
    Volume,
}

impl VolumeDir {
    /// Creates a volume here, durably. It exists once its volume file does, so a crash leaves either a volume or a
    /// directory that the next format accepts with [`FormatOver::OtherFiles`].
    pub fn format(&self, settings: &VolumeSettings, over: FormatOver) -> Result<(), VolumeFormatError> {
        self.format_with((settings, AckLevel::default()), over, || Ok(()))
    }

    /// [`VolumeDir::format`] with an acknowledgement level, and with files that `fill` creates in the volume's directories before the volume exists.
    pub fn format_with(
        &self,
        settings: (&VolumeSettings, AckLevel),
        over: FormatOver,
        fill: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), VolumeFormatError> {
        self.format_over(settings, over, || {}, fill)
    }

    /// [`VolumeDir::format_with`], with work to do under the lock of the volume before an old volume is destroyed.
    pub fn format_over(
        &self,
        (settings, ack): (&VolumeSettings, AckLevel),
        over: FormatOver,
        locked: impl FnOnce(),
        fill: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), VolumeFormatError> {
        settings.check()?;
        let failed = |source| VolumeFormatError::Io { directory: self.root().to_owned(), source };
        let had_root = self.at_root().is_dir();
        disk::create_directories(self.root()).map_err(failed)?;
        self.close_root(had_root).map_err(failed)?;
        let lock = self.make_room(over, locked)?;
        let had_data = self.data().symlink_metadata().is_ok();
        let laid_out = self.lay_out(settings, ack, fill);
        if laid_out.is_ok() {
            if let Err(error) = self.copy_volume_file(settings) {
                tracing::warn!(
                    "cannot write the copy of {}, the next server writes it: {error}",
                    self.volume_file().display()
                );
            }
            if let Err(error) = disk::remove_file(&self.unfinished_mark()) {
                tracing::debug!(%error, "cannot remove the mark of an unfinished format, the next server removes it");
            }
        }
        if laid_out.is_err()
            && self.volume_file().symlink_metadata().is_err()
            && let Err(error) = self.clear_away(had_root, had_data)
        {
            tracing::warn!("{}: cannot remove the leftovers of a failed format: {error}", self.root().display());
        }
        drop(lock);
        laid_out.map_err(failed)
    }

    /// Gives the store's directory a mode in which others may read and only its owner may write, regardless of the
    /// umask at its creation.
    fn close_root(&self, had_root: bool) -> io::Result<()> {
        let found = self.at_root().metadata()?.mode() & 0o7777;
        let mode = if had_root { found & !0o022 } else { found & 0o7000 | ROOT_MODE };
        if mode == found {
            return Ok(());
        }
        self.at_root().set_directory_mode(mode).map_err(|error| {
            let what =
                format!("other users may write to it (mode {found:04o}), and it cannot be closed to them: {error}");
            io::Error::new(error.kind(), what)
        })
    }

    fn make_room(&self, over: FormatOver, locked: impl FnOnce()) -> Result<VolumeLock, VolumeFormatError> {
        let failed = |source| VolumeFormatError::Io { directory: self.root().to_owned(), source };
        let (file, copy) = (self.volume_file(), self.volume_file_copy());
        if file.symlink_metadata().is_ok() || copy.symlink_metadata().is_ok() || self.has_lost_its_file() {
            if over != FormatOver::Volume {
                return Err(VolumeFormatError::VolumeExists { directory: self.root().to_owned() });
            }
            let lock = self.lock()?;
            locked();
            self.mark_unfinished().map_err(failed)?;
            self.destroy().map_err(failed)?;
            return Ok(lock);
        }
        if over == FormatOver::Nothing && !self.at_root().read_dir().map_err(failed)?.is_empty() {
            return Err(VolumeFormatError::NotEmpty { directory: self.root().to_owned() });
        }
        if let Some(path) = self.name_taken() {
            return Err(VolumeFormatError::Taken { path: path.into() });
        }
        let lock = self.lock()?;
        if file.symlink_metadata().is_ok() {
            // Another process has created it meanwhile.
            return Err(VolumeFormatError::VolumeExists { directory: self.root().to_owned() });
        }
        let was_unfinished = self.is_unfinished();
        self.mark_unfinished().map_err(failed)?;
        if was_unfinished {
            // Rows in its tables would be taken for rows of the new volume.
            for directory in [self.shards(), self.servers(), self.host_keys_directory()] {
                absent_is_fine(disk::remove_tree(&directory)).map_err(failed)?;
            }
        }
        Ok(lock)
    }

    /// A foreign file with a name that a volume needs: it neither belongs to a volume nor was left by a killed format.
    /// The format would overwrite it, or remove it on failure.
    fn name_taken(&self) -> Option<StorePath> {
        if self.unfinished_mark().symlink_metadata().is_ok() {
            return None;
        }
        let directories = [self.shards(), self.servers(), self.cluster(), self.host_keys_directory()];
        let mut needed = directories.into_iter().chain([self.key_file(), self.reserve()]);
        let taken = needed.find(|path| path.symlink_metadata().is_ok());
        // A format creates the lock file first of all, and it stays empty.
        let is_foreign = |lock: std::fs::Metadata| !lock.is_file() || lock.len() > 0;
        taken.or_else(|| self.lock_file().symlink_metadata().is_ok_and(is_foreign).then(|| self.lock_file()))
    }

    /// Whether a format or load was killed here. The key is the first file that it creates after its mark.
    fn is_unfinished(&self) -> bool {
        self.unfinished_mark().symlink_metadata().is_ok() && self.has_key() && self.shards().is_dir()
    }

    fn has_key(&self) -> bool {
        let key = self.key_file().symlink_metadata();
        key.is_ok_and(|key| key.is_file() && key.len() == KEY_BYTES as u64)
    }

    /// Whether the directory has files that only a volume has. In a directory without volume file and copy, this means
    /// that both are lost, unless a killed format or load has left its mark.
    pub(super) fn has_lost_its_file(&self) -> bool {
        let of_volume = self.has_key() || self.shards_there().is_some();
        of_volume && self.unfinished_mark().symlink_metadata().is_err()
    }

    /// Exists from the beginning of a format until the volume file is written. The next server removes a mark that was
    /// left next to the file.
    fn unfinished_mark(&self) -> StorePath {
        self.inside(format!("{}format", disk::TEMPORARY_PREFIX))
    }

    fn mark_unfinished(&self) -> io::Result<()> {
        disk::File::options().write(true).create().open(&self.unfinished_mark())?;
        disk::sync_directory(&self.at_root())
    }

    /// Removes the files of a format that failed. A `data` directory that existed before stays.
    fn clear_away(&self, had_root: bool, had_data: bool) -> io::Result<()> {
        for directory in [self.shards(), self.servers()] {
            absent_is_fine(disk::remove_tree(&directory))?;
        }
        if !had_data {
            absent_is_fine(disk::remove_tree(&self.data()))?;
        }
        absent_is_fine(disk::remove_file(&self.key_file()))?;
        absent_is_fine(disk::remove_file(&self.lock_file()))?;
        absent_is_fine(disk::remove_file(&self.unfinished_mark()))?;
        if !had_root {
            disk::remove_empty_directory(self.root())?;
        }
        Ok(())
    }

    /// Removes the copy of the volume file and the file itself first, so that a partly destroyed volume does not count
    /// as one.
    fn destroy(&self) -> io::Result<()> {
        let copy = self.volume_file_copy();
        if copy.symlink_metadata().is_ok() {
            disk::remove_file(&copy)?;
            disk::sync_directory(&copy.parent())?;
        }
        absent_is_fine(disk::remove_file(&self.volume_file()))?;
        disk::sync_directory(&self.at_root())?;
        // A key of the old volume must not be valid for the new one, and its servers are not those of the new one.
        for directory in [self.shards(), self.servers(), self.cluster(), self.host_keys_directory()] {
            absent_is_fine(disk::remove_tree(&directory))?;
        }
        absent_is_fine(disk::remove_content(&self.data()))?;
        if !self.has_data_elsewhere() {
            absent_is_fine(disk::remove_empty_directory(&self.data()))?;
        }
        absent_is_fine(disk::remove_file(&self.key_file()))?;
        absent_is_fine(disk::remove_file(&self.reserve()))?;
        disk::sync_directory(&self.at_root())
    }

    /// Whether `data` is a link or a mount point: a format creates neither.
    fn has_data_elsewhere(&self) -> bool {
        let devices = (self.data().symlink_metadata(), self.at_root().metadata());
        matches!(devices, (Ok(data), Ok(root)) if data.is_symlink() || data.dev() != root.dev())
    }

    fn write_key(&self) -> io::Result<()> {
        let key: [u8; KEY_BYTES] = random::bytes();
        disk::replace_with_mode(&self.key_file(), &[&key], KEY_MODE)
    }

    /// Replaces a damaged or missing key.
    pub fn make_key(&self) -> io::Result<()> {
        let path = self.key_file();
        if path.is_dir() {
            let what = format!("{path} is a directory: remove it, or move it elsewhere");
            return Err(io::Error::new(io::ErrorKind::IsADirectory, what));
        }
        self.write_key()
    }

    /// Creates the directories of missing shards. They are empty, unlike those of a format, so that none is taken for a
    /// shard that was never opened. The highest comes first, so that the directories left by a killed call indicate the
    /// same number of shards.
    pub fn make_shards(&self, gone: &[ShardId]) -> io::Result<()> {
        disk::create_directories(&self.shards())?;
        self.close_to_others()?;
        let mut gone = gone.to_vec();
        gone.sort_unstable();
        let highest = gone.pop();
        for shards in [highest.as_slice(), &gone] {
            make_all(&self.shards(), shards.iter().map(|shard| Self::shard_name(*shard)))?;
        }
        Ok(())
    }

    fn lay_out(
        &self,
        settings: &VolumeSettings,
        ack: AckLevel,
        fill: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let shards = settings.shards;
        self.write_key()?;
        self.make_servers()?;
        disk::create_directories(&self.shards())?;
        let exclusive = Exclusive::prove(&self.shards())?;
        disk::create_directories(&self.data())?;
        self.close_to_others()?;
        make_all(&self.shards(), shards.all().map(Self::shard_name))?;
        for shard in shards.all() {
            disk::create_directories(&self.shard_log(shard))?;
        }
        make_all(&self.data(), (0..=0xff).map(|last_byte| format!("{last_byte:02x}")))?;
        fill()?;
        let text = volume_file::render(settings, Changeable { exclusive, ack });
        disk::create_if_absent(exclusive, &self.volume_file(), text.as_bytes())
    }
}

/// Creates `directory` and the named directories in it, with one fsync for all of them.
fn make_all(directory: &StorePath, names: impl Iterator<Item = String>) -> io::Result<()> {
    disk::create_directories(directory)?;
    for name in names {
        match disk::create_directory(&directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    disk::sync_directory(directory)
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeFormatError {
    /// Also for a volume that has lost its volume file.
    #[error("{} holds a Varve volume already: formatting would destroy it", directory.display())]
    VolumeExists { directory: PathBuf },
    #[error("{} is not empty: choose an empty or new directory for the volume", directory.display())]
    NotEmpty { directory: PathBuf },
    #[error("{} has a name that the volume needs: move it elsewhere, or choose another directory", path.display())]
    Taken { path: PathBuf },
    #[error(transparent)]
    Settings(#[from] VolumeSettingsError),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error("cannot make a volume in {}: {source}", directory.display())]
    Io { directory: PathBuf, source: io::Error },
}
