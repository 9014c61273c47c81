//! Checks the parts of a table's files that reads of its rows do not touch: filters, which lookups of single keys read,
//! and statistics and the footer, which repeat the manifest and are never read.

use super::{TableConfig, TableError};
use crate::log::DamagedPlace;
use slatedb::admin::Admin;
use slatedb::{SstFile, SstReader};
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::FileExt;
use varve_env::store_path::StorePath;

/// Every part of a file except its blocks ends with the CRC-32 of the rest of it, in big-endian order.
const CHECKSUM_BYTES: usize = 4;

/// A file ends with the offset of its metadata, which has a checksum too, and its format version.
const FOOTER_BYTES: usize = 8 + 2;

/// Returns the damaged ones of these parts in the files of a shard without an owner. Their damage loses no row.
pub async fn damaged_ends(config: &TableConfig) -> Result<Vec<DamagedPlace>, TableError> {
    let failed = |error| TableError::new(config.shard, "check", error, None);
    let admin = Admin::builder(config.path(), config.object_store()).build();
    let Some(manifest) = admin.read_manifest(None).await.map_err(failed)? else { return Ok(Vec::new()) };
    let reader = SstReader::new(config.path(), config.object_store(), None, None);
    let (mut seen, mut damaged) = (HashSet::new(), Vec::new());
    for view in manifest.all_sst_views() {
        let id = view.sst.id.value();
        if !seen.insert(id) {
            continue;
        }
        let path = config.volume.shard(config.shard).join("compacted").join(format!("{id}.sst"));
        let file = reader.open_with_handle(view.sst.clone()).map_err(failed)?;
        let info = &view.sst.info;
        let mut note =
            |offset, reason| damaged.push(DamagedPlace { path: path.clone().into(), offset: Some(offset), reason });
        if let Err(error) = path.metadata() {
            note(0, error.to_string());
            continue;
        }
        if let Err(reason) = filter(&path, info.filter_offset, info.filter_len) {
            note(info.filter_offset, format!("its filter: {reason}"));
        }
        if let Err(error) = file.stats().await {
            note(info.stats_offset, format!("its statistics: {error}"));
        }
        if let Err(reason) = footer(&path, &reader, &file).await {
            note(info.stats_offset + info.stats_len, format!("its footer: {reason}"));
        }
    }
    Ok(damaged)
}

fn filter(path: &StorePath, offset: u64, length: u64) -> Result<(), String> {
    if length == 0 {
        return Ok(());
    }
    let read = || -> io::Result<Vec<u8>> {
        let file = path.open()?;
        if offset.saturating_add(length) > file.metadata()?.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| error.to_string())?;
    match bytes.split_last_chunk::<CHECKSUM_BYTES>() {
        Some((bytes, checksum)) if crc32fast::hash(bytes) == u32::from_be_bytes(*checksum) => Ok(()),
        _ => Err("its checksum is wrong".into()),
    }
}

/// Checks that the footer leads to the same content as the manifest, and that the first block reads the same by the
/// footer's format version.
async fn footer(path: &StorePath, reader: &SstReader, by_manifest: &SstFile) -> Result<(), String> {
    leads_inside(path).map_err(|error| error.to_string())?;
    let by_footer = reader.open(by_manifest.id()).await.map_err(|error| error.to_string())?;
    // Reads of rows find a block that is damaged itself.
    let Ok(rows) = by_manifest.read_block(0).await else { return Ok(()) };
    let same = by_footer.read_block(0).await.is_ok_and(|found| found == rows);
    match same && by_footer.info() == by_manifest.info() {
        true => Ok(()),
        false => Err("it contradicts the manifest".into()),
    }
}

/// SlateDB treats an offset beyond the end of the file as a broken invariant and panics.
fn leads_inside(path: &StorePath) -> io::Result<()> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "it points beyond the end of the file");
    let file = path.open()?;
    let end = file.metadata()?.len().checked_sub(FOOTER_BYTES as u64).ok_or_else(invalid)?;
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, end)?;
    let (offset, _version) = footer.split_first_chunk().ok_or_else(invalid)?;
    let described = end.checked_sub(u64::from_be_bytes(*offset));
    if described.is_some_and(|bytes| bytes > CHECKSUM_BYTES as u64) { Ok(()) } else { Err(invalid()) }
}
