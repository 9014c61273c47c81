//! The encoding of a dump, as `formats/dump.md` describes it. Little-endian throughout.

use crate::maintenance::MaintenanceError;
use crate::snapshot::Unreadable;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};
use std::time::Duration;
use varve_env::volume_dir::{LockError, VolumeFileError};
use varve_types::{AckLevel, ShardCount, ShardId, VolumeId, VolumeSettings};
use xxhash_rust::xxh3::Xxh3;

/// The newest version that this program reads, and the one it writes.
pub const VERSION: u32 = 2;

/// The oldest version that this program reads: its rows are the same.
const VERSION_OLDEST: u32 = 1;
const MAGIC: &[u8; 8] = b"VARVDUMP";
const HEADER_BYTES: usize = 16;
/// Above the longest row (1 MiB of content) and key. A longer body is not a record, and nothing is allocated for it.
const BODY_BYTES_MAX: u32 = 4 * 1024 * 1024;

/// After the settings of a volume whose acknowledgement level is `synced`.
const SYNCED: u8 = 1;

const VOLUME: u32 = 1;
const ROW: u32 = 2;
const END: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error(transparent)]
    Volume(#[from] VolumeFileError),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Maintenance(#[from] MaintenanceError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("shard {shard} has a damaged row, {reason}: repair the volume with `varve fsck --repair`, then dump it")]
    Damaged { shard: ShardId, reason: String },
    #[error("not a dump of a Varve volume")]
    NoDump,
    #[error("the dump has format version {found}, and this program reads up to {VERSION}: use a newer varve")]
    Newer { found: u32 },
    #[error("the dump is damaged at byte {at}: {reason}; load another copy of it")]
    Broken { at: u64, reason: String },
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
}

/// The totals at the end of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpCounts {
    pub rows: u64,
    pub entries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpRecord {
    Volume(VolumeSettings, AckLevel),
    /// Key and row as in the table.
    Row {
        shard: ShardId,
        key: Vec<u8>,
        row: Vec<u8>,
    },
    End(DumpCounts),
}

#[derive(Serialize, Deserialize)]
struct StoredSettings {
    id: [u8; 16],
    name: String,
    shards: u16,
    split_threshold: u64,
    inline_limit: u32,
    sync_interval_ms: u64,
    owner_uid: u32,
}

impl DumpRecord {
    fn encode(&self) -> (u32, Vec<u8>) {
        let bytes = |stored: Result<Vec<u8>, postcard::Error>| stored.expect("a vector takes any number of bytes");
        match self {
            DumpRecord::Volume(settings, ack) => {
                let stored = StoredSettings {
                    id: settings.id.0,
                    name: settings.name.clone(),
                    shards: settings.shards.get(),
                    split_threshold: settings.split_threshold,
                    inline_limit: settings.inline_limit,
                    sync_interval_ms: settings.sync_interval.as_millis() as u64,
                    owner_uid: settings.owner_uid,
                };
                let mut body = bytes(postcard::to_allocvec(&stored));
                // Programs that do not know it ignore what follows the settings.
                if *ack == AckLevel::Synced {
                    body.push(SYNCED);
                }
                (VOLUME, body)
            }
            DumpRecord::Row { shard, key, row } => {
                let mut body = Vec::with_capacity(4 + key.len() + row.len());
                body.extend_from_slice(&shard.0.to_le_bytes());
                // Keys have at most 273 bytes.
                body.extend_from_slice(&(key.len() as u16).to_le_bytes());
                body.extend_from_slice(key);
                body.extend_from_slice(row);
                (ROW, body)
            }
            DumpRecord::End(counts) => (END, bytes(postcard::to_allocvec(counts))),
        }
    }

    fn decode(kind: u32, body: &[u8]) -> Option<DumpRecord> {
        match kind {
            VOLUME => {
                let (stored, rest): (StoredSettings, _) = postcard::take_from_bytes(body).ok()?;
                let ack = match rest {
                    [] => AckLevel::Appended,
                    [SYNCED] => AckLevel::Synced,
                    _ => return None,
                };
                let settings = VolumeSettings {
                    id: VolumeId(stored.id),
                    name: stored.name,
                    shards: ShardCount::new(stored.shards)?,
                    split_threshold: stored.split_threshold,
                    inline_limit: stored.inline_limit,
                    sync_interval: Duration::from_millis(stored.sync_interval_ms),
                    owner_uid: stored.owner_uid,
                };
                settings.check().ok()?;
                Some(DumpRecord::Volume(settings, ack))
            }
            ROW => {
                let (shard, rest) = body.split_first_chunk()?;
                let (length, rest) = rest.split_first_chunk()?;
                let (key, row) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
                let shard = ShardId(u16::from_le_bytes(*shard));
                Some(DumpRecord::Row { shard, key: key.to_vec(), row: row.to_vec() })
            }
            END => postcard::from_bytes(body).ok().map(DumpRecord::End),
            _ => None,
        }
    }
}

