//! Reads the intact part of a damaged log.

use super::directory::{self, EpochFiles};
use super::failure::LogError;
use super::format::{FILE_HEADER_BYTES, RECORD_HEADER_BYTES, RecordKind, Seal, decode_batch};
use super::recovery::measure;
use super::scan::{StreamReader, intact_records};
use bytes::Bytes;
use slatedb::RowEntry;
use std::ops::Range;
use std::path::PathBuf;
use varve_env::store_path::StorePath;
use varve_types::ShardId;

/// An unreadable place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    pub path: PathBuf,
    /// `None`: the file is gone.
    pub offset: Option<u64>,
    pub reason: String,
}

/// Calls `note` with every row of every intact batch, in any order: rows carry their sequence numbers. Returns the
/// places where bytes were left out, and the missing files. Ignores files of epochs that do not count. All groups up to
/// `replay_after`, if known, are in tables, so their files are not reported as missing.
pub fn read_intact(
    shard: ShardId,
    directory: &StorePath,
    replay_after: Option<u64>,
    note: &mut dyn FnMut(RowEntry),
) -> Result<Vec<DamagedPlace>, LogError> {
    let mut damaged = Vec::new();
    let epochs = directory::list(directory)?;
    if let Some(epoch) = directory::gone(&epochs) {
        let reason = format!("it is gone, but {} exists", name(&directory::begun_path(directory, epoch)));
        damaged.push(DamagedPlace { path: directory::file_path(directory, epoch, 0).into(), offset: None, reason });
    }
    if epochs.is_empty() && replay_after.is_some_and(|after| after > 0) {
        let reason = "all files of the log are gone".to_owned();
        damaged.push(DamagedPlace { path: directory::first_file(directory).into(), offset: None, reason });
    }
    let highest = epochs.keys().next_back().copied();
    let mut reached = replay_after;
    for (epoch, files) in &epochs {
        // A damaged seal does not give the end of its epoch; then the whole epoch counts.
        let seal = match directory::read_seal(directory, *epoch) {
            Ok(None) if Some(*epoch) != highest => continue,
            Ok(seal) => seal,
            Err(LogError::Damaged { path, offset, reason }) => {
                damaged.push(DamagedPlace { path, offset: Some(offset), reason });
                None
            }
            Err(error) => return Err(error),
        };
        let before = damaged.len();
        for path in files.files.values() {
            // At most one file is in memory: 16 MiB and a batch.
            let bytes = Bytes::from(path.read().map_err(LogError::io("read", path))?);
            let range = 0..seal.map_or(u64::MAX, |seal| seal.length);
            let found = scan(path, &bytes, *epoch, range, &mut |_, rows| rows.into_iter().for_each(&mut *note));
            damaged.extend(found);
        }
        if damaged.len() == before {
            damaged.extend(broken(shard, directory, *epoch, files, seal, reached)?);
        }
        reached = reached.map(|reached| seal.map_or(reached, |seal| seal.last_group.max(reached)));
    }
    Ok(damaged)
}

/// The damage of an epoch whose existing records are all intact: in a file's header, or a missing file.
fn broken(
    shard: ShardId,
    directory: &StorePath,
    epoch: u64,
    files: &EpochFiles,
    seal: Option<Seal>,
    reached: Option<u64>,
) -> Result<Option<DamagedPlace>, LogError> {
    let Some(seal) = seal else {
        return match measure(shard.0, directory, epoch, files, reached.unwrap_or(0)) {
            Err(LogError::Damaged { path, offset, reason }) => {
                Ok(Some(DamagedPlace { path, offset: Some(offset), reason }))
            }
            other => other.map(|_| None),
        };
    };
    let needed = |reached| seal.last_group > reached;
    if !reached.is_none_or(needed) {
        return Ok(None);
    }
    let gone = |number| DamagedPlace {
        path: directory::file_path(directory, epoch, number).into(),
        offset: None,
        reason: format!("it is gone, but {} covers it", name(&directory::seal_path(directory, epoch))),
    };
    let Some((first, _)) = files.files.first_key_value() else { return Ok(reached.map(|_| gone(0))) };
    if let Some(number) = (*first..).zip(files.files.keys()).find_map(|(due, found)| (due != *found).then_some(due)) {
        return Ok(Some(gone(number)));
    }
    let mut stream = StreamReader::open(shard.0, epoch, files, seal.length)?;
    if let Some(lost) = stream.lost_head(reached.unwrap_or(0)) {
        let (path, offset) = (lost.path, Some(lost.offset));
        return Ok(Some(DamagedPlace { path, offset, reason: lost.reason.to_string() }));
    }
    if *first > 0 && reached.is_some_and(|reached| stream.last_group > reached) {
        return Ok(Some(gone(first - 1)));
    }
    loop {
        match stream.next()? {
            Ok(Some(_)) => {}
            Ok(None) if stream.position() < seal.length => {
                let last = files.files.keys().next_back().map_or(0, |last| last + 1);
                return Ok(Some(gone(last)));
            }
            Ok(None) => return Ok(None),
            Err(broken) => {
                let (path, offset) = (broken.path, Some(broken.offset));
                return Ok(Some(DamagedPlace { path, offset, reason: broken.reason.to_string() }));
            }
        }
    }
}

fn name(path: &StorePath) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Calls `note` with the rows and the position of every intact batch of a file whose position is in `range`.
pub(super) fn scan(
    path: &StorePath,
    bytes: &Bytes,
    epoch: u64,
    range: Range<u64>,
    note: &mut dyn FnMut(u64, Vec<RowEntry>),
) -> Vec<DamagedPlace> {
    let mut damaged = Vec::new();
    let mut lost = |from: usize, to: usize| {
        if from < to {
            let reason = "no intact record".to_owned();
            damaged.push(DamagedPlace { path: path.path().to_owned(), offset: Some(from as u64), reason });
        }
    };
    let mut reached = FILE_HEADER_BYTES.min(bytes.len());
    for (at, header, body) in intact_records(bytes, epoch) {
        lost(reached, at);
        reached = at + RECORD_HEADER_BYTES + body.len();
        if header.kind == RecordKind::Batch
            && range.contains(&header.position)
            && let Ok(rows) = decode_batch(&body)
        {
            note(header.position, rows);
        }
    }
    lost(reached, bytes.len());
    damaged
}
