//! The state of a log's current file. Appends and syncs change it under one lock, which is held while bytes are handed
//! to the kernel, but never during an fsync (except in the recovery from a failed one).

use super::blocks::Blocks;
use super::config::{FILE_BYTES_MAX, LogConfig};
use super::directory;
use super::failure::LogError;
use super::format::{
    BODY_BYTES_MAX, BatchRows, FILE_HEADER_BYTES, FileHeader, GroupHeader, LogFormatError, encode_batch, record_bytes,
};
use bytes::Bytes;
use slatedb::wal::{WalError, WalStatus};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tokio::time::Instant;
use varve_env::disk::{self, File};
use varve_env::reserve::is_for_want_of_room;
use varve_env::store_path::StorePath;

/// A file with bytes, or a name, that are not fsynced.
#[derive(Clone, Debug)]
pub struct OpenFile {
    pub file: Arc<File>,
    pub path: StorePath,
    pub name_synced: bool,
    /// The position where its records end, once they continue in another file.
    end: Option<u64>,
}

/// A complete group that waits for its fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClosedGroup {
    id: u64,
    end: u64,
    last_sequence: u64,
}

/// All batches up to one of them, which is the last one of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandedOver {
    sequence: u64,
    end: u64,
    group: u64,
}

/// The work of a sync: after an fsync of `files`, everything below `target` is synced.
pub struct SyncWork {
    pub files: Vec<OpenFile>,
    pub target: u64,
}

pub struct LogState {
    epoch: u64,
    /// The files with unsynced bytes, oldest first. The last one is the current one and always present.
    open: Vec<OpenFile>,
    header: FileHeader,
    /// Position in the stream of the next record.
    appended: u64,
    /// Everything below is fsynced.
    synced: u64,
    /// Everything below is certainly fsynced, but may not count as synced: another owner may have ended the epoch.
    saved: u64,
    /// The bytes from `synced` to `appended`.
    unsynced: VecDeque<Bytes>,
    /// The memory of these bytes.
    blocks: Blocks,
    /// When the oldest of them was appended.
    unsynced_since: Option<Instant>,
    /// Handed over to the tables, and not known to have arrived.
    handed: Option<HandedOver>,
    /// Everything below is in the tables, at least in their memory.
    applied: u64,
    applied_group: u64,
    /// The group that accepts batches; its header is written with the first one.
    open_group: Option<u64>,
    last_group: u64,
    last_sequence: u64,
    closed_groups: VecDeque<ClosedGroup>,
    flushed_group: u64,
    flushed_sequence: Option<u64>,
    /// The positions where groups ended, to compute how much log lies after a group: `(id, position)`.
    ends: VecDeque<(u64, u64)>,
    /// Position up to which a flush of the memtable was requested.
    asked: u64,
    /// Position up to which everything is known to be in tables.
    in_tables: u64,
    /// The time since when there have been batches that are not in tables.
    replayable_since: Option<Instant>,
    failure: Option<WalError>,
}

impl LogState {
    /// The state of a log whose first file holds only its header.
    pub fn begin(header: FileHeader, file: File, path: StorePath, replayable_since: Option<Instant>) -> LogState {
        LogState {
            epoch: header.epoch,
            open: vec![OpenFile { file: Arc::new(file), path, name_synced: true, end: None }],
            header,
            appended: header.base,
            synced: header.base,
            saved: header.base,
            unsynced: VecDeque::new(),
            blocks: Blocks::default(),
            unsynced_since: None,
            handed: None,
            applied: header.base,
            applied_group: header.last_group,
            open_group: None,
            last_group: header.last_group,
            last_sequence: 0,
            closed_groups: VecDeque::new(),
            flushed_group: header.last_group,
            flushed_sequence: None,
            ends: VecDeque::new(),
            asked: header.base,
            in_tables: header.base,
            replayable_since,
            failure: None,
        }
    }

    pub fn appended(&self) -> u64 {
        self.appended
    }

    pub fn synced(&self) -> u64 {
        self.synced
    }

    pub fn unsynced_bytes(&self) -> u64 {
        self.appended - self.synced
    }

