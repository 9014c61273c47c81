//! Going on with a run whose writer was killed: its journal says what lies in the file.

use super::{ALIGN_BYTES, Acknowledge, Settings, Shared, Space, WriteError, Writer, now, sync_directory};
use crate::allocate::Allocator;
use crate::catalog::Counts;
use crate::frame::FrameStatus;
use crate::journal::{self, Entry, Journal};
use crate::length::Length;
use crate::recover;
use crate::stream::Ranges;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a run that goes on has already.
#[derive(Debug)]
pub struct Resumed {
    /// Frames in the file; all are durable.
    pub frames: Ranges,
    pub counts: Counts,
}

impl Writer {
    /// Takes up the run of the file at `path`, whose journal its writer left behind. May itself be killed anywhere.
    ///
    /// # Errors
    /// If there is no journal, its writer still runs, or the files cannot be read or written.
    pub fn resume(path: &Path, settings: Settings, acknowledge: Acknowledge) -> Result<(Writer, Resumed), WriteError> {
        let io = |source| WriteError::Io { path: path.to_owned(), source };
        let found = recover::Found::read(path)?;
        let (entries, mut catalog) = found.sound().map_err(io)?;
        found.file.sync_data().map_err(io)?;
        let journal = rewrite(path, &found, &entries).map_err(io)?;
        let bytes = found.file.metadata().map_err(io)?.len();
        // What its writers were granted lies below the file's length: they may be late, and still write there.
        let start = found.used().map_err(io)?.max(bytes).max(ALIGN_BYTES);
        let (allocator, length) = (Allocator::new(start, ALIGN_BYTES), Length::new(bytes));
        let there = catalog.frames.iter().enumerate();
        let in_file = |status| !matches!(status, FrameStatus::Missing | FrameStatus::Damaged);
        let frames: Ranges =
            there.filter(|(_, frame)| in_file(frame.status)).map(|(number, _)| number as u64).collect();
        let counts = catalog.counts();
        let recover::Found { file, contents, .. } = found;
        let own = (Space::Own { allocator, length }, Some(journal));
        let shared = Shared::new((path, file), contents.description, settings, own, acknowledge);
        shared.publish(&mut catalog).map_err(io)?;
        shared.highest.store(frames.end(), Ordering::Relaxed);
        let many = frames.len();
        {
            let mut progress = shared.progress.lock();
            (progress.taken, progress.written, progress.durable) = (many, many, many);
            progress.published = counts.frames;
        }
        let writer = Writer::start(Arc::new(shared), catalog).map_err(io)?;
        Ok((writer, Resumed { frames, counts }))
    }
}

/// Replaces the journal by one without what the crash left of its end, all of whose entries are marked durable.
fn rewrite(path: &Path, found: &recover::Found, entries: &[Entry]) -> io::Result<Journal> {
    let beside = journal::path_beside(path);
    let mut name = beside.clone().into_os_string();
    name.push(".new");
    let mut bytes = journal::encode_head(&found.contents.description);
    for entry in entries {
        journal::encode(entry, &mut bytes);
    }
    let covered = entries.len() as u64;
    journal::encode(&Entry::Durable { entries: covered, time: now() }, &mut bytes);
    match std::fs::remove_file(&name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().append(true).create_new(true).open(&name)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    let journal = Journal::resume(file, covered + 1)?;
    std::fs::rename(&name, &beside)?;
    sync_directory(path)?;
    Ok(journal)
}
