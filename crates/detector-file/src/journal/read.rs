//! Reading a journal. A record that a crash cut short at the end is dropped. Behind damage in the middle, reading
//! continues with the next intact record, which is recognised by its checksum.

use super::{AROUND, MAGIC, decode_entry, record_bytes, split};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use varve_detector_dataset::dataset_spec::{DatasetSpec, ScalarColumn};
use varve_detector_dataset::journal_entry::{ChunkGroupEntry, JournalEntry, RECORD_BYTES_MAX};

/// Limit for the bytes of candidate records that are checked behind damage, which takes seconds. Bytes that look like a
/// long record at every offset would otherwise take days.
const SEARCHED_BYTES_MAX: u64 = 4 << 30;

/// The content of a journal.
#[derive(Debug)]
pub struct Contents {
    pub description: DatasetSpec,
    /// Entries of all intact records, in order.
    pub entries: Vec<JournalEntry>,
    /// Number of entries before the first damage. [`JournalEntry::Durable`] marks number the entries in the same way.
    pub intact: usize,
    pub damage: Damage,
    /// Chunk groups decoded from damaged records. Any field may be wrong.
    pub doubtful: Vec<ChunkGroupEntry>,
    /// Columns of scalars that entries behind damage add.
    pub columns: Vec<ScalarColumn>,
    /// Bytes after the last intact record, which a crash cut short.
    pub torn_bytes: u64,
}

/// Damaged parts of a journal that intact records follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Damage {
    pub places: u64,
    /// Offset of the first damaged part.
    pub first: u64,
    pub bytes: u64,
    /// Upper limit for the number of frames described in the damaged bytes.
    pub frames_max: u64,
    /// The file's last commit contains more than the journal: the end of the journal is lost, and with it every record
    /// of frames after that commit.
    pub end: bool,
    /// Columns of scalars that were added later and are dropped. An earlier column may be lost, and columns are
    /// identified by their number.
    pub columns: u64,
}

impl Damage {
    pub fn is_none(&self) -> bool {
        *self == Damage::default()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a run's journal: {why}; the file beside it opens with the frames of its last commit")]
    NotOne { path: PathBuf, why: String },
}

/// Reads a journal.
///
/// # Errors
/// If it cannot be read, or its head is not a journal's.
pub fn read(path: &Path) -> Result<Contents, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(io)?;
    decode(&bytes).map_err(|why| JournalError::NotOne { path: path.to_owned(), why })
}

/// Reads the dataset spec in a journal's head.
///
/// # Errors
/// Same as [`read`].
pub fn read_head(path: &Path) -> Result<DatasetSpec, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take((MAGIC.len() + AROUND + RECORD_BYTES_MAX) as u64).read_to_end(&mut bytes).map_err(io)?;
    decode(&bytes)
        .map(|contents| contents.description)
        .map_err(|why| JournalError::NotOne { path: path.to_owned(), why })
}

/// Decodes a journal's bytes; `Err` says what is wrong with its head.
pub fn decode(bytes: &[u8]) -> Result<Contents, String> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or("it does not begin with VARVEDJ1")?;
    let (head, mut rest) = split(rest).ok_or("its head is truncated or damaged")?;
    let mut description: DatasetSpec =
        serde_json::from_slice(head).map_err(|error| format!("cannot read its dataset spec: {error}"))?;
    // Earlier programs replaced a fill value that the element type cannot represent by the nearest one.
    let element = description.element;
    description.fill = description.fill.map(|fill| fill.nearest(element));
    description.check().map_err(|error| error.to_string())?;
    let mut contents = Contents::new(description);
    let mut budget = SEARCHED_BYTES_MAX;
    loop {
        while let Some((entry, after)) = first(rest) {
            rest = after;
            match entry {
                JournalEntry::Column { name, kind } if !contents.damage.is_none() => {
                    contents.columns.push(ScalarColumn { name, kind });
                }
                entry => contents.entries.push(entry),
            }
        }
        if contents.damage.is_none() {
            contents.intact = contents.entries.len();
        }
        let Some(skipped) = find(rest, &mut budget) else { break };
        contents.harm((bytes.len() - rest.len()) as u64, &rest[..skipped]);
        rest = &rest[skipped..];
    }
    contents.damage.columns = contents.columns.len() as u64;
    contents.torn_bytes = rest.len() as u64;
    // The last record may be damaged, too.
    contents.doubtful.extend(doubtful(rest));
    Ok(contents)
}

