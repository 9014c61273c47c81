//! `varve.toml`: the settings that were chosen when the volume was formatted.
//!
//! ```toml
//! format_version = 4
//! id = "00112233445566778899aabbccddeeff"
//! name = "scratch"
//! shards = 64
//! split_threshold = 8000
//! inline_limit_bytes = 65536
//! sync_interval_ms = 5000
//! owner_uid = 1000
//! exclusive_create = "renameat2"  # absent if it is "link"
//! ack = "synced"  # absent if it is "appended"
//! ```
//!
//! Without the volume file the tables cannot be interpreted, so `shards` contains a copy of it. A copy proves that
//! there is or was a volume: it is written after the first volume file and removed before the last one. If both change,
//! the copy changes first, so that its format is never older than that of the tables. Varve changes only the format
//! version, `exclusive_create` and `ack`. If the file and its copy differ in a setting, one of them was damaged or edited, and
//! the volume cannot be opened by either. Nor can it be opened if their number of shards differs from the number of shard directories.

use super::rights::{Readers, file_system_uid};
use super::{VolumeDir, VolumeLock};
use crate::disk::{self, Exclusive};
use crate::printable::printable;
use crate::store_path::{StoreEntry, StorePath};
use crate::toml_text;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use varve_types::{AckLevel, ShardCount, VolumeSettings};

/// The newest format that this version reads, and the one it writes. `formats/volume.md` lists the changes of each.
pub const FORMAT_VERSION: i64 = 4;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeFile {
    format_version: i64,
    id: String,
    name: String,
    shards: u16,
    split_threshold: u64,
    inline_limit_bytes: u32,
    sync_interval_ms: u64,
    owner_uid: u32,
    /// The primitive that was proven in `shards`. The default is left out, so that programs that know no other one open
    /// the volume.
    #[serde(default, skip_serializing_if = "Exclusive::is_default")]
    exclusive_create: Exclusive,
    /// The acknowledgement level. The default is left out for the same reason.
    #[serde(default, skip_serializing_if = "is_appended", with = "ack_text")]
    ack: AckLevel,
}

/// The keys that the file and its copy need not agree on: Varve changes them, and the file counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changeable {
    pub exclusive: Exclusive,
    pub ack: AckLevel,
}

fn is_appended(level: &AckLevel) -> bool {
    *level == AckLevel::Appended
}

