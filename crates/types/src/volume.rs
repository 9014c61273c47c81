//! Settings that are chosen when a volume is formatted and never change.

use crate::{ShardCount, VolumeId};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The settings of a volume, written once into its volume file (`formats/volume.md`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    pub id: VolumeId,
    pub name: String,
    pub shards: ShardCount,
    /// Number of entries above which a partition is split.
    pub split_threshold: u64,
    /// Largest content, in bytes, that is kept in a file's row.
    pub inline_limit: u32,
    /// The longest time for which an acknowledged change may wait for its fsync. Zero: the server calls fsync before
    /// every reply.
    pub sync_interval: Duration,
    /// The owner of the volume. A volume of root serves all users; a volume of another user serves only that user.
    pub owner_uid: u32,
}

/// The meaning of a reply to a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckLevel {
    /// The change is in the log, in the page cache of the store. It survives the death of the server's process.
    #[default]
    Appended,
    /// The change is fsynced. It survives the loss of power.
    Synced,
}

impl AckLevel {
    pub fn name(self) -> &'static str {
        match self {
            AckLevel::Appended => "appended",
            AckLevel::Synced => "synced",
        }
    }
}

impl fmt::Display for AckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AckLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<AckLevel, String> {
        let levels = [AckLevel::Appended, AckLevel::Synced];
        let found = levels.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("{text:?} is no acknowledgement level: use appended or synced"))
    }
}

impl VolumeSettings {
    pub const SHARDS_DEFAULT: u16 = 64;
    /// A directory of a usual size stays in one shard, whose one log takes the changes of all clients: between shards of
    /// one worker a split makes creates slower. Many servers need a lower threshold.
    pub const SPLIT_THRESHOLD_DEFAULT: u64 = 1_000_000;
    /// With a smaller threshold a directory would be split into single names.
    pub const SPLIT_THRESHOLD_MIN: u64 = 2;
    /// The largest value of a volume file, whose numbers are signed.
    pub const SPLIT_THRESHOLD_MAX: u64 = i64::MAX as u64;
    pub const INLINE_LIMIT_DEFAULT: u32 = 64 * 1024;
    /// Larger rows make every batch and every compaction expensive, and a backing file is faster for them anyway.
    pub const INLINE_LIMIT_MAX: u32 = 1024 * 1024;
    pub const SYNC_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
    pub const SYNC_INTERVAL_MAX: Duration = Duration::from_secs(300);
    pub const NAME_BYTES_MAX: usize = 64;

    pub fn check(&self) -> Result<(), VolumeSettingsError> {
        if self.name.is_empty()
            || [".", ".."].contains(&self.name.as_str())
            || self.name.len() > Self::NAME_BYTES_MAX
            || !self.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        {
            return Err(VolumeSettingsError::Name(self.name.clone()));
        }
        if !(Self::SPLIT_THRESHOLD_MIN..=Self::SPLIT_THRESHOLD_MAX).contains(&self.split_threshold) {
            return Err(VolumeSettingsError::SplitThreshold(self.split_threshold));
        }
        if self.inline_limit > Self::INLINE_LIMIT_MAX {
            return Err(VolumeSettingsError::InlineLimit(self.inline_limit));
        }
        if self.sync_interval > Self::SYNC_INTERVAL_MAX {
            return Err(VolumeSettingsError::SyncInterval(self.sync_interval));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeSettingsError {
    #[error("volume name {0:?}: use 1 to 64 letters, digits, '-', '_' or '.', other than . and ..")]
    Name(String),
    #[error(
        "split threshold {0}: use {min} to {max}",
        min = VolumeSettings::SPLIT_THRESHOLD_MIN,
        max = VolumeSettings::SPLIT_THRESHOLD_MAX
    )]
    SplitThreshold(u64),
    #[error("inline limit {0} bytes: use at most {max}", max = VolumeSettings::INLINE_LIMIT_MAX)]
    InlineLimit(u32),
    #[error("sync interval {0:?}: use at most {max:?}", max = VolumeSettings::SYNC_INTERVAL_MAX)]
    SyncInterval(Duration),
}