/// Whether a journal that cannot be read has an intact head, as a journal of another version has. Such a journal is not
/// damaged.
pub fn has_whole_head(bytes: &[u8]) -> bool {
    let (name, _version) = MAGIC.split_at(MAGIC.len() - 1);
    bytes.starts_with(name) && bytes.get(MAGIC.len()..).is_some_and(|rest| split(rest).is_some())
}

/// The frames that intact records of a journal refer to, whatever the state of its head.
pub fn frames_told(bytes: &[u8]) -> BTreeSet<u64> {
    let (mut rest, mut budget) = (bytes, SEARCHED_BYTES_MAX);
    let mut frames = BTreeSet::new();
    loop {
        while let Some((entry, after)) = first(rest) {
            rest = after;
            if let JournalEntry::ChunkGroup(chunk_group) = entry {
                frames.extend(chunk_group.frames.iter().map(|frame| frame.number));
            }
        }
        let Some(skipped) = find(rest, &mut budget) else { return frames };
        rest = &rest[skipped..];
    }
}

impl Contents {
    fn new(description: DatasetSpec) -> Contents {
        Contents {
            description,
            entries: Vec::new(),
            intact: 0,
            damage: Damage::default(),
            doubtful: Vec::new(),
            columns: Vec::new(),
            torn_bytes: 0,
        }
    }

    /// Records that these bytes, at offset `at`, are damaged.
    fn harm(&mut self, at: u64, bytes: &[u8]) {
        let damage = &mut self.damage;
        damage.first = if damage.places == 0 { at } else { damage.first };
        damage.places += 1;
        damage.bytes += bytes.len() as u64;
        damage.frames_max += frames_max(bytes.len() as u64, &self.description);
        self.doubtful.extend(doubtful(bytes));
    }
}

/// Upper limit for the number of frames that records of `bytes` bytes describe.
fn frames_max(bytes: u64, description: &DatasetSpec) -> u64 {
    /// Minimum for a chunk group's entry: the variant, four numbers and two lengths.
    const CHUNK_GROUP: u64 = AROUND as u64 + 6;
    /// Number, sources, and four times. The detector's time may be unknown; the others have nine bytes each.
    const FRAME: u64 = 2 + 1 + 3 * 9;
    const CHUNK: u64 = 4;
    let (frames, around) = (description.chunk_group_frames(), CHUNK_GROUP + CHUNK * description.chunks_per_frame());
    let (whole, rest) = (bytes / (around + frames * FRAME), bytes % (around + frames * FRAME));
    whole * frames + rest.saturating_sub(around) / FRAME
}

/// The chunk groups of consecutive records in these bytes, found by their lengths whether or not their checksums match.
fn doubtful(mut bytes: &[u8]) -> Vec<ChunkGroupEntry> {
    let mut chunk_groups = Vec::new();
    while let Some(length) = record_bytes(bytes).filter(|length| *length > 0) {
        if let Some(JournalEntry::ChunkGroup(chunk_group)) = decode_entry(&bytes[4..4 + length]) {
            chunk_groups.push(chunk_group);
        }
        bytes = &bytes[length + AROUND..];
    }
    chunk_groups
}

/// The entry of the first record, and the bytes after it.
fn first(bytes: &[u8]) -> Option<(JournalEntry, &[u8])> {
    let (payload, after) = split(bytes)?;
    Some((decode_entry(payload)?, after))
}

/// Finds the next intact record behind a damaged one. `budget`: bytes that may still be checked.
fn find(bytes: &[u8], budget: &mut u64) -> Option<usize> {
    (1..bytes.len()).find(|at| {
        let rest = &bytes[*at..];
        let cost = record_bytes(rest).map_or(0, |length| length as u64);
        if cost == 0 || cost > *budget {
            return false;
        }
        *budget -= cost;
        first(rest).is_some()
    })
}