mod ack_text {
    use super::AckLevel;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(level: &AckLevel, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(level.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AckLevel, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl VolumeDir {
    /// Reads the volume file. The error for a damaged or missing file says whether there is a copy.
    pub fn read_settings(&self) -> Result<VolumeSettings, VolumeFileError> {
        match self.read_settings_or_copy()? {
            (settings, None) => Ok(settings),
            (_, Some(damaged)) => Err(damaged),
        }
    }

    /// Reads the volume file, or else its copy, together with the error for the file. Fails if both are valid and
    /// differ.
    pub fn read_settings_or_copy(&self) -> Result<(VolumeSettings, Option<VolumeFileError>), VolumeFileError> {
        let (path, copy) = (self.volume_file(), self.volume_file_copy());
        let reason = match self.read(&path) {
            Ok(settings) => {
                self.check_owner(&settings)?;
                // An unreadable copy is written again and does not invalidate the file.
                let copied = self.read(&copy).ok();
                copied.as_ref().map_or(Ok(()), |copied| self.compare(&settings, copied))?;
                self.compare_with_shards(path, &settings, copied.is_some())?;
                return Ok((settings, None));
            }
            Err(VolumeFileProblem::Unreadable(source)) if source.kind() == io::ErrorKind::NotADirectory => {
                return Err(VolumeFileError::NotADirectory { path: self.root().to_owned() });
            }
            Err(VolumeFileProblem::Unreadable(source)) => {
                return Err(VolumeFileError::Unreadable { path: path.into(), source });
            }
            Err(VolumeFileProblem::Newer(found)) => return Err(VolumeFileError::Newer { path: path.into(), found }),
            Err(VolumeFileProblem::Missing) => None,
            Err(VolumeFileProblem::Invalid(reason)) => Some(reason),
        };
        match (self.read(&copy), reason) {
            (Ok(settings), reason) => {
                self.check_owner(&settings)?;
                self.compare_with_shards(copy.clone(), &settings, false)?;
                let reason = reason.unwrap_or_else(|| "it is missing".to_owned());
                Ok((settings, Some(VolumeFileError::Damaged { path: path.into(), reason, copy: copy.into() })))
            }
            (Err(VolumeFileProblem::Newer(found)), _) => Err(VolumeFileError::Newer { path: copy.into(), found }),
            (Err(_), Some(reason)) => Err(VolumeFileError::Invalid { path: path.into(), reason }),
            (Err(_), None) if self.has_lost_its_file() => Err(self.lost()),
            (Err(_), None) if matches!(self.at_root().try_exists(), Ok(false)) => {
                Err(VolumeFileError::NoDirectory { directory: self.root().to_owned() })
            }
            (Err(_), None) => Err(VolumeFileError::NoVolume { directory: self.root().to_owned() }),
        }
    }

    /// The error for the copy, if it exists and is damaged. The copy is needed only when the file is damaged, and then
    /// it would be too late to report this.
    pub fn damage_of_copy(&self) -> Option<VolumeFileError> {
        let path = self.volume_file_copy();
        match self.read(&path) {
            Ok(_) | Err(VolumeFileProblem::Missing | VolumeFileProblem::Newer(_)) => None,
            Err(VolumeFileProblem::Invalid(reason)) => Some(VolumeFileError::DamagedCopy { path: path.into(), reason }),
            Err(VolumeFileProblem::Unreadable(source)) => {
                Some(VolumeFileError::Unreadable { path: path.into(), source })
            }
        }
    }

    /// Refuses a volume whose file and copy differ in more than the format version.
    fn compare(&self, settings: &VolumeSettings, copied: &VolumeSettings) -> Result<(), VolumeFileError> {
        let (own, other) = (table(settings), table(copied));
        let Some((field, value)) = own.iter().find(|(field, value)| other.get(*field) != Some(*value)) else {
            return Ok(());
        };
        let hint = match (field.as_str(), self.shards_there()) {
            ("shards", Some(found)) => format!(" ({} has directories of {found} shards)", self.shards()),
            _ => String::new(),
        };
        let copied = other.get(field).map_or_else(|| "none".to_owned(), ToString::to_string);
        Err(VolumeFileError::Differs(Box::new(Difference {
            path: self.volume_file().into(),
            copy: self.volume_file_copy().into(),
            field: field.clone(),
            value: value.to_string(),
            copied,
            hint,
        })))
    }

    /// Refuses a volume whose `file` has another number of shards than there are shard directories: lookups would go to
    /// wrong shards, and names that are not found there would count as lost. `confirmed`: file and copy agree, so
    /// missing directories are lost.
    fn compare_with_shards(
        &self,
        file: StorePath,
        settings: &VolumeSettings,
        confirmed: bool,
    ) -> Result<(), VolumeFileError> {
        let value = settings.shards.get();
        match self.shards_there() {
            Some(found) if found > u64::from(value) || (found < u64::from(value) && !confirmed) => {
                Err(VolumeFileError::OtherShards { file: file.into(), value, directory: self.shards().into(), found })
            }
            _ => Ok(()),
        }
    }

    fn lost(&self) -> VolumeFileError {
        let number = |number: Option<u64>| number.map_or_else(|| "as before".to_owned(), |number| number.to_string());
        let owner = self.key_file().metadata().ok().map(|key| u64::from(std::os::unix::fs::MetadataExt::uid(&key)));
        VolumeFileError::Lost(Box::new(LostVolumeFile {
            directory: self.root().to_owned(),
            copy: self.volume_file_copy().into(),
            shards: number(self.shards_there()),
            owner: number(owner),
        }))
    }

    /// The number of shards according to the existing shard directories. It is a power of two, and usually directories
    /// with higher numbers remain if one is lost. `None` if there are no shard directories.
    pub(super) fn shards_there(&self) -> Option<u64> {
        let entries = self.shards().read_dir().ok()?.into_iter();
        let shard = |entry: StoreEntry| {
            let name = entry.file_name().to_str();
            let name = name.filter(|name| name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_digit()))?;
            Some((name.parse::<u32>().ok()?, entry.into_path()))
        };
        let mut shards: Vec<_> = entries.filter_map(shard).collect();
        shards.sort_unstable();
        // A format creates the one, and the first opening the other; an unrelated directory has neither.
        let made = |directory: &StorePath| ["log", "manifest"].iter().any(|part| directory.join(part).is_dir());
        let (highest, _) = shards.iter().rev().find(|(_, directory)| made(directory))?;
        Some((u64::from(*highest) + 1).next_power_of_two())
    }

    /// Raises the volume to [`FORMAT_VERSION`], before anything is written that older versions would take for damage:
    /// they refuse the volume from here on. Rewrites the copy of the volume file if it differs. Changes nothing else in
    /// a volume of this format.
    pub fn raise_format(&self, _lock: &VolumeLock, settings: &VolumeSettings) -> io::Result<()> {
        let (path, text) = (self.volume_file(), self.text_of(settings));
        let copied = match disk::read_text(&self.volume_file_copy()) {
            Ok(copy) if copy == text => Ok(()),
            _ => self.copy_volume_file(settings),
        };
        match (disk::read_text(&path)?.parse::<toml::Table>(), copied) {
            (Ok(table), copied)
                if table.get("format_version").and_then(toml::Value::as_integer) == Some(FORMAT_VERSION) =>
            {
                // The store may be full: the volume works as before.
                if let Err(error) = copied {
                    tracing::warn!("cannot write the copy of {}: {error}", path.display());
                }
                Ok(())
            }
            (_, copied) => copied.and_then(|()| disk::replace(&path, text.as_bytes())),
        }
    }

    /// Whether the volume is of [`FORMAT_VERSION`], so that [`VolumeDir::raise_format`] has nothing to raise.
    pub fn is_of_this_format(&self) -> io::Result<bool> {
        let table: Result<toml::Table, _> = disk::read_text(&self.volume_file())?.parse();
        let version = |table: &toml::Table| table.get("format_version").and_then(toml::Value::as_integer);
        Ok(table.is_ok_and(|table| version(&table) == Some(FORMAT_VERSION)))
    }

    /// Replaces a damaged or missing volume file.
    pub fn make_volume_file(&self, settings: &VolumeSettings) -> io::Result<()> {
        disk::replace(&self.volume_file(), self.text_of(settings).as_bytes())
    }

    /// Writes the copy again, replacing whatever file is in its place.
    pub fn copy_volume_file(&self, settings: &VolumeSettings) -> io::Result<()> {
        disk::replace(&self.volume_file_copy(), self.text_of(settings).as_bytes())
    }

    /// The volume file for `settings`, with what the present one records besides.
    fn text_of(&self, settings: &VolumeSettings) -> String {
        render(settings, self.changeable().unwrap_or_default())
    }

    /// By the volume file or else its copy. `None` if neither can be read.
    fn changeable(&self) -> Option<Changeable> {
        let of = |path: &StorePath| {
            let text = self.open_own(path, Readers::Anybody).and_then(disk::text_of).ok()?;
            let file = toml::from_str::<VolumeFile>(&text).ok()?;
            Some(Changeable { exclusive: file.exclusive_create, ack: file.ack })
        };
        of(&self.volume_file()).or_else(|| of(&self.volume_file_copy()))
    }

    /// The primitive for exclusive creation in this volume. `None` if neither the volume file nor its copy can be read.
    pub fn exclusive(&self) -> Option<Exclusive> {
        self.changeable().map(|recorded| recorded.exclusive)
    }

    /// The acknowledgement level of the volume. A server reads it when it starts. The stronger one if neither the volume file
    /// nor its copy can be read.
    pub fn ack_level(&self) -> AckLevel {
        self.changeable().map_or(AckLevel::Synced, |recorded| recorded.ack)
    }

    /// Changes the acknowledgement level for servers that start from here on.
    pub fn set_ack_level(&self, settings: &VolumeSettings, ack: AckLevel) -> io::Result<()> {
        let unreadable = || io::Error::other(format!("neither {} nor its copy can be read", self.volume_file()));
        let recorded = self.changeable().ok_or_else(unreadable)?;
        self.write_changed(settings, Changeable { ack, ..recorded })
    }

    fn write_changed(&self, settings: &VolumeSettings, changed: Changeable) -> io::Result<()> {
        let text = render(settings, changed);
        disk::replace(&self.volume_file_copy(), text.as_bytes())?;
        disk::replace(&self.volume_file(), text.as_bytes())
    }

    /// Looks for a primitive that two processes can rely on in the directory of the tables, and records it.
    pub fn prove_exclusive(&self, _lock: &VolumeLock, settings: &VolumeSettings) -> io::Result<Exclusive> {
        let proven = Exclusive::prove(&self.shards())?;
        let recorded = self.changeable();
        if recorded.map(|recorded| recorded.exclusive) != Some(proven) {
            let recorded = recorded.unwrap_or_default();
            self.write_changed(settings, Changeable { exclusive: proven, ..recorded })?;
        }
        Ok(proven)
    }

    fn read(&self, path: &StorePath) -> Result<VolumeSettings, VolumeFileProblem> {
        match self.open_own(path, Readers::Anybody).and_then(disk::text_of) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(VolumeFileProblem::Missing),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(VolumeFileProblem::Invalid(error.to_string()))
            }
            Err(error) => Err(VolumeFileProblem::Unreadable(error)),
        }
    }

