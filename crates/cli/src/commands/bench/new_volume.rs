//! The volumes that benchmarks make for themselves.

use crate::problem::{Problem, Result};
use varve_env::random;
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_types::{ShardCount, VolumeId, VolumeSettings};

/// Formats a volume with the default settings but for the split threshold.
pub fn make(volume: &VolumeDir, name: &str, split_threshold: u64) -> Result<VolumeSettings> {
    let settings = VolumeSettings {
        id: VolumeId(random::bytes()),
        name: name.to_owned(),
        shards: ShardCount::new(VolumeSettings::SHARDS_DEFAULT).expect("the default is valid"),
        split_threshold,
        inline_limit: VolumeSettings::INLINE_LIMIT_DEFAULT,
        sync_interval: VolumeSettings::SYNC_INTERVAL_DEFAULT,
        owner_uid: rustix::process::geteuid().as_raw(),
    };
    let formatted = varve_admin::format::format(volume, &settings, FormatOver::Nothing);
    let failed = || Problem::new(format!("cannot make a volume at {}", volume.root().display()));
    formatted.map(|_| settings).map_err(|error| failed().caused_by(&error))
}
