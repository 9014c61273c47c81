//! `varve.toml`: what was chosen when the volume was formatted.
//!
//! ```toml
//! format_version = 2
//! id = "00112233445566778899aabbccddeeff"
//! name = "scratch"
//! shards = 64
//! split_threshold = 8000
//! inline_limit_bytes = 65536
//! sync_interval_ms = 5000
//! owner_uid = 1000
//! ```

use super::{VolumeDir, VolumeLock};
use crate::disk;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use varve_types::{ShardCount, VolumeSettings, VolumeSettingsError};

/// The newest format this program reads, and the one it writes. `formats/volume.md` says what each changed.
pub const FORMAT_VERSION: i64 = 2;

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
}

impl VolumeDir {
    /// Reads the volume file.
    pub fn read_settings(&self) -> Result<VolumeSettings, VolumeFileError> {
        let path = self.volume_file();
        let text = match disk::read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(VolumeFileError::NoVolume { directory: self.root().to_owned() });
            }
            Err(source) => return Err(VolumeFileError::Unreadable { path, source }),
        };
        parse(&text).map_err(|problem| match problem {
            Problem::Newer(found) => VolumeFileError::Newer { path, found },
            Problem::Invalid(reason) => VolumeFileError::Invalid { path, reason },
            Problem::Settings(source) => VolumeFileError::Settings { path, source },
        })
    }

    /// Makes the volume one of [`FORMAT_VERSION`], before anything is written that programs of an older one would take
    /// for damage: they refuse it from here on. Does nothing to one that is.
    pub fn raise_format(&self, _lock: &VolumeLock, settings: &VolumeSettings) -> io::Result<()> {
        let path = self.volume_file();
        let text = render(settings);
        match disk::read_text(&path)?.parse::<toml::Table>() {
            Ok(table) if table.get("format_version").and_then(toml::Value::as_integer) == Some(FORMAT_VERSION) => {
                Ok(())
            }
            _ => disk::replace(&path, text.as_bytes()),
        }
    }
}

/// The text of the volume file.
pub(super) fn render(settings: &VolumeSettings) -> String {
    let file = VolumeFile {
        format_version: FORMAT_VERSION,
        id: settings.id.to_string(),
        name: settings.name.clone(),
        shards: settings.shards.get(),
        split_threshold: settings.split_threshold,
        inline_limit_bytes: settings.inline_limit,
        sync_interval_ms: settings.sync_interval.as_millis() as u64,
        owner_uid: settings.owner_uid,
    };
    let body = toml::to_string(&file).expect("numbers and strings are always TOML");
    format!("# A Varve volume. Written by `varve format`; do not edit.\n{body}")
}

enum Problem {
    Newer(i64),
    Invalid(String),
    Settings(VolumeSettingsError),
}

fn parse(text: &str) -> Result<VolumeSettings, Problem> {
    let invalid = |error: toml::de::Error| Problem::Invalid(error.message().to_owned());
    let table: toml::Table = text.parse().map_err(invalid)?;
    // The version first: a newer format may have keys that would otherwise be reported as unknown.
    match table.get("format_version").and_then(toml::Value::as_integer) {
        Some(version) if version > FORMAT_VERSION => return Err(Problem::Newer(version)),
        Some(version) if version >= 1 => {}
        _ => return Err(Problem::Invalid("format_version is missing or not a number from 1".into())),
    }
    let file: VolumeFile = toml::from_str(text).map_err(invalid)?;
    let settings = VolumeSettings {
        id: file.id.parse().map_err(Problem::Invalid)?,
        name: file.name,
        shards: ShardCount::new(file.shards).ok_or_else(|| {
            Problem::Invalid(format!("shards = {}: not a power of two from 1 to {}", file.shards, ShardCount::MAX))
        })?,
        split_threshold: file.split_threshold,
        inline_limit: file.inline_limit_bytes,
        sync_interval: Duration::from_millis(file.sync_interval_ms),
        owner_uid: file.owner_uid,
    };
    settings.check().map_err(Problem::Settings)?;
    Ok(settings)
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeFileError {
    #[error("{} is not a Varve volume: it has no varve.toml; make one with `varve format`", directory.display())]
    NoVolume { directory: PathBuf },
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(
        "{} has format version {found}, and this program reads up to {FORMAT_VERSION}: use a newer varve", path.display()
    )]
    Newer { path: PathBuf, found: i64 },
    #[error("{} is not a volume file: {reason}; restore it from a copy of the store", path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("{} is not a volume file: {source}; restore it from a copy of the store", path.display())]
    Settings { path: PathBuf, source: VolumeSettingsError },
}