    /// Refuses a volume if the owner in its file is not the owner of the store: root would give one user the rights
    /// that the other one sets. A file server may assign all files to one user, so a file with this user as owner is
    /// accepted, unless this user is root.
    fn check_owner(&self, settings: &VolumeSettings) -> Result<(), VolumeFileError> {
        let (owner, own) = (settings.owner_uid, file_system_uid());
        match self.owner() {
            Ok(found) if found == owner || found == 0 || (owner == own && own != 0) => Ok(()),
            Ok(found) => Err(VolumeFileError::OtherOwner { directory: self.root().to_owned(), owner, found }),
            Err(source) => Err(VolumeFileError::Unreadable { path: self.root().to_owned(), source }),
        }
    }
}

/// The content of the volume file without the comment.
fn file(settings: &VolumeSettings, changeable: Changeable) -> VolumeFile {
    VolumeFile {
        format_version: FORMAT_VERSION,
        id: settings.id.to_string(),
        name: settings.name.clone(),
        shards: settings.shards.get(),
        split_threshold: settings.split_threshold,
        inline_limit_bytes: settings.inline_limit,
        sync_interval_ms: settings.sync_interval.as_millis() as u64,
        owner_uid: settings.owner_uid,
        exclusive_create: changeable.exclusive,
        ack: changeable.ack,
    }
}

