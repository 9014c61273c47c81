//! What is chosen when a volume is formatted, and no program changes.

use crate::{ShardCount, VolumeId};
use std::time::Duration;

/// The settings of a volume, written once into its volume file (`formats/volume.md`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    pub id: VolumeId,
    pub name: String,
    pub shards: ShardCount,
    /// Entries above which a partition is cut in half.
    pub split_threshold: u64,
    /// Bytes up to which a file's content stays in its row.
    pub inline_limit: u32,
    /// How long an acknowledged change may wait for its fsync; zero: fsynced before every reply.
    pub sync_interval: Duration,
    /// The user the volume belongs to: root's volumes serve everyone, another user's serve that user alone.
    pub owner_uid: u32,
}

impl VolumeSettings {
    pub const SHARDS_DEFAULT: u16 = 64;
    pub const SPLIT_THRESHOLD_DEFAULT: u64 = 8_000;
    /// Below this a directory would be cut into single names.
    pub const SPLIT_THRESHOLD_MIN: u64 = 2;
    /// What a volume file, whose numbers have signs, can say.
    pub const SPLIT_THRESHOLD_MAX: u64 = i64::MAX as u64;
    pub const INLINE_LIMIT_DEFAULT: u32 = 64 * 1024;
    /// Rows above this make every batch and every compaction heavy; beyond it a backing file is faster anyway.
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
