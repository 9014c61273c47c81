//! What is intact in a log, whatever is damaged in it.

use super::directory;
use super::failure::LogError;
use super::format::{FILE_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, decode_batch};
use bytes::Bytes;
use slatedb::RowEntry;
use std::path::{Path, PathBuf};

/// A place that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    pub path: PathBuf,
    pub offset: u64,
    pub reason: String,
}

/// Calls `note` with every row of every intact batch, in no order that counts: rows carry their sequence numbers. Returns
/// where bytes were left out. Files of epochs that count for nothing are left alone.
pub fn read_intact(directory: &Path, note: &mut dyn FnMut(RowEntry)) -> Result<Vec<DamagedPlace>, LogError> {
    let mut damaged = Vec::new();
    let epochs = directory::list(directory)?;
    let highest = epochs.keys().next_back().copied();
    for (epoch, files) in &epochs {
        // A damaged seal does not say where its epoch ends; then all of it counts.
        let end = match directory::read_seal(directory, *epoch) {
            Ok(Some(seal)) => seal.length,
            Ok(None) if Some(*epoch) != highest => continue,
            Ok(None) => u64::MAX,
            Err(LogError::Damaged { path, offset, reason }) => {
                damaged.push(DamagedPlace { path, offset, reason });
                u64::MAX
            }
            Err(error) => return Err(error),
        };
        for path in files.files.values() {
            // At most a file's length is in memory: 16 MiB, and a batch.
            let bytes = Bytes::from(std::fs::read(path).map_err(LogError::io("read", path))?);
            damaged.extend(scan(path, &bytes, *epoch, end, note));
        }
    }
    Ok(damaged)
}

fn scan(path: &Path, bytes: &Bytes, epoch: u64, end: u64, note: &mut dyn FnMut(RowEntry)) -> Vec<DamagedPlace> {
    let mut damaged = Vec::new();
    let mut whole = true;
    let mut at = FILE_HEADER_BYTES.min(bytes.len());
    while at < bytes.len() {
        let Some((header, body)) = record(bytes, at, epoch) else {
            if std::mem::take(&mut whole) {
                let reason = "no intact record".to_owned();
                damaged.push(DamagedPlace { path: path.to_owned(), offset: at as u64, reason });
            }
            // Lengths cannot be trusted here: the next record may begin at any byte.
            at += 1;
            continue;
        };
        whole = true;
        at += RECORD_HEADER_BYTES + body.len();
        if header.kind == RecordKind::Batch
            && header.position < end
            && let Ok(rows) = decode_batch(&body)
        {
            rows.into_iter().for_each(&mut *note);
        }
    }
    damaged
}

fn record(bytes: &Bytes, at: usize, epoch: u64) -> Option<(RecordHeader, Bytes)> {
    let header = RecordHeader::decode(bytes.get(at..)?.first_chunk()?).ok()?;
    let begin = at + RECORD_HEADER_BYTES;
    let end = begin.checked_add(header.body_bytes as usize).filter(|end| *end <= bytes.len())?;
    let body = bytes.slice(begin..end);
    (header.epoch == epoch && header.matches(&body)).then_some((header, body))
}
