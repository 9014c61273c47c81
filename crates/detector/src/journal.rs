//! The journal beside the file (`FILE.journal`): what was written where, appended as it happens. From it alone
//! [`crate::recover`] makes a valid file. Byte by byte in `formats/detector-journal.md`.

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
/// Length, before the payload; checksum after it.
const AROUND: usize = 4 + 8;
/// A record is of a frame, of frames that share chunks, or of a row. More is damage, and must not be allocated; a run whose
/// records could be longer does not start.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 20;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JournalEntry {
    /// All chunks of a chunk group lie in the file.
    #[serde(rename = "Slab")]
    ChunkGroup(ChunkGroupEntry),
    /// The first `entries` of the journal, marks counted too, have been synced, and what they name.
    Durable { entries: u64, time: u64 },
    /// Scalars of one frame: column and value.
    Scalars { frame: u64, values: Vec<(u32, Scalar)> },
    /// The frame came again.
    Duplicate { frame: u64 },
    /// The frame came, but not whole.
    Damaged { frame: u64 },
    /// One more column of scalars.
    Column { name: String, kind: ScalarKind },
    /// Others may write below `end`, wherever nothing lies, also after the death of who entered this. Each journal begins
    /// with one, by which it is known to note them.
    Granted { end: u64 },
}

/// Frames that share chunks; mostly one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkGroupEntry {
    /// Counted row-major over the scan in chunks.
    #[serde(rename = "slab")]
    pub chunk_group: u64,
    /// Which writer, counted through the run; one that was given up is not listened to any more.
    pub epoch: u32,
    /// Its writer had entered it before, with fewer frames or regions; this takes its place.
    pub again: bool,
    pub frames: Vec<FrameEntry>,
    /// Row-major within a frame; [`crate::hdf5::UNDEFINED`] is the address of one that nothing of came.
    pub chunks: Vec<ChunkEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameEntry {
    pub number: u64,
    /// Detector, received, compressed, written.
    pub times: [u64; 4],
    /// Sources whose region is not there.
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
    /// Where it lies in the file.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }

    /// Whether an index can tell of it.
    pub fn fits(&self, description: &DatasetSpec) -> bool {
        self.address == UNDEFINED && self.size == 0 || description.takes_chunk(self.size)
    }
}

impl ChunkGroupEntry {
    /// Those of its chunks of which anything came.
    pub fn stored(&self) -> impl Iterator<Item = &ChunkEntry> {
        self.chunks.iter().filter(|chunk| chunk.address != UNDEFINED)
    }

    /// Whether it can be one of a run of this description: of frames that lie there, with as many chunks as they have, of
    /// which an index can tell.
    pub fn fits(&self, description: &DatasetSpec) -> bool {
        let lies = |frame: &FrameEntry| description.chunk_group_of(frame.number).0 == self.chunk_group;
        self.frames.first().is_some_and(|frame| description.takes_frame(frame.number))
            && self.frames.iter().all(lies)
            && self.chunks.len() as u64 == description.chunks_per_frame()
            && self.chunks.iter().all(|chunk| chunk.fits(description))
    }

    /// Bytes that the payload of the record of one takes at most, in a run of this description.
    pub(crate) fn record_bytes_max(description: &DatasetSpec) -> u64 {
        // The variant, chunk group, epoch, whether again, and the two lengths.
        const AROUND: u64 = 1 + 10 + 5 + 1 + 10 + 10;
        // Number and times.
        const FRAME: u64 = 10 + 4 * 10;
        const CHUNK: u64 = 10 + 10 + 5 + 10;
        // A length, and the number of each source, all of which are below 2^14; what has come lacks none of one.
        let missing = match description.sources.len() as u64 {
            0 | 1 => 1,
            sources => 2 + 2 * sources,
        };
        let frames = description.chunk_group_frames().saturating_mul(FRAME + missing);
        frames.saturating_add(description.chunks_per_frame().saturating_mul(CHUNK)).saturating_add(AROUND)
    }

    /// Bytes of its chunks in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.stored().fold(0, |sum, chunk| sum.saturating_add(chunk.size))
    }
}

