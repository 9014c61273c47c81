//! Reads an epoch's stream from its files, checks every byte, and distinguishes a torn end from damage.

use super::directory::{EpochFiles, read_file_header};
use super::failure::LogError;
use super::format::{
    FILE_HEADER_BYTES, FileHeader, GroupHeader, LogFormatError, RECORD_HEADER_BYTES, RecordHeader, RecordKind,
};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use varve_env::store_path::StorePath;

const READ_BYTES: usize = 256 * 1024;

/// One intact record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord {
    Group(GroupHeader),
    Batch(Bytes),
}

/// The place where a stream stops being intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// Position in the stream.
    pub position: u64,
    pub path: PathBuf,
    /// The same place in the file.
    pub offset: u64,
    pub reason: LogFormatError,
}

impl Break {
    pub fn damage(self) -> LogError {
        LogError::Damaged { path: self.path, offset: self.offset, reason: self.reason.to_string() }
    }
}

/// Checks that group ids rise by one and that each group begins with a header.
pub struct GroupOrder {
    pub last_group: u64,
    begun: bool,
}

impl GroupOrder {
    pub fn new(last_group: u64) -> GroupOrder {
        GroupOrder { last_group, begun: false }
    }

    pub fn check(&mut self, record: &LogRecord) -> Result<(), LogFormatError> {
        match record {
            LogRecord::Group(group) if group.id == self.last_group + 1 => {
                self.last_group = group.id;
                self.begun = true;
                Ok(())
            }
            LogRecord::Batch(_) if self.begun => Ok(()),
            _ => Err(LogFormatError::Order),
        }
    }
}

/// A file of an epoch, with the part of the stream that counts in it: a later file takes over at its own base.
#[derive(Clone, Debug)]
struct EpochPart {
    path: StorePath,
    base: u64,
    /// Position at which the next file takes over, or the stream's limit.
    end: u64,
    last_group: u64,
    /// A file between this one and the next whose header is not intact.
    unread: Option<Unread>,
}

/// A file whose header is not intact, and the reason.
type Unread = (PathBuf, LogFormatError);

/// Reads the records of one epoch in order, up to a limit.
pub struct StreamReader {
    epoch: u64,
    parts: std::vec::IntoIter<EpochPart>,
    /// Damage in the files after `parts`, reported when the reader reaches them.
    broken_after: Option<Unread>,
    /// Damage in the files before `parts`.
    broken_before: Option<Unread>,
    current: Option<(EpochPart, Input)>,
    position: u64,
    limit: u64,
    done: bool,
    /// Every group in the files has a higher id.
    pub last_group: u64,
}

impl StreamReader {
    /// Opens the stream of `epoch`; nothing at or beyond the position `limit` is read. A file that was begun and never
    /// fsynced may have left only its name, and then a later one took over from it: a missing file shows only if the
    /// files before it end too early.
    pub fn open(shard: u16, epoch: u64, files: &EpochFiles, limit: u64) -> Result<StreamReader, LogError> {
        let mut parts: Vec<EpochPart> = Vec::new();
        let (mut begun, mut unread, mut broken_before) = (false, None, None);
        let first = files.files.keys().next().copied().unwrap_or(0);
        for (expected, (number, path)) in (first..).zip(&files.files) {
            let header = match read_file_header(path)? {
                Ok(header) if header_fits(&header, shard, epoch, *number, expected) => header,
                other => {
                    unread.get_or_insert((path.clone().into(), other.err().unwrap_or(LogFormatError::Place)));
                    continue;
                }
            };
            // A later file contains a copy of everything beyond its base.
            parts.retain(|part| part.base < header.base);
            let unread = unread.take();
            match parts.last_mut() {
                Some(before) => (before.end, before.unread) = (header.base.min(limit), unread),
                None if !begun => broken_before = unread,
                None => {}
            }
            begun = true;
            let (base, last_group) = (header.base, header.last_group);
            parts.push(EpochPart { path: path.clone(), base, end: limit, last_group, unread: None });
        }
        Ok(StreamReader {
            epoch,
            position: parts.first().map_or(0, |part| part.base),
            last_group: parts.first().map_or(0, |part| part.last_group),
            parts: parts.into_iter(),
            broken_after: unread,
            broken_before,
            current: None,
            limit,
            done: false,
        })
    }

