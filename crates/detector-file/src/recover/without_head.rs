//! Recovery with a journal that has lost its head. The head alone identifies the run, so the other records cannot be
//! applied. The file's last commit is complete without the journal and is kept as the file. All bytes above it stay in
//! place, so that a copy of the whole journal, put back, still finds them.

use super::outcome::{Headless, RecoverError, Recovered};
use super::unfinished::head;
use crate::journal::{self, Damage, Journal, JournalError};
use crate::report;
use crate::run_files::{self, remove_journal};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use varve_detector_dataset::frame::{FrameCounts, FrameStatus};
use varve_detector_hdf5::lock::WrittenFile;
use varve_detector_hdf5::superblock::Superblock;

/// Finishes the file at `path` with its last commit. `_held` is its locked journal, whose head is damaged for the
/// reason `why`.
///
/// # Errors
/// If the journal has another version, there is no commit, or the files cannot be read or written.
pub(super) fn recover(
    path: &Path,
    (beside, _held): (PathBuf, Journal),
    why: String,
) -> Result<Recovered, RecoverError> {
    let io = |source| RecoverError::Io { path: path.to_owned(), source };
    let records = std::fs::read(&beside).map_err(io)?;
    if journal::has_whole_head(&records) {
        return Err(JournalError::NotOne { path: beside, why }.into());
    }
    let refused = |what: String| RecoverError::Headless {
        journal: beside.clone(),
        why: why.clone(),
        path: path.to_owned(),
        what,
    };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused(
            "does not exist: if it was moved, put it back and recover again; if it never existed, the run was killed \
            at its start, before any frame, and the journal can be removed"
                .into(),
        ),
        _ => io(error),
    })?;
    let file = WrittenFile::new(file).map_err(io)?;
    let superblock = superblock(&file).map_err(io)?.map_err(refused)?;
    let status = report::status(path).map_err(|error| refused(format!("cannot be read either: {error}")))?;
    let has = |frame: &u64| {
        let byte = usize::try_from(*frame).ok().and_then(|frame| status.get(frame));
        byte.is_some_and(|byte| ![FrameStatus::Missing as u8, FrameStatus::Damaged as u8].contains(byte))
    };
    let is_whole = |(frame, byte): &(u64, &u8)| has(frame) && **byte != FrameStatus::Partial as u8;
    let frames = journal::frames_told(&records).iter().filter(|frame| !has(frame)).count() as u64;
    let end = data_end(&file, superblock.end).map_err(io)?;
    if end > superblock.end {
        file.write_all_at(&Superblock { end, ..superblock }.encode(), 0).map_err(io)?;
        file.sync_data().map_err(io)?;
    }
    file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
    let kept = run_files::keep_damaged(path).map_err(io)?;
    tracing::warn!(
        path = %path.display(),
        "its journal has lost its head ({why}): the file has its last commit; {frames} frames recorded in the journal \
        are not in it; the journal is kept as {}",
        kept.display()
    );
    remove_journal(path).map_err(io)?;
    let counts = counts(&status);
    let damage =
        Damage { places: 1, first: 0, bytes: records.len() as u64, frames_max: frames, end: false, columns: 0 };
    Ok(Recovered {
        counts,
        torn_bytes: 0,
        journal_damage: damage,
        restored: counts.frames - counts.missing - counts.damaged,
        damaged_journal: Some(kept),
        whole: (0..).zip(&status).filter(is_whole).map(|(frame, _)| frame).collect(),
        journal_head: Some(Headless { why, frames }),
    })
}

/// The superblock of the last commit, or the reason why there is no commit.
fn superblock(file: &File) -> io::Result<Result<Superblock, String>> {
    let head = head(file)?;
    let bytes = file.metadata()?.len();
    Ok(match Superblock::decode(&head) {
        Some(superblock) if superblock.end <= bytes => Ok(superblock),
        Some(Superblock { end, .. }) => Err(format!("was truncated: it has {bytes} of {end} bytes")),
        None if head.iter().all(|byte| *byte == 0) => {
            Err("has no commit: the run was killed at its start, before any frame, and both can be removed".into())
        }
        None => Err("does not begin as an HDF5 file of a run does".into()),
    })
}

/// End of the last data in the file, which may continue as a hole; at least `from`.
pub(super) fn data_end(file: &File, from: u64) -> io::Result<u64> {
    let mut end = from;
    loop {
        let data = match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(end),
            // The store does not report holes.
            Err(_) => return Ok(file.metadata()?.len().max(from)),
        };
        end = rustix::fs::seek(file, SeekFrom::Hole(data))?.max(data + 1);
    }
}

fn counts(status: &[u8]) -> FrameCounts {
    let of = |wanted: FrameStatus| status.iter().filter(|byte| **byte == wanted as u8).count() as u64;
    FrameCounts {
        frames: status.len() as u64,
        received: of(FrameStatus::Received),
        missing: of(FrameStatus::Missing),
        damaged: of(FrameStatus::Damaged),
        duplicate: of(FrameStatus::Duplicate),
        late: of(FrameStatus::Late),
        partial: of(FrameStatus::Partial),
    }
}