impl JournalEntry {
    /// One past the last byte of the file that it names.
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

/// Keeps the damaged journal of the file at `file`, of which there is to be a whole one or none: gives it the first free of
/// the names `FILE.journal.bad`, `FILE.journal.bad-2` and so on, which is answered, beside its own.
///
/// # Errors
/// If it cannot be given another name, or has too many already.
pub fn keep_damaged(file: &Path) -> io::Result<PathBuf> {
    /// A file whose journal was damaged so often is not for a program to look after.
    const KEPT_MAX: u32 = 100;
    let journal = path_beside(file);
    for number in 1..=KEPT_MAX {
        let mut name = journal.clone().into_os_string();
        name.push(if number == 1 { ".bad".to_owned() } else { format!(".bad-{number}") });
        let kept = PathBuf::from(name);
        match std::fs::hard_link(&journal, &kept) {
            Ok(()) => return Ok(kept),
            // By somebody who was interrupted in what comes after.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(&journal, &kept)? => return Ok(kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // A store without hard links.
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
    Err(io::Error::other(format!("{} has {KEPT_MAX} damaged copies already; move them away", journal.display())))
}

/// Whether both are names of one file.
pub(crate) fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (std::fs::metadata(one)?, std::fs::metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Bytes of one record with payload `payload`.
fn record(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&xxh3_64(payload).to_le_bytes());
}

/// Appends `entry` as a record.
pub fn encode(entry: &JournalEntry, out: &mut Vec<u8>) {
    record(&postcard::to_stdvec(entry).expect("an entry holds nothing that cannot be written"), out);
}

/// The entries of records one after the other, all of which must be whole.
pub fn decode_records(mut bytes: &[u8]) -> Option<Vec<JournalEntry>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (payload, after) = split(bytes)?;
        entries.push(decode_entry(payload)?);
        bytes = after;
    }
    Some(entries)
}

/// The head of a journal: the magic, and the run's description as its first record.
pub fn encode_head(description: &DatasetSpec) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    record(&serde_json::to_vec(description).expect("a description is JSON"), &mut bytes);
    bytes
}

/// Of a record of so many bytes.
fn check_length(bytes: usize) -> io::Result<()> {
    match bytes <= RECORD_BYTES_MAX + AROUND {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a record of {bytes} bytes would never be read back, {RECORD_BYTES_MAX} are the most: give less that belongs \
                 together at once"
            ),
        )),
    }
}

/// The entry of one record.
pub fn decode_entry(payload: &[u8]) -> Option<JournalEntry> {
    postcard::from_bytes(payload).ok()
}

/// The bytes of the payload of the first record, if there are as many.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (length <= RECORD_BYTES_MAX && length + AROUND <= bytes.len()).then_some(length)
}

/// The payload of the first record, and what follows it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (payload, rest) = bytes[4.min(bytes.len())..].split_at(record_bytes(bytes)?);
    let (checksum, rest) = rest.split_at(8);
    (xxh3_64(payload).to_le_bytes() == checksum).then_some((payload, rest))
}

/// A journal being written, which nobody else writes: it is locked.
#[derive(Debug)]
pub struct Journal {
    file: Locked,
    room: ReservedBlocks,
    /// Entries appended.
    entries: u64,
    scratch: Vec<u8>,
    /// Why an append has failed: what follows half a record would never be read.
    broken: Option<(io::ErrorKind, String)>,
}

/// Blocks that the store has set aside after the journal's end, so that what lies in the file when a disk runs full can be told
/// of: other processes report it late.
#[derive(Debug)]
struct ReservedBlocks {
    /// The journal's length, and how far there are blocks.
    length: u64,
    end: u64,
    /// The store takes no such wish, or is full.
    given_up: bool,
}

impl ReservedBlocks {
    const LEAST: u64 = 64 << 10;
    const STEP: u64 = 256 << 10;

    fn after(file: &File) -> io::Result<ReservedBlocks> {
        let length = file.metadata()?.len();
        Ok(ReservedBlocks { length, end: length, given_up: false })
    }

    /// So many bytes will be appended.
    fn expect(&mut self, file: &File, bytes: u64) {
        self.length += bytes;
        if self.given_up || self.length + Self::LEAST <= self.end {
            return;
        }
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, self.length, Self::STEP) {
            Ok(()) => self.end = self.length + Self::STEP,
            Err(error) => {
                tracing::debug!("nothing is set aside for a journal: {error}");
                self.given_up = true;
            }
        }
    }
}

impl Journal {
    /// Takes over a file that is open for appending.
    ///
    /// # Errors
    /// If another process holds it.
    pub fn lock(file: File) -> io::Result<Journal> {
        let file = Locked::take(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let room = ReservedBlocks::after(&file)?;
        Ok(Journal { file, room, entries: 0, scratch: Vec::new(), broken: None })
    }

    /// Takes over a journal that has `entries` already.
    ///
    /// # Errors
    /// As of [`Journal::lock`].
    pub fn resume(file: File, entries: u64) -> io::Result<Journal> {
        Ok(Journal { entries, ..Journal::lock(file)? })
    }

    /// Whether `path` names this journal.
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
    /// If they cannot be written; from then on nothing can. If one is longer than readers take, of which nothing is written.
    pub fn append(&mut self, entries: &[JournalEntry]) -> io::Result<()> {
        if let Some((kind, why)) = &self.broken {
            // Who comes second may be the first to tell it.
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

    /// A second handle, to sync without holding up those who append.
    pub fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

#[cfg(test)]
mod tests;