/// Covers a record's position, length, kind and body, so that an exchanged or missing record is detected.
fn checksum(at: u64, head: &[u8], body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&at.to_le_bytes());
    hash.update(head);
    hash.update(body);
    hash.digest()
}

pub struct RecordWriter<'a> {
    output: io::BufWriter<&'a mut dyn Write>,
    at: u64,
}

fn write_failed(source: io::Error) -> DumpError {
    DumpError::Io { doing: "cannot write the dump".into(), source }
}

impl<'a> RecordWriter<'a> {
    pub fn begin(output: &'a mut dyn Write) -> Result<RecordWriter<'a>, DumpError> {
        let mut output = io::BufWriter::with_capacity(256 * 1024, output);
        let written = output.write_all(MAGIC).and_then(|()| output.write_all(&VERSION.to_le_bytes()));
        written.map_err(write_failed)?;
        Ok(RecordWriter { output, at: (MAGIC.len() + 4) as u64 })
    }

    pub fn write(&mut self, record: &DumpRecord) -> Result<(), DumpError> {
        let (kind, body) = record.encode();
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&(body.len() as u32).to_le_bytes());
        header.extend_from_slice(&kind.to_le_bytes());
        let sum = checksum(self.at, &header, &body);
        header.extend_from_slice(&sum.to_le_bytes());
        self.output.write_all(&header).and_then(|()| self.output.write_all(&body)).map_err(write_failed)?;
        self.at += (HEADER_BYTES + body.len()) as u64;
        Ok(())
    }

    /// Returns the number of bytes written.
    pub fn finish(mut self) -> Result<u64, DumpError> {
        self.output.flush().map_err(write_failed)?;
        Ok(self.at)
    }
}

pub struct RecordReader<'a> {
    input: io::BufReader<&'a mut dyn Read>,
    at: u64,
}

impl<'a> RecordReader<'a> {
    pub fn begin(input: &'a mut dyn Read) -> Result<RecordReader<'a>, DumpError> {
        let mut reader = RecordReader { input: io::BufReader::with_capacity(256 * 1024, input), at: 0 };
        let mut head = [0; 12];
        reader.fill(&mut head).map_err(|error| match error {
            DumpError::Broken { .. } => DumpError::NoDump,
            other => other,
        })?;
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(DumpError::NoDump);
        }
        let found = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
        if !(VERSION_OLDEST..=VERSION).contains(&found) {
            return Err(DumpError::Newer { found });
        }
        Ok(reader)
    }

    pub fn broken(&self, reason: impl Into<String>) -> DumpError {
        DumpError::Broken { at: self.at, reason: reason.into() }
    }

    pub fn read(&mut self) -> Result<DumpRecord, DumpError> {
        let begin = self.at;
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (length, kind) = (word(0), word(4));
        if length > BODY_BYTES_MAX {
            return Err(DumpError::Broken { at: begin, reason: format!("invalid record length of {length} bytes") });
        }
        let mut body = vec![0; length as usize];
        self.fill(&mut body)?;
        let sum = (u64::from(word(12)) << 32) | u64::from(word(8));
        if sum != checksum(begin, &header[..8], &body) {
            return Err(DumpError::Broken { at: begin, reason: "a record's checksum is wrong".into() });
        }
        let unknown = || DumpError::Broken { at: begin, reason: format!("malformed record of kind {kind}") };
        DumpRecord::decode(kind, &body).ok_or_else(unknown)
    }

    /// Fails if anything follows the last record: another dump there would be lost without an error.
    pub fn end(&mut self) -> Result<(), DumpError> {
        let rest = self.input.fill_buf();
        let rest = rest.map_err(|source| DumpError::Io { doing: "cannot read the dump".into(), source })?;
        if rest.is_empty() { Ok(()) } else { Err(self.broken("it ends here, but more bytes follow")) }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), DumpError> {
        self.input.read_exact(buffer).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.broken("unexpected end of the dump"),
            _ => DumpError::Io { doing: "cannot read the dump".into(), source },
        })?;
        self.at += buffer.len() as u64;
        Ok(())
    }
}