    /// Bytes that are not known to be on disk.
    pub fn unsaved_bytes(&self) -> u64 {
        self.appended - self.synced.max(self.saved)
    }

    pub fn note_saved(&mut self, target: u64) {
        self.saved = self.saved.max(target);
    }

    pub fn unsynced_since(&self) -> Option<Instant> {
        self.unsynced_since
    }

    pub fn replayable_since(&self) -> Option<Instant> {
        self.replayable_since
    }

    /// Records that everything below the position `covered` is in tables.
    pub fn note_flushed(&mut self, covered: u64, now: Instant) {
        self.asked = self.asked.max(covered);
        self.in_tables = self.in_tables.max(covered);
        self.replayable_since = (self.appended > covered).then_some(now);
    }

    pub fn failure(&self) -> Option<&WalError> {
        self.failure.as_ref()
    }

    /// Keeps the first failure.
    pub fn fail(&mut self, failure: WalError) {
        self.failure.get_or_insert(failure);
    }

    /// Puts a batch into the open group and into the file, and returns its body. On return, the kernel has the bytes.
    pub fn append(&mut self, config: &LogConfig, rows: &BatchRows, sequence: u64) -> Result<Bytes, LogError> {
        if self.open_group.is_none() && self.file_bytes() >= FILE_BYTES_MAX {
            self.rotate(config);
        }
        let group = self.open_group.unwrap_or(self.last_group + 1);
        let header = self.open_group.is_none().then_some(GroupHeader { id: group, synced: self.synced });
        let (epoch, at) = (self.epoch, self.appended);
        let since = self.unsynced_since.unwrap_or_else(Instant::now);
        let mut body = 0;
        let encoded = self.blocks.lay(record_bytes(header.is_some(), rows), |record| {
            if let Some(header) = header {
                header.encode(epoch, at, record);
            }
            body = encode_batch(rows, sequence, epoch, at + record.len() as u64, record)?;
            Ok(())
        });
        let record = encoded.map_err(|reason| match reason {
            LogFormatError::Length => LogError::TooLarge { bytes: rows.bytes().len() as u64, max: BODY_BYTES_MAX },
            reason => self.malformed(reason),
        })?;
        let offset = self.offset(self.appended);
        let current = self.current();
        if let Err(error) = current.file.write_all_at(&record, offset) {
            let path = current.path.clone();
            tracing::error!(file = %path.display(), %error, "cannot append to the log");
            self.move_to_new_file(
                config,
                &record,
                LogError::Io { action: "append to", path: path.into(), source: error },
            )?;
        }
        self.appended += record.len() as u64;
        let body = record.slice(body..);
        self.unsynced.push_back(record);
        self.unsynced_since = Some(since);
        self.replayable_since.get_or_insert(since);
        self.open_group = Some(group);
        self.last_group = group;
        self.last_sequence = sequence;
        Ok(body)
    }

    /// Closes the open group, if there is one. Returns the id of the last closed group.
    pub fn close_group(&mut self) -> u64 {
        if let Some(id) = self.open_group.take() {
            self.closed_groups.push_back(ClosedGroup { id, end: self.appended, last_sequence: self.last_sequence });
            self.ends.push_back((id, self.appended));
        }
        self.last_group
    }

    /// The work of the next sync; `None` if nothing is unsynced.
    pub fn begin_sync(&mut self) -> Option<SyncWork> {
        self.close_group();
        (self.synced < self.appended).then(|| SyncWork { files: self.open.clone(), target: self.appended })
    }

    /// Records that `work` is done. Returns whether groups became synced.
    pub fn end_sync(&mut self, work: &SyncWork, now: Instant) -> bool {
        self.open.retain_mut(|file| {
            let done = work.files.iter().any(|synced| Arc::ptr_eq(&synced.file, &file.file));
            file.name_synced |= done;
            // Bytes may have been added to it before the next file began.
            let whole = file.end.is_some_and(|end| end <= work.target);
            !(done && whole)
        });
        while self.synced < work.target {
            let Some(record) = self.unsynced.pop_front() else { break };
            self.synced += record.len() as u64;
        }
        self.unsynced_since = (!self.unsynced.is_empty()).then_some(now);
        self.flush_groups()
    }