    /// Whether there are files but no intact header, so that nothing can be read.
    pub fn is_headless(&self) -> bool {
        self.parts.as_slice().is_empty() && self.broken_after.is_some()
    }

    /// The break at the first file, if its header is not intact and the bytes before the first readable file are not in
    /// tables. All groups up to `in_tables` are in tables.
    pub fn lost_head(&self, in_tables: u64) -> Option<Break> {
        let (path, reason) = self.broken_before.clone().filter(|_| self.last_group > in_tables)?;
        Some(Break { position: 0, path, offset: 0, reason })
    }

    /// Position of the next record, or of the end.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next intact record; `Ok(Ok(None))` at the limit, or if the last file ends with a complete record; `Ok(Err)`
    /// where the stream is broken, and on every later call.
    pub fn next(&mut self) -> Result<Result<Option<LogRecord>, Break>, LogError> {
        loop {
            if self.done || self.position >= self.limit {
                return Ok(Ok(None));
            }
            if self.current.is_none() && !self.open_next()? {
                self.done = true;
                return Ok(match self.broken_after.take() {
                    Some((path, reason)) => Err(Break { position: self.position, path, offset: 0, reason }),
                    None => Ok(None),
                });
            }
            let (part, input) = self.current.as_mut().expect("opened above");
            if self.position >= part.end {
                self.current = None;
                continue;
            }
            let (path, offset) = (part.path.path().to_owned(), FILE_HEADER_BYTES as u64 + self.position - part.base);
            match read_record(input, self.epoch, self.position, &part.path)? {
                Ok(Some((record, length))) => {
                    self.position += length;
                    return Ok(Ok(Some(record)));
                }
                // The file ends here although a later one begins further on.
                Ok(None) if part.end != self.limit || part.unread.is_some() => {
                    self.done = true;
                    let (path, offset, reason) = match part.unread.take() {
                        Some((path, reason)) => (path, 0, reason),
                        None => (path, offset, LogFormatError::Length),
                    };
                    return Ok(Err(Break { position: self.position, path, offset, reason }));
                }
                Ok(None) => self.current = None,
                Err(reason) => {
                    self.done = true;
                    return Ok(Err(Break { position: self.position, path, offset, reason }));
                }
            }
        }
    }

    fn open_next(&mut self) -> Result<bool, LogError> {
        let Some(part) = self.parts.next() else { return Ok(false) };
        if part.base != self.position {
            // A file before this one is missing, or a record continues into it.
            self.broken_after = Some((part.path.into(), LogFormatError::Place));
            return Ok(false);
        }
        let file = part.path.open().map_err(LogError::io("open", &part.path))?;
        let mut input = Input { file, ahead: BytesMut::new() };
        // The header was read before, to find where its part begins.
        input.take(FILE_HEADER_BYTES).map_err(LogError::io("read", &part.path))?;
        self.current = Some((part, input));
        Ok(true)
    }
}

fn header_fits(header: &FileHeader, shard: u16, epoch: u64, number: u32, expected: u32) -> bool {
    header.shard == shard && header.epoch == epoch && header.number == number && number == expected
}

/// A file read in large pieces. Records are slices of them: nothing is copied.
struct Input {
    file: File,
    ahead: BytesMut,
}

impl Input {
    /// The next `count` bytes, or as many as there are. The buffer grows with the reads, because a torn header may ask
    /// for more than the file holds.
    fn take(&mut self, count: usize) -> std::io::Result<Bytes> {
        while self.ahead.len() < count {
            let held = self.ahead.len();
            self.ahead.resize(held + READ_BYTES, 0);
            let read = read_up_to(&mut self.file, &mut self.ahead[held..]);
            self.ahead.truncate(held + *read.as_ref().unwrap_or(&0));
            if read? < READ_BYTES {
                break;
            }
        }
        Ok(self.ahead.split_to(count.min(self.ahead.len())).freeze())
    }
}

