//! The torn end of a log that its last owner did not close: bytes damaged by a power failure, or by a disk that changed
//! bytes that were not known to be fsynced.

use super::directory;
use super::failure::LogError;
use super::recovery::intact;
use super::salvage::scan;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use varve_env::store_path::StorePath;
use varve_types::ShardId;

/// The place where the next owner of a log truncates it.
#[derive(Clone, Debug)]
pub struct TornEnd {
    pub path: PathBuf,
    pub offset: u64,
    pub reason: String,
    /// The keys of rows after that place that can still be read, in the order of the changes: acknowledged, and lost.
    pub lost: Vec<Bytes>,
}

/// Returns the torn end of a log without an owner, if it has one. Little lies after it, because a log holds few
/// unsynced bytes. Reads the unsealed epoch and writes nothing.
pub fn torn_end(shard: ShardId, directory: &StorePath) -> Result<Option<TornEnd>, LogError> {
    let epochs = directory::list(directory)?;
    let Some((epoch, files)) = epochs.iter().next_back().filter(|(_, files)| !files.sealed) else { return Ok(None) };
    let (seal, Some(broken)) = intact(shard.0, directory, *epoch, files, 0)? else { return Ok(None) };
    // The bytes of a file beyond the base of a later one exist twice.
    let mut lost: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
    for path in files.files.values() {
        let bytes = Bytes::from(path.read().map_err(LogError::io("read", path))?);
        scan(path, &bytes, *epoch, seal.length..u64::MAX, &mut |position, rows| {
            // Copied, so that the keys do not keep the read buffer.
            lost.insert(position, rows.iter().map(|row| Bytes::copy_from_slice(&row.key)).collect());
        });
    }
    let lost = lost.into_values().flatten().collect();
    Ok(Some(TornEnd { path: broken.path, offset: broken.offset, reason: broken.reason.to_string(), lost }))
}