    /// Marks groups as flushed that are fsynced and in the tables: SlateDB makes a table from its memory, and takes the
    /// last flushed group as the point to replay from. Returns whether some became so.
    fn flush_groups(&mut self) -> bool {
        let end = self.synced.min(self.applied);
        let mut flushed = false;
        while let Some(group) = self.closed_groups.front().filter(|group| group.end <= end) {
            self.flushed_group = group.id;
            self.flushed_sequence = Some(group.last_sequence);
            self.closed_groups.pop_front();
            flushed = true;
        }
        flushed
    }

    /// Prepares the transfer of all appended batches to the tables, as one batch with the last one's sequence number.
    /// It consists of complete groups.
    pub fn hand_over(&mut self) {
        let group = self.close_group();
        self.handed = Some(HandedOver { sequence: self.last_sequence, end: self.appended, group });
    }

    /// Records that the tables have received the batch handed over. Returns whether this flushed groups; `None`: it was
    /// not handed over.
    pub fn apply(&mut self, sequence: u64) -> Option<bool> {
        let handed = self.handed.take_if(|handed| handed.sequence == sequence)?;
        (self.applied, self.applied_group) = (handed.end, handed.group);
        Some(self.flush_groups())
    }

    /// The position up to which the tables have everything, and the last group below it.
    pub fn applied(&self) -> (u64, u64) {
        (self.applied, self.applied_group)
    }

    /// After a failed fsync, whose pages the kernel may have dropped, writes all unsynced bytes again.
    pub fn recover(&mut self, config: &LogConfig, cause: LogError) -> Result<(), LogError> {
        self.move_to_new_file(config, &[], cause)
    }

    /// Switches to a new file for the next record. Does nothing if the file is short or a group is open.
    pub fn leave_file(&mut self, config: &LogConfig, bytes_min: u64) {
        if self.open_group.is_none() && self.synced == self.appended && self.file_bytes() >= bytes_min {
            self.rotate(config);
        }
    }

    /// Whether the memtable should become a table, given that all groups up to `after` are in tables: it holds the
    /// maximum of one memtable, or more than its part while all together exceed their budget. Bytes for which the
    /// answer was yes before do not count again.
    pub fn should_flush(&mut self, config: &LogConfig, after: u64) -> bool {
        while self.ends.front().is_some_and(|(id, _)| *id <= after) {
            if let Some((_, end)) = self.ends.pop_front() {
                self.in_tables = self.in_tables.max(end);
            }
        }
        self.asked = self.asked.max(self.in_tables);
        let active = self.appended - self.asked;
        let full = active >= config.memtable_bytes_max
            || (active >= config.memtable_bytes_share && config.memtables.is_exceeded());
        if full {
            self.asked = self.appended;
        }
        full
    }

    /// Bytes of log that are in memtables.
    pub fn held(&self) -> u64 {
        self.appended - self.in_tables
    }

    pub fn status(&self) -> Result<WalStatus, WalStatus> {
        let status = WalStatus {
            closed_reason: self.failure.clone(),
            estimated_bytes: self.unsynced_bytes() as usize,
            last_flushed_wal_id: self.flushed_group,
            last_flushed_seq: self.flushed_sequence,
            buffered_wal_entries_count: self.unsynced.len(),
        };
        if self.failure.is_some() { Err(status) } else { Ok(status) }
    }

    fn current(&self) -> &OpenFile {
        self.open.last().expect("there is always a file that is written to")
    }

    fn offset(&self, position: u64) -> u64 {
        FILE_HEADER_BYTES as u64 + position - self.header.base
    }

    fn file_bytes(&self) -> u64 {
        self.offset(self.appended)
    }

    /// The header of the next file, whose records begin at `base`.
    fn next_header(&self, base: u64) -> FileHeader {
        FileHeader {
            number: self.header.number + 1,
            base,
            synced: self.synced,
            last_group: self.last_group_at(base),
            ..self.header
        }
    }

    /// The last group that ends at `position`, which must be the end of a group, whether or not the tables have it.
    fn last_group_at(&self, position: u64) -> u64 {
        let ended = self.closed_groups.iter().take_while(|group| group.end <= position);
        ended.last().map_or(self.flushed_group, |group| group.id)
    }