fn table(settings: &VolumeSettings) -> toml::Table {
    toml::Table::try_from(file(settings, Changeable::default())).expect("numbers and strings are always TOML")
}

/// The text of the volume file.
pub(super) fn render(settings: &VolumeSettings, changeable: Changeable) -> String {
    let body = toml::to_string(&file(settings, changeable)).expect("numbers and strings are always TOML");
    format!("# A Varve volume. Written by `varve format`; do not edit.\n{body}")
}

enum VolumeFileProblem {
    Missing,
    /// The file cannot be read.
    Unreadable(io::Error),
    Newer(i64),
    Invalid(String),
}

fn parse(text: &str) -> Result<VolumeSettings, VolumeFileProblem> {
    let invalid = |error: toml::de::Error| VolumeFileProblem::Invalid(printable(&toml_text::reason(text, &error)));
    let table: toml::Table = text.parse().map_err(invalid)?;
    // Check the version first: a newer format may have keys that would otherwise be reported as unknown.
    match table.get("format_version").and_then(toml::Value::as_integer) {
        Some(version) if version > FORMAT_VERSION => return Err(VolumeFileProblem::Newer(version)),
        Some(version) if version >= 1 => {}
        _ => return Err(VolumeFileProblem::Invalid("`format_version` is missing or not a number from 1".into())),
    }
    let file: VolumeFile = toml::from_str(text).map_err(invalid)?;
    let settings = VolumeSettings {
        id: file.id.parse().map_err(|error: String| VolumeFileProblem::Invalid(format!("`id`: {error}")))?,
        name: file.name,
        shards: ShardCount::new(file.shards).ok_or_else(|| {
            VolumeFileProblem::Invalid(format!(
                "shards = {}: not a power of two from 1 to {}",
                file.shards,
                ShardCount::MAX
            ))
        })?,
        split_threshold: file.split_threshold,
        inline_limit: file.inline_limit_bytes,
        sync_interval: Duration::from_millis(file.sync_interval_ms),
        owner_uid: file.owner_uid,
    };
    settings.check().map_err(|error| VolumeFileProblem::Invalid(error.to_string()))?;
    Ok(settings)
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeFileError {
    #[error("{} is not a Varve volume: it has no varve.toml; make one with `varve format`, or load it \
             again if a `varve load` was cut short there", directory.display())]
    NoVolume { directory: PathBuf },
    #[error(
        "{} is not a Varve volume: there is no such directory; is the path right, and is its file system \
         mounted?", directory.display()
    )]
    NoDirectory { directory: PathBuf },
    #[error("{} is not a Varve volume: it is no directory; give the one that `varve format` made", path.display())]
    NotADirectory { path: PathBuf },
    #[error(transparent)]
    Lost(Box<LostVolumeFile>),
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{} has format version {found}, and this program reads up to {FORMAT_VERSION}: use a newer varve", path.display()
    )]
    Newer { path: PathBuf, found: i64 },
    #[error("{} is not a volume file: {reason}; restore it from a copy of the store", path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error(
        "{} is not a volume file: {reason}; `varve fsck --repair` makes it anew from its copy {}", path.display(), copy.display()
    )]
    Damaged { path: PathBuf, reason: String, copy: PathBuf },
    #[error("{} is not a copy of the volume file: {reason}", path.display())]
    DamagedCopy { path: PathBuf, reason: String },
    #[error(transparent)]
    Differs(Box<Difference>),
    #[error(
        "{} has shards = {value}, and {} has the directories of {found}: the number never changes after the format, so \
         either the file was edited or damaged, or directories were lost or put there; set the file right, or bring the \
         right directories back from a copy of the store", file.display(), directory.display()
    )]
    OtherShards { file: PathBuf, value: u16, directory: PathBuf, found: u64 },
    #[error(
        "the volume {} belongs to user {owner} by owner_uid in its varve.toml, and its directory to user {found}: give the files \
         to their owner (chown -R {owner}), or set owner_uid right in varve.toml and in its copy shards/varve.toml",
        directory.display()
    )]
    OtherOwner { directory: PathBuf, owner: u32, found: u32 },
}

/// A volume that lacks its file and copy, and those of its settings that are still known.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} holds a Varve volume, and its varve.toml is gone, as is the copy {}: restore it from a copy of the store, or write it \
     anew, with the keys format_version = {FORMAT_VERSION}, id (32 hexadecimal digits in quotes), name (in quotes), \
     shards = {shards}, split_threshold = {}, inline_limit_bytes = {}, sync_interval_ms = {}, owner_uid = {owner}; then \
     check the volume with `varve fsck` before anything else",
    directory.display(), copy.display(), VolumeSettings::SPLIT_THRESHOLD_DEFAULT, VolumeSettings::INLINE_LIMIT_DEFAULT,
    VolumeSettings::SYNC_INTERVAL_DEFAULT.as_millis()
)]
pub struct LostVolumeFile {
    directory: PathBuf,
    copy: PathBuf,
    shards: String,
    owner: String,
}

/// A key in which a volume file and its copy differ.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} has {field} = {value}, and its copy {} has {field} = {copied}{hint}: one of them was edited or damaged; \
     copy the right one over the other",
    path.display(), copy.display()
)]
pub struct Difference {
    path: PathBuf,
    copy: PathBuf,
    pub field: String,
    value: String,
    copied: String,
    hint: String,
}
