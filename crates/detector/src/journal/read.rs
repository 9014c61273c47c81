//! Reading a journal. What a crash cut short at its end is left out; where damage lies in the midst of it, reading goes on
//! with the next record that is whole, which its checksum tells.

use super::{AROUND, ChunkGroupEntry, JournalEntry, MAGIC, RECORD_BYTES_MAX, decode_entry, record_bytes, split};
use crate::dataset_spec::{DatasetSpec, ScalarColumn};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Records are looked for behind damage in so many bytes of possible ones at most, which takes seconds: bytes that look
/// like long records at every place would take days.
const SEARCHED_BYTES_MAX: u64 = 4 << 30;

/// What a journal says.
#[derive(Debug)]
pub struct Contents {
    pub description: DatasetSpec,
    /// Of all records that are whole, in their order.
    pub entries: Vec<JournalEntry>,
    /// So many of the entries stand before all damage: marks count them as they are numbered here.
    pub intact: usize,
    pub damage: Damage,
    /// Chunk groups that damaged records seem to tell of. Anything in them may be wrong.
    pub doubtful: Vec<ChunkGroupEntry>,
    /// Columns of scalars that are told of behind damage.
    pub columns: Vec<ScalarColumn>,
    /// Bytes after the last whole record: what a crash cut short.
    pub torn_bytes: u64,
}

/// What of a journal cannot be read, though whole records follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Damage {
    pub places: u64,
    /// Where in the journal the first of them begins.
    pub first: u64,
    pub bytes: u64,
    /// Of so many frames at most may these bytes have told.
    pub frames_max: u64,
    /// The file's last commit has more than the journal: its end is gone, and with it all that would tell what came after
    /// that commit.
    pub end: bool,
    /// Columns of scalars that were added later, and left out: one before them may be lost, and columns go by their number.
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
    #[error("{path} is no journal of a run: {why}; the file beside it opens with the frames of its last commit")]
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

/// Reads the description in a journal's head.
///
/// # Errors
/// As of [`read`].
pub fn read_head(path: &Path) -> Result<DatasetSpec, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take((MAGIC.len() + AROUND + RECORD_BYTES_MAX) as u64).read_to_end(&mut bytes).map_err(io)?;
    decode(&bytes)
        .map(|contents| contents.description)
        .map_err(|why| JournalError::NotOne { path: path.to_owned(), why })
}

/// Decodes a journal's bytes; `Err` says what its head lacks.
pub fn decode(bytes: &[u8]) -> Result<Contents, String> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or("it does not begin with VARVEDJ1")?;
    let (head, mut rest) = split(rest).ok_or("its head is cut short or damaged")?;
    let mut description: DatasetSpec =
        serde_json::from_slice(head).map_err(|error| format!("its description cannot be read: {error}"))?;
    // Earlier programs took what no element is for the nearest that is.
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
    // A record that is damaged may be the last one, too.
    contents.doubtful.extend(doubtful(rest));
    Ok(contents)
}

/// Whether a journal that cannot be read has a whole head all the same, as one of another version has: it is not damaged.
pub fn has_whole_head(bytes: &[u8]) -> bool {
    let (name, _version) = MAGIC.split_at(MAGIC.len() - 1);
    bytes.starts_with(name) && bytes.get(MAGIC.len()..).is_some_and(|rest| split(rest).is_some())
}

/// The frames that whole records of a journal tell of, whatever became of its head.
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

    /// Takes in that these bytes, at `at`, are no records.
    fn harm(&mut self, at: u64, bytes: &[u8]) {
        let damage = &mut self.damage;
        damage.first = if damage.places == 0 { at } else { damage.first };
        damage.places += 1;
        damage.bytes += bytes.len() as u64;
        damage.frames_max += frames_max(bytes.len() as u64, &self.description);
        self.doubtful.extend(doubtful(bytes));
    }
}

/// The frames that so many bytes of records tell of at most.
fn frames_max(bytes: u64, description: &DatasetSpec) -> u64 {
    /// Of a chunk group's entry: the variant, four numbers and two lengths, at least.
    const CHUNK_GROUP: u64 = AROUND as u64 + 6;
    /// Number, sources, and four times: the detector's may be unknown, the others take nine bytes each.
    const FRAME: u64 = 2 + 1 + 3 * 9;
    const CHUNK: u64 = 4;
    let (frames, around) = (description.chunk_group_frames(), CHUNK_GROUP + CHUNK * description.chunks_per_frame());
    let (whole, rest) = (bytes / (around + frames * FRAME), bytes % (around + frames * FRAME));
    whole * frames + rest.saturating_sub(around) / FRAME
}

/// The chunk groups of records whose lengths lead from one to the next through these bytes, whether their checksums
/// agree or not.
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

/// The entry of the first record, and what follows it.
fn first(bytes: &[u8]) -> Option<(JournalEntry, &[u8])> {
    let (payload, after) = split(bytes)?;
    Some((decode_entry(payload)?, after))
}

/// Where the next whole record begins, behind one that is not. `budget`: bytes that may still be looked at.
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
