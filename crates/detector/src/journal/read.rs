//! Reading a journal. What a crash cut short at its end is left out; where damage lies in the midst of it, reading goes on
//! with the next record that is whole, which its checksum tells.

use super::{AROUND, Entry, MAGIC, RECORD_BYTES_MAX, decode_entry, record_bytes, split};
use crate::description::Description;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Records are looked for behind damage in so many bytes of possible ones at most, which takes seconds: bytes that look
/// like long records at every place would take days.
const SEARCHED_BYTES_MAX: u64 = 4 << 30;

/// What a journal says.
#[derive(Debug)]
pub struct Contents {
    pub description: Description,
    /// Of all records that are whole, in their order.
    pub entries: Vec<Entry>,
    /// So many of the entries stand before all damage: marks count them as they are numbered here.
    pub intact: usize,
    pub damage: Damage,
    /// Bytes after the last whole record: what a crash cut short.
    pub torn_bytes: u64,
}

/// What of a journal cannot be read, though whole records follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Damage {
    pub places: u64,
    pub bytes: u64,
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
pub fn read_head(path: &Path) -> Result<Description, JournalError> {
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
    let mut description: Description =
        serde_json::from_slice(head).map_err(|error| format!("its description cannot be read: {error}"))?;
    // Earlier programs took what no element is for the nearest that is.
    let element = description.element;
    description.fill = description.fill.map(|fill| fill.nearest(element));
    description.check().map_err(|error| error.to_string())?;
    let mut contents =
        Contents { description, entries: Vec::new(), intact: 0, damage: Damage::default(), torn_bytes: 0 };
    let mut budget = SEARCHED_BYTES_MAX;
    loop {
        while let Some((entry, after)) = first(rest) {
            rest = after;
            match entry {
                Entry::Column { .. } if !contents.damage.is_none() => contents.damage.columns += 1,
                entry => contents.entries.push(entry),
            }
        }
        if contents.damage.is_none() {
            contents.intact = contents.entries.len();
        }
        let Some(skipped) = find(rest, &mut budget) else { break };
        contents.damage.places += 1;
        contents.damage.bytes += skipped as u64;
        rest = &rest[skipped..];
    }
    contents.torn_bytes = rest.len() as u64;
    Ok(contents)
}

/// The entry of the first record, and what follows it.
fn first(bytes: &[u8]) -> Option<(Entry, &[u8])> {
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
