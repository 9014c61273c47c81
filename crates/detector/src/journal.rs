//! The journal beside the file (`FILE.journal`). It records which chunks were written to which addresses, appended as
//! they are written. [`crate::recover`] builds a valid file from the journal alone. Byte format:
//! `formats/detector-journal.md`.

mod read;

pub use read::{Contents, Damage, JournalError, decode, frames_told, has_whole_head, read, read_head};

use crate::dataset_spec::{DatasetSpec, Scalar, ScalarKind};
use crate::hdf5::UNDEFINED;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use varve_env::flock::Locked;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"VARVEDJ1";
/// Bytes of the length before the payload and of the checksum after it.
const AROUND: usize = 4 + 8;
/// Upper limit for a record, which describes a frame, a chunk group, or a row of scalars. A longer length field is
/// damage, and no memory is allocated for it. A run whose records could be longer does not start.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 20;

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JournalEntry {
    /// All chunks of a chunk group are in the file.
    #[serde(rename = "Slab")]
    ChunkGroup(ChunkGroupEntry),
    /// The first `entries` entries of the journal, counting these marks, have been synced together with the chunks that
    /// they refer to.
    Durable { entries: u64, time: u64 },
    /// Scalars of one frame: column and value.
    Scalars { frame: u64, values: Vec<(u32, Scalar)> },
    /// The frame was received again.
    Duplicate { frame: u64 },
    /// The frame was received incomplete.
    Damaged { frame: u64 },
    /// One more column of scalars.
    Column { name: String, kind: ScalarKind },
    /// Other processes may write to unused space below `end`, even after the process that appended this entry has died.
    /// Each journal begins with such an entry, which shows that its writer records grants.
    Granted { end: u64 },
}

/// The frames of a chunk group; usually one frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkGroupEntry {
    /// Number of the chunk group, row-major over the scan in chunks.
    #[serde(rename = "slab")]
    pub chunk_group: u64,
    /// Number of the writer within the run. Reports of a writer that was given up are no longer accepted.
    pub epoch: u32,
    /// Whether this entry replaces an earlier one of the same writer with fewer frames or regions.
    pub again: bool,
    pub frames: Vec<FrameEntry>,
    /// Row-major within a frame. The address of a chunk without data is [`crate::hdf5::UNDEFINED`].
    pub chunks: Vec<ChunkEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameEntry {
    pub number: u64,
    /// Times: detector, received, compressed, written.
    pub times: [u64; 4],
    /// Sources whose regions are missing.
    pub missing: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkEntry {
    pub address: u64,
    pub size: u64,
    pub mask: u32,
    /// XXH3 of the stored bytes.
    pub checksum: u64,
}

impl ChunkEntry {
    /// The chunk's bytes in the file.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }

    /// Whether the index can record this chunk.
    pub fn fits(&self, description: &DatasetSpec) -> bool {
        self.address == UNDEFINED && self.size == 0 || description.takes_chunk(self.size)
    }
}

impl ChunkGroupEntry {
    /// The chunks with data.
    pub fn stored(&self) -> impl Iterator<Item = &ChunkEntry> {
        self.chunks.iter().filter(|chunk| chunk.address != UNDEFINED)
    }

    /// Whether the entry is valid for a run with this spec: its frames belong to this chunk group, the number of chunks
    /// is right, and the index can record all of them.
    pub fn fits(&self, description: &DatasetSpec) -> bool {
        let lies = |frame: &FrameEntry| description.chunk_group_of(frame.number).0 == self.chunk_group;
        self.frames.first().is_some_and(|frame| description.takes_frame(frame.number))
            && self.frames.iter().all(lies)
            && self.chunks.len() as u64 == description.chunks_per_frame()
            && self.chunks.iter().all(|chunk| chunk.fits(description))
    }

    /// Upper limit for the payload of such a record, for a run with this spec.
    pub(crate) fn record_bytes_max(description: &DatasetSpec) -> u64 {
        // Variant, chunk group, epoch, `again`, and the two lengths.
        const AROUND: u64 = 1 + 10 + 5 + 1 + 10 + 10;
        // Frame number and times.
        const FRAME: u64 = 10 + 4 * 10;
        const CHUNK: u64 = 10 + 10 + 5 + 10;
        // A length, and the numbers of missing sources, all below 2^14. A received frame of one source misses none.
        let missing = match description.sources.len() as u64 {
            0 | 1 => 1,
            sources => 2 + 2 * sources,
        };
        let frames = description.chunk_group_frames().saturating_mul(FRAME + missing);
        frames.saturating_add(description.chunks_per_frame().saturating_mul(CHUNK)).saturating_add(AROUND)
    }

    /// Total size of its chunks in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.stored().fold(0, |sum, chunk| sum.saturating_add(chunk.size))
    }
}

impl JournalEntry {
    /// End of the last byte in the file that the entry refers to.
    pub fn end(&self) -> u64 {
        let JournalEntry::ChunkGroup(chunk_group) = self else { return 0 };
        chunk_group.stored().map(|chunk| chunk.range().end).max().unwrap_or(0)
    }
}

/// `FILE.journal`.
pub fn path_beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// Keeps the damaged journal of `file` under a second name: the first free one of `FILE.journal.bad`,
/// `FILE.journal.bad-2` and so on. Returns that name. The original name stays, for the caller to replace or remove.
///
/// # Errors
/// If the second name cannot be created, or too many damaged copies exist.
pub fn keep_damaged(file: &Path) -> io::Result<PathBuf> {
    /// A file whose journal was damaged this often needs a person's attention.
    const KEPT_MAX: u32 = 100;
    let journal = path_beside(file);
    for number in 1..=KEPT_MAX {
        let mut name = journal.clone().into_os_string();
        name.push(if number == 1 { ".bad".to_owned() } else { format!(".bad-{number}") });
        let kept = PathBuf::from(name);
        match std::fs::hard_link(&journal, &kept) {
            Ok(()) => return Ok(kept),
            // An earlier call was interrupted after this step.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(&journal, &kept)? => return Ok(kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The store has no hard links.
            Err(_) => match OpenOptions::new().write(true).create_new(true).open(&kept) {
                Ok(mut copy) => {
                    io::copy(&mut File::open(&journal)?, &mut copy)?;
                    copy.sync_all()?;
                    return Ok(kept);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            },
        }
    }
    Err(io::Error::other(format!("{} has {KEPT_MAX} damaged copies already; move them elsewhere", journal.display())))
}

/// Whether both paths refer to the same file.
pub(crate) fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (std::fs::metadata(one)?, std::fs::metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

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
        let (own, there) = (self.file.metadata()?, std::fs::metadata(path)?);
        Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
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