/// The next record and its length; `None` at the file's end. Only device errors are errors.
fn read_record(
    input: &mut Input,
    epoch: u64,
    position: u64,
    path: &StorePath,
) -> Result<Result<Option<(LogRecord, u64)>, LogFormatError>, LogError> {
    let bytes = input.take(RECORD_HEADER_BYTES).map_err(LogError::io("read", path))?;
    let header: &[u8; RECORD_HEADER_BYTES] = match bytes.as_ref().try_into() {
        Ok(header) => header,
        Err(_) if bytes.is_empty() => return Ok(Ok(None)),
        Err(_) => return Ok(Err(LogFormatError::Length)),
    };
    let header = match RecordHeader::decode(header) {
        Ok(header) => header,
        Err(reason) => return Ok(Err(reason)),
    };
    if header.position != position || header.epoch != epoch {
        return Ok(Err(LogFormatError::Place));
    }
    let body = input.take(header.body_bytes as usize).map_err(LogError::io("read", path))?;
    if body.len() != header.body_bytes as usize {
        return Ok(Err(LogFormatError::Length));
    }
    if !header.matches(&body) {
        return Ok(Err(LogFormatError::Checksum));
    }
    let length = (RECORD_HEADER_BYTES + body.len()) as u64;
    let record = match header.kind {
        RecordKind::Group => match GroupHeader::decode(&body) {
            Ok(group) => LogRecord::Group(group),
            Err(reason) => return Ok(Err(reason)),
        },
        RecordKind::Batch => LogRecord::Batch(body),
    };
    Ok(Ok(Some((record, length))))
}

fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The highest synced position in any intact header in the epoch's files, wherever in the files it is.
pub fn synced_mark(epoch: u64, files: &EpochFiles) -> Result<u64, LogError> {
    let mut mark = 0;
    for path in files.files.values() {
        // At most one file is in memory: 16 MiB and a batch.
        let bytes = Bytes::from(path.read().map_err(LogError::io("read", path))?);
        if let Some(header) = file_header(&bytes, epoch) {
            mark = mark.max(header.synced);
        }
        for (_, header, body) in intact_records(&bytes, epoch) {
            if header.kind == RecordKind::Group
                && let Ok(group) = GroupHeader::decode(&body)
                && group.synced <= header.position
            {
                mark = mark.max(group.synced);
            }
        }
    }
    Ok(mark)
}

/// The intact records of a file of `epoch`, each with its offset in the file. Lengths cannot be trusted after a break,
/// so every offset where a record may begin is tried. A record counts only if its header gives its own place, and
/// records inside another record do not count: rows hold user data, which may look like records.
pub fn intact_records(bytes: &Bytes, epoch: u64) -> impl Iterator<Item = (usize, RecordHeader, Bytes)> + '_ {
    let base = file_header(bytes, epoch).map_or_else(|| implied_base(bytes, epoch), |header| Some(header.base));
    let mut at = FILE_HEADER_BYTES;
    std::iter::from_fn(move || {
        let base = base?;
        while at < bytes.len() {
            let place = at;
            match record_at(bytes, place, epoch, |found| found == base) {
                Some((header, body)) => {
                    at += RECORD_HEADER_BYTES + body.len();
                    return Some((place, header, body));
                }
                None => at += 1,
            }
        }
        None
    })
}

fn file_header(bytes: &Bytes, epoch: u64) -> Option<FileHeader> {
    FileHeader::decode(bytes.get(..FILE_HEADER_BYTES)?).ok().filter(|header| header.epoch == epoch)
}

/// The base of a file whose header is not intact: the one on which most bytes of its records agree.
fn implied_base(bytes: &Bytes, epoch: u64) -> Option<u64> {
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    let mut at = FILE_HEADER_BYTES;
    while at < bytes.len() {
        let mut base = 0;
        let found = record_at(bytes, at, epoch, |found| {
            base = found;
            true
        });
        let length = found.map(|(_, body)| RECORD_HEADER_BYTES + body.len());
        if let Some(length) = length {
            *votes.entry(base).or_default() += length;
        }
        at += length.unwrap_or(1);
    }
    votes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(base, _)| base)
}

/// The record at an offset, if there is one, of a file whose base satisfies `fits`.
fn record_at(bytes: &Bytes, at: usize, epoch: u64, fits: impl FnOnce(u64) -> bool) -> Option<(RecordHeader, Bytes)> {
    let header = RecordHeader::decode(bytes.get(at..)?.first_chunk()?).ok().filter(|header| header.epoch == epoch)?;
    let base = header.position.checked_sub((at - FILE_HEADER_BYTES) as u64)?;
    let begin = at + RECORD_HEADER_BYTES;
    let end = begin.checked_add(header.body_bytes as usize).filter(|end| *end <= bytes.len() && fits(base))?;
    let body = bytes.slice(begin..end);
    header.matches(&body).then_some((header, body))
}