    /// Begins a new file at the end of the stream. Its name and header are fsynced with its first group. After a
    /// failure the old file remains in use.
    fn rotate(&mut self, config: &LogConfig) {
        let header = self.next_header(self.appended);
        let path = directory::file_path(&config.directory, self.epoch, header.number);
        match in_place(config).and_then(|()| create(&path, &header)) {
            Ok(file) => {
                match self.synced == self.appended {
                    true => self.open.clear(),
                    false => self.open.iter_mut().for_each(|old| old.end = old.end.or(Some(self.appended))),
                }
                self.open.push(OpenFile { file: Arc::new(file), path, name_synced: false, end: None });
                self.header = header;
            }
            Err(error) => tracing::warn!(file = %path.display(), %error, "cannot start a new log file"),
        }
    }

    /// Writes the unsynced bytes and `more` into a new file that continues at the synced position, and publishes it
    /// when it is fsynced: from then on the old file counts only up to that position. If that fails too, the old file
    /// is left with complete records only, and the error is `cause`.
    fn move_to_new_file(&mut self, config: &LogConfig, more: &[u8], cause: LogError) -> Result<(), LogError> {
        if let (LogError::Io { source, .. }, Some(reserve)) = (&cause, &config.reserve)
            && is_for_want_of_room(source)
        {
            reserve.release();
        }
        let header = self.next_header(self.synced);
        let path = directory::file_path(&config.directory, self.epoch, header.number);
        match self.publish_copy(config, &header, &path, more) {
            Ok(file) => {
                tracing::warn!(file = %path.display(), %cause, "the log continues in a new file");
                self.header = header;
                self.open = vec![OpenFile { file: Arc::new(file), path, name_synced: true, end: None }];
                Ok(())
            }
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "cannot continue the log in a new file");
                // Replay does not need this, because it cuts off a torn record anyway; but it avoids the warning.
                let whole = self.offset(self.appended);
                if let Err(error) = self.current().file.set_len(whole) {
                    tracing::warn!(file = %self.current().path.display(), %error, "cannot cut off the torn record");
                }
                Err(cause)
            }
        }
    }

    fn publish_copy(&self, config: &LogConfig, header: &FileHeader, path: &StorePath, more: &[u8]) -> io::Result<File> {
        in_place(config)?;
        let header = header.encode();
        let parts: Vec<&[u8]> = std::iter::once(header.as_slice())
            .chain(self.unsynced.iter().map(|record| record.as_ref()))
            .chain(std::iter::once(more))
            .collect();
        disk::create_if_absent_with_mode(config.exclusive, path, &parts, disk::FILE_MODE)?;
        File::open_to_write(path)
    }

    /// Replaces the file by a pipe, which supports neither writes at a position nor fsync: both fail, as on a broken
    /// disk.
    #[cfg(test)]
    pub fn break_file(&mut self) {
        let (_, broken) = std::io::pipe().expect("a pipe");
        let broken = Arc::new(File::unrecorded(std::os::fd::OwnedFd::from(broken).into()));
        self.open.iter_mut().for_each(|open| open.file = broken.clone());
    }

    /// The current file, and where its unsynced bytes begin and end.
    #[cfg(test)]
    pub fn unsynced_of_file(&self) -> (StorePath, u64, u64) {
        let begin = self.offset(self.synced.max(self.header.base));
        (self.current().path.clone(), begin, self.offset(self.appended))
    }

    fn malformed(&self, reason: LogFormatError) -> LogError {
        LogError::Io {
            action: "append to",
            path: self.current().path.clone().into(),
            source: io::Error::new(io::ErrorKind::InvalidInput, reason),
        }
    }
}

pub(super) fn in_place(config: &LogConfig) -> io::Result<()> {
    config.place.as_ref().map_or(Ok(()), |place| place.check_shard(config.shard))
}

fn create(path: &StorePath, header: &FileHeader) -> io::Result<File> {
    let file = File::options().write(true).create_new().open(path)?;
    if let Err(error) = file.write_all_at(&header.encode(), 0) {
        // A file without a header would end the log at the next open; this one holds nothing yet.
        disk::remove_file(path)?;
        return Err(error);
    }
    Ok(file)
}
