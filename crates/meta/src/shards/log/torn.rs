//! The end of a log that its last owner did not close, where bytes are not whole: what a loss of power leaves, or a disk
//! that has changed what was never known to be fsynced.

use super::directory;
use super::failure::LogError;
use super::recovery::intact;
use super::salvage::scan;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use varve_env::store_path::StorePath;
use varve_types::ShardId;

/// Where the next owner of a log cuts it off.
#[derive(Clone, Debug)]
pub struct TornEnd {
    pub path: PathBuf,
    pub offset: u64,
    pub reason: String,
    /// The keys of rows behind that place which can still be read, in the order of the changes: acknowledged, and lost.
    pub lost: Vec<Bytes>,
}

/// The torn end of a log that nobody owns, if it has one. Not much is behind it: a log holds few unsynced bytes. Reads
/// the epoch that is not sealed, and writes nothing.
pub fn torn_end(shard: ShardId, directory: &StorePath) -> Result<Option<TornEnd>, LogError> {
    let epochs = directory::list(directory)?;
    let Some((epoch, files)) = epochs.iter().next_back().filter(|(_, files)| !files.sealed) else { return Ok(None) };
    let (seal, Some(broken)) = intact(shard.0, directory, *epoch, files, 0)? else { return Ok(None) };
    // What a file holds beyond the base of a later one is there twice.
    let mut lost: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
    for path in files.files.values() {
        let bytes = Bytes::from(path.read().map_err(LogError::io("read", path))?);
        scan(path, &bytes, *epoch, seal.length..u64::MAX, &mut |position, rows| {
            // Copied, so that they do not keep what was read with them.
            lost.insert(position, rows.iter().map(|row| Bytes::copy_from_slice(&row.key)).collect());
        });
    }
    let lost = lost.into_values().flatten().collect();
    Ok(Some(TornEnd { path: broken.path, offset: broken.offset, reason: broken.reason.to_string(), lost }))
}
