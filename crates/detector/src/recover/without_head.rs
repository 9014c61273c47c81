//! A journal without its head, which alone says what run it is of: nothing that it tells can be placed. What the file's own
//! last commit holds is whole without it, and is kept as the file; all that lies above stays where it is, so that a copy of
//! the whole journal, put back, finds it.

use super::{RecoverError, Recovered};
use crate::catalog::FrameCounts;
use crate::frame::FrameStatus;
use crate::hdf5::lock::WrittenFile;
use crate::hdf5::superblock::Superblock;
use crate::journal::{self, Damage, Journal, JournalError};
use crate::report;
use crate::writer::remove_journal;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is lost with a journal's head.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Headless {
    /// What is wrong with the head.
    pub why: String,
    /// Frames that the journal's other records tell of, and the last commit has not.
    pub frames: u64,
}

/// Makes the file at `path` what its last commit says. Its journal, which is held, lacks its head because of `why`.
///
/// # Errors
/// If the journal is one of another version, there is no commit, or the files cannot be read or written.
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
            "is not there: if it was moved away, put it back and recover again; if it never was, the run was killed as it \
             began, before any frame, and the journal can be removed"
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
    let kept = journal::keep_damaged(path).map_err(io)?;
    tracing::warn!(
        path = %path.display(),
        "its journal has lost its head ({why}): the file holds its last commit; {frames} frames that the journal tells of are \
         not in it; the journal is kept as {}",
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

/// What leads to the last commit; else why there is none.
fn superblock(file: &File) -> io::Result<Result<Superblock, String>> {
    let head = super::head(file)?;
    let bytes = file.metadata()?.len();
    Ok(match Superblock::decode(&head) {
        Some(superblock) if superblock.end <= bytes => Ok(superblock),
        Some(Superblock { end, .. }) => Err(format!("was cut short: it has {bytes} of {end} bytes")),
        None if head.iter().all(|byte| *byte == 0) => {
            Err("has no commit: the run was killed as it began, before any frame, and both can be removed".into())
        }
        None => Err("does not begin as an HDF5 file of a run does".into()),
    })
}

/// One past the last byte that lies in the file, which may go on as a hole; `from` at least.
pub(super) fn data_end(file: &File, from: u64) -> io::Result<u64> {
    let mut end = from;
    loop {
        let data = match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(end),
            // A store that does not tell.
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
