//! The journal beside the file (`FILE.journal`). It records which chunks were written to which addresses, appended as
//! they are written. [`crate::recover`] builds a valid file from the journal alone. Byte format:
//! `formats/detector-journal.md`.

mod read;

pub use read::{Contents, Damage, JournalError, decode, frames_told, has_whole_head, read, read_head};

use crate::run_files::is_same_file;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::journal_entry::{JournalEntry, RECORD_BYTES_MAX};
use varve_env::flock::Locked;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"VARVEDJ1";
/// Bytes of the length before the payload and of the checksum after it.
const AROUND: usize = 4 + 8;
/// Appends the record of a payload.
fn record(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&xxh3_64(payload).to_le_bytes());
}

/// Appends `entry` as a record.
pub fn encode(entry: &JournalEntry, out: &mut Vec<u8>) {
    record(&postcard::to_stdvec(entry).expect("an entry holds nothing that cannot be written"), out);
}

/// Decodes consecutive records, all of which must be intact.
pub fn decode_records(mut bytes: &[u8]) -> Option<Vec<JournalEntry>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (payload, after) = split(bytes)?;
        entries.push(decode_entry(payload)?);
        bytes = after;
    }
    Some(entries)
}

/// The head of a journal: the magic number, and the dataset spec as the first record.
pub fn encode_head(description: &DatasetSpec) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    record(&serde_json::to_vec(description).expect("a description is JSON"), &mut bytes);
    bytes
}

fn check_length(bytes: usize) -> io::Result<()> {
    match bytes <= RECORD_BYTES_MAX + AROUND {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a journal record of {bytes} bytes exceeds the limit of {RECORD_BYTES_MAX}: send fewer scalars or \
                chunks at once"
            ),
        )),
    }
}

/// Decodes the payload of one record.
pub fn decode_entry(payload: &[u8]) -> Option<JournalEntry> {
    postcard::from_bytes(payload).ok()
}

/// Payload length of the first record, if `bytes` has all of it.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (length <= RECORD_BYTES_MAX && length + AROUND <= bytes.len()).then_some(length)
}

/// The payload of the first record, and the bytes after it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (payload, rest) = bytes[4.min(bytes.len())..].split_at(record_bytes(bytes)?);
    let (checksum, rest) = rest.split_at(8);
    (xxh3_64(payload).to_le_bytes() == checksum).then_some((payload, rest))
}

/// A journal being written. A lock excludes other writers.
#[derive(Debug)]
pub struct Journal {
    file: Locked,
    room: ReservedBlocks,
    /// Number of appended entries.
    entries: u64,
    scratch: Vec<u8>,
    /// The error of a failed append. Records after a partial record would never be read.
    broken: Option<(io::ErrorKind, String)>,
}

/// Blocks preallocated behind the journal's end. When a disk runs full, joined processes can still report what they
/// have already written to the file.
#[derive(Debug)]
struct ReservedBlocks {
    /// The journal's length; `end` is where the preallocated blocks end.
    length: u64,
    end: u64,
    /// The store does not support preallocation, or is full.
    given_up: bool,
}

impl ReservedBlocks {
    const LEAST: u64 = 64 << 10;
    const STEP: u64 = 256 << 10;

    fn after(file: &File) -> io::Result<ReservedBlocks> {
        let length = file.metadata()?.len();
        Ok(ReservedBlocks { length, end: length, given_up: false })
    }

    /// Accounts for `bytes` about to be appended and preallocates more blocks if needed.
    fn expect(&mut self, file: &File, bytes: u64) {
        self.length += bytes;
        if self.given_up || self.length + Self::LEAST <= self.end {
            return;
        }
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, self.length, Self::STEP) {
            Ok(()) => self.end = self.length + Self::STEP,
            Err(error) => {
                tracing::debug!("cannot preallocate space for a journal: {error}");
                self.given_up = true;
            }
        }
    }
}

impl Journal {
    /// Takes over a file that is open for appending.
    ///
    /// # Errors
    /// If another process has it locked.
    pub fn lock(file: File) -> io::Result<Journal> {
        let file = Locked::take(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let room = ReservedBlocks::after(&file)?;
        Ok(Journal { file, room, entries: 0, scratch: Vec::new(), broken: None })
    }

    /// Takes over a journal with `entries` existing entries.
    ///
    /// # Errors
    /// Same as [`Journal::lock`].
    pub fn resume(file: File, entries: u64) -> io::Result<Journal> {
        Ok(Journal { entries, ..Journal::lock(file)? })
    }

    /// Whether `path` refers to this journal.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        is_same_file(&self.file, path)
    }

    pub fn write_head(&mut self, description: &DatasetSpec) -> io::Result<()> {
        let head = encode_head(description);
        check_length(head.len() - MAGIC.len())?;
        self.room.expect(&self.file, head.len() as u64);
        (&*self.file).write_all(&head)
    }

    /// Appends entries with one write.
    ///
    /// # Errors
    /// If the write fails; later appends then fail, too. If a record is too long for readers; in that case nothing is
    /// written.
    pub fn append(&mut self, entries: &[JournalEntry]) -> io::Result<()> {
        if let Some((kind, why)) = &self.broken {
            // The second caller may be the first to report the error.
            return Err(io::Error::new(*kind, why.clone()));
        }
        self.scratch.clear();
        for entry in entries {
            let before = self.scratch.len();
            encode(entry, &mut self.scratch);
            check_length(self.scratch.len() - before)?;
        }
        self.room.expect(&self.file, self.scratch.len() as u64);
        (&*self.file).write_all(&self.scratch).inspect_err(|error| {
            self.broken = Some((error.kind(), error.to_string()));
        })?;
        self.entries += entries.len() as u64;
        Ok(())
    }

    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// A second handle, which can be synced without blocking appends.
    pub fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

#[cfg(test)]
mod tests;
