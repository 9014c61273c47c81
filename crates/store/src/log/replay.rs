//! Replays the batches of sealed epochs.

use super::config::LogConfig;
use super::directory::{self, EpochFiles};
use super::failure::LogError;
use super::format::{LogFormatError, Seal, decode_batch};
use super::newest::newest_of_each;
use super::scan::{GroupOrder, LogRecord, StreamReader};
use async_trait::async_trait;
use bytes::Bytes;
use slatedb::wal::{WalError, WalFileRange, WalIterator, WalReader, WalRows};
use slatedb::{RowEntry, ValueDeletable};
use std::collections::VecDeque;
use std::ops::Bound;

/// A sealed epoch to be replayed.
#[derive(Clone, Debug)]
pub struct Segment {
    pub epoch: u64,
    pub files: EpochFiles,
    pub seal: Seal,
}

/// Yields the rows of the groups after a given one. The rows of many batches come together, and only the newest of each
/// key. No reader sees a table while its log is replayed, so the versions between are never visible. A row that every
/// batch changes (a partition's counts, the reply in a slot) would otherwise make up most of the replay and of its
/// memory.
pub struct LogReplay {
    shard: u16,
    segments: VecDeque<Segment>,
    current: Option<(Segment, StreamReader, GroupOrder)>,
    /// Groups up to this one have been yielded, or are in tables.
    consumed: u64,
    /// Groups after this one are not replayed.
    last: u64,
    /// A record read to see that the group before it had ended.
    pending: Option<LogRecord>,
    /// Bytes of batches that are combined.
    pub(super) window_bytes: usize,
    /// SlateDB's clock, which must not go back.
    tick: Option<i64>,
}

/// Large enough for many versions of frequently changed rows, small compared to a memtable.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;

impl LogReplay {
    pub fn new(shard: u16, segments: Vec<Segment>, after: u64) -> LogReplay {
        let window_bytes = WINDOW_BYTES;
        let segments = segments.into();
        let last = u64::MAX;
        LogReplay { shard, segments, current: None, consumed: after, last, pending: None, window_bytes, tick: None }
    }

    /// Gives the rows a time of at least `tick`.
    pub fn not_before(self, tick: i64) -> LogReplay {
        LogReplay { tick: Some(tick), ..self }
    }

    /// The rows of the next batches, and the last group that they complete.
    fn next_rows(&mut self) -> Result<Option<WalRows>, LogError> {
        let mut rows = Vec::new();
        let mut bytes = 0;
        while let Some(body) = self.next_batch()? {
            bytes += body.len();
            rows.append(&mut self.decode(&body)?);
            if bytes >= self.window_bytes {
                break;
            }
        }
        // A merge adds to the earlier value. Varve writes none.
        let rows = match rows.iter().any(|row| matches!(row.value, ValueDeletable::Merge(_))) {
            true => rows,
            false => newest_of_each(rows),
        };
        Ok((!rows.is_empty()).then_some(WalRows { rows, last_consumed_wal_file_id: self.consumed }))
    }

    /// The next batch. Records the last group that it completes.
    fn next_batch(&mut self) -> Result<Option<Bytes>, LogError> {
        loop {
            let Some((record, group)) = self.next_record()? else { return Ok(None) };
            let LogRecord::Batch(body) = record else { continue };
            if group <= self.consumed {
                continue;
            }
            if group > self.last {
                return Ok(None);
            }
            // Only the next record shows whether this batch was its group's last one.
            let following = self.next_record()?;
            let ended = !matches!(following, Some((LogRecord::Batch(_), _)));
            self.pending = following.map(|(record, _)| record);
            if ended {
                self.consumed = group;
            }
            return Ok(Some(body));
        }
    }

    fn decode(&self, body: &Bytes) -> Result<Vec<RowEntry>, LogError> {
        let mut rows = decode_batch(body).map_err(|reason| self.damaged(reason))?;
        rows.iter_mut().for_each(|row| row.create_ts = row.create_ts.max(self.tick));
        Ok(rows)
    }

    /// A record with a valid checksum and invalid content: it was written wrongly, so the error names no position.
    fn damaged(&self, reason: LogFormatError) -> LogError {
        let path = self.current.as_ref().and_then(|(segment, _, _)| segment.files.files.values().next_back().cloned());
        LogError::Damaged { path: path.map(Into::into).unwrap_or_default(), offset: 0, reason: reason.to_string() }
    }

    /// The next record of any segment, and its group.
    fn next_record(&mut self) -> Result<Option<(LogRecord, u64)>, LogError> {
        if let Some(record) = self.pending.take() {
            let group = self.current.as_ref().map_or(self.consumed, |(_, _, order)| order.last_group);
            return Ok(Some((record, group)));
        }
        loop {
            let Some((segment, stream, order)) = &mut self.current else {
                let Some(segment) = self.segments.pop_front() else { return Ok(None) };
                let stream = StreamReader::open(self.shard, segment.epoch, &segment.files, segment.seal.length)?;
                let order = GroupOrder::new(stream.last_group);
                self.current = Some((segment, stream, order));
                continue;
            };
            match stream.next()? {
                Ok(Some(record)) => {
                    if let Err(reason) = order.check(&record) {
                        return Err(self.damaged(reason));
                    }
                    let group = order.last_group;
                    return Ok(Some((record, group)));
                }
                Ok(None) if stream.position() < segment.seal.length => {
                    // Everything below a seal was fsynced before the seal was published.
                    return Err(self.damaged(LogFormatError::Length));
                }
                Ok(None) => self.current = None,
                Err(broken) => return Err(broken.damage()),
            }
        }
    }
}

#[async_trait]
impl WalIterator for LogReplay {
    /// Blocks for the reads: replay runs before any request is served.
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        Ok(self.next_rows()?)
    }
}

/// Reads the sealed epochs of a log that has no owner at the time.
pub struct LogReader {
    config: LogConfig,
}

impl LogReader {
    pub fn new(config: LogConfig) -> LogReader {
        LogReader { config }
    }

    fn segments(&self) -> Result<Vec<Segment>, LogError> {
        let mut segments = Vec::new();
        for (epoch, files) in directory::list(&self.config.directory)? {
            if let Some(seal) = directory::read_seal(&self.config.directory, epoch)? {
                segments.push(Segment { epoch, files, seal });
            }
        }
        Ok(segments)
    }
}

#[async_trait]
impl WalReader for LogReader {
    /// Ends at the last seal, even if the range does not: following a growing log is not supported.
    async fn iterator(&self, range: WalFileRange) -> Result<Box<dyn WalIterator>, WalError> {
        let first = match range.0 {
            Bound::Included(id) => id,
            Bound::Excluded(id) => id.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let last = match range.1 {
            Bound::Included(id) => id,
            Bound::Excluded(id) => id.saturating_sub(1),
            Bound::Unbounded => u64::MAX,
        };
        let mut segments = self.segments()?;
        segments.retain(|segment| segment.seal.last_group >= first);
        let replay = LogReplay { last, ..LogReplay::new(self.config.shard.0, segments, first.saturating_sub(1)) };
        Ok(Box::new(replay))
    }

    async fn last_wal_file_id(&self, replay_after_wal_id: u64) -> Result<u64, WalError> {
        let last = self.segments()?.iter().map(|segment| segment.seal.last_group).max().unwrap_or(0);
        Ok(last.max(replay_after_wal_id))
    }
}
