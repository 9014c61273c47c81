//! Messages from the service.

use super::bad_message::{BadMessage, bad};
use super::hello::StreamWelcome;
use super::message::Header;
use super::read::{MessageReader, put_text};
use std::fmt;
use std::ops::Range;
use varve_detector_dataset::frame::{AckLevel, FrameCounts};

/// The bit of a level in messages.
pub fn level_bit(level: AckLevel) -> u8 {
    match level {
        AckLevel::Memory => 1,
        AckLevel::Written => 2,
        AckLevel::Durable => 4,
    }
}

/// Limit for the ranges in one ACK; it keeps the head far below its limit.
pub const RANGES_MAX: usize = 4096;
pub const NO_FRAME: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    pub level: AckLevel,
    pub frames: Vec<Range<u64>>,
}

/// A problem with one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub code: NoticeCode,
    /// [`NO_FRAME`] if unknown.
    pub frame: u64,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum NoticeCode {
    Dropped = 1,
    Damaged = 2,
    Duplicate = 3,
    Refused = 4,
}

impl NoticeCode {
    const ALL: [NoticeCode; 4] = [NoticeCode::Dropped, NoticeCode::Damaged, NoticeCode::Duplicate, NoticeCode::Refused];

    pub fn of(self, frame: u64, text: &str) -> Notice {
        Notice { code: self, frame, text: text.into() }
    }
}

/// Why the service ends a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct StreamRefusal {
    pub code: ErrorCode,
    pub text: String,
}

impl StreamRefusal {
    pub fn new(code: ErrorCode, text: impl Into<String>) -> StreamRefusal {
        StreamRefusal { code, text: text.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ErrorCode {
    Protocol = 1,
    Version = 2,
    Token = 3,
    Unknown = 4,
    Busy = 5,
    Failed = 6,
    Description = 7,
    Limit = 8,
    Ended = 9,
    Vanished = 10,
    Stopping = 11,
    Full = 12,
}

impl ErrorCode {
    const NAMES: [(ErrorCode, &'static str); 12] = [
        (ErrorCode::Protocol, "protocol"),
        (ErrorCode::Version, "version"),
        (ErrorCode::Token, "token"),
        (ErrorCode::Unknown, "unknown"),
        (ErrorCode::Busy, "busy"),
        (ErrorCode::Failed, "failed"),
        (ErrorCode::Description, "description"),
        (ErrorCode::Limit, "limit"),
        (ErrorCode::Ended, "ended"),
        (ErrorCode::Vanished, "vanished"),
        (ErrorCode::Stopping, "stopping"),
        (ErrorCode::Full, "full"),
    ];

    pub fn name(self) -> &'static str {
        ErrorCode::NAMES[self as usize - 1].1
    }

    /// Whether the same request may succeed later on a new connection.
    pub fn passes(self) -> bool {
        matches!(self, ErrorCode::Protocol | ErrorCode::Vanished | ErrorCode::Stopping | ErrorCode::Full)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Final counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FinishedHead {
    pub frames: u64,
    /// Complete frames, including late and duplicate ones.
    pub received: u64,
    pub missing: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub late: u64,
    pub dropped: u64,
    /// 0 while the run goes on.
    pub file_bytes: u64,
    /// Frames with missing regions.
    #[serde(default)]
    pub partial: u64,
}

/// Heads of messages from the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromService {
    Welcome(StreamWelcome),
    Ack(Ack),
    Notice(Notice),
    Error(StreamRefusal),
    Finished(FinishedHead),
    Pong,
    /// To a writer, after WELCOME: the run of its share.
    Share(ShareHead),
    /// To a writer: an extent for its exclusive use.
    Extent(Range<u64>),
    /// To a writer: its report with this sequence number is in the journal.
    Reported(u64),
    /// To a writer: the run is ending; report everything and send END.
    Leave,
}

/// The run that a writer joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareHead {
    pub epoch: u32,
    /// Path below the service's directory.
    pub file: String,
    /// The dataset spec as JSON.
    pub description: String,
}

const WELCOME: u8 = 129;
const ACK: u8 = 130;
const NOTICE: u8 = 131;
const ERROR: u8 = 132;
const FINISHED: u8 = 133;
const PONG: u8 = 134;
const SHARE: u8 = 135;
const EXTENT: u8 = 136;
const REPORTED: u8 = 137;
const LEAVE: u8 = 138;

impl FromService {
    /// Kind, flags and head.
    pub fn encode(&self) -> (u8, u8, Vec<u8>) {
        match self {
            FromService::Welcome(welcome) => (WELCOME, 0, welcome.encode()),
            FromService::Ack(ack) => (ACK, 0, ack.encode()),
            FromService::Notice(notice) => (NOTICE, 0, words(notice.code as u16, notice.frame, &notice.text)),
            FromService::Error(refusal) => (ERROR, 0, words(refusal.code as u16, 0, &refusal.text)),
            FromService::Finished(finished) => (FINISHED, 0, finished.encode()),
            FromService::Pong => (PONG, 0, Vec::new()),
            FromService::Share(share) => (SHARE, 0, share.encode()),
            FromService::Extent(extent) => {
                (EXTENT, 0, [extent.start, extent.end - extent.start].into_iter().flat_map(u64::to_le_bytes).collect())
            }
            FromService::Reported(sequence) => (REPORTED, 0, sequence.to_le_bytes().to_vec()),
            FromService::Leave => (LEAVE, 0, Vec::new()),
        }
    }

    /// # Errors
    /// If a client cannot accept the message. The error says why.
    pub fn decode(header: &Header, head: &[u8]) -> Result<FromService, BadMessage> {
        let mut reader = MessageReader(head);
        if header.body_bytes > 0 {
            return bad("a service's message has a body, which is not allowed");
        }
        Ok(match header.kind {
            WELCOME => FromService::Welcome(StreamWelcome::decode(&mut reader)?),
            ACK => FromService::Ack(Ack::decode(&mut reader)?),
            NOTICE => {
                let (code, frame, text) = unword(&mut reader)?;
                let known = NoticeCode::ALL.get(usize::from(code).wrapping_sub(1)).copied();
                let Some(code) = known else { return bad(format!("a notice of code {code}")) };
                FromService::Notice(Notice { code, frame, text })
            }
            ERROR => {
                let (code, _, text) = unword(&mut reader)?;
                let known = ErrorCode::NAMES.get(usize::from(code).wrapping_sub(1));
                let Some((code, _)) = known else { return bad(format!("an error of code {code}: {text}")) };
                FromService::Error(StreamRefusal { code: *code, text })
            }
            FINISHED => FromService::Finished(FinishedHead::decode(&mut reader)?),
            PONG => FromService::Pong,
            SHARE => FromService::Share(ShareHead::decode(&mut reader)?),
            EXTENT => {
                let (start, bytes) = (reader.u64()?, reader.u64()?);
                let Some(end) = start.checked_add(bytes) else { return bad("an extent beyond all files") };
                FromService::Extent(start..end)
            }
            REPORTED => FromService::Reported(reader.u64()?),
            LEAVE => FromService::Leave,
            kind => return bad(format!("a service cannot send messages of kind {kind}")),
        })
    }
}

fn words(code: u16, frame: u64, text: &str) -> Vec<u8> {
    let mut text_field = Vec::new();
    put_text(text, &mut text_field);
    let mut head = code.to_le_bytes().to_vec();
    head.extend(&text_field[..2]);
    head.extend([0; 4]);
    head.extend(frame.to_le_bytes());
    head.extend(&text_field[2..]);
    head
}

fn unword(reader: &mut MessageReader<'_>) -> Result<(u16, u64, String), BadMessage> {
    let (code, length) = (reader.u16()?, reader.u16()?);
    reader.u32()?;
    let frame = reader.u64()?;
    Ok((code, frame, reader.text(length.into(), "a text")?))
}

impl Ack {
    fn encode(&self) -> Vec<u8> {
        let mut head = vec![level_bit(self.level), 0, 0, 0];
        head.extend((self.frames.len() as u32).to_le_bytes());
        for range in &self.frames {
            head.extend(range.start.to_le_bytes());
            head.extend((range.end - range.start).to_le_bytes());
        }
        head
    }

    fn decode(reader: &mut MessageReader<'_>) -> Result<Ack, BadMessage> {
        let bit = reader.u8()?;
        let levels = [AckLevel::Memory, AckLevel::Written, AckLevel::Durable];
        let Some(level) = levels.into_iter().find(|level| level_bit(*level) == bit) else {
            return bad(format!("an acknowledgement of level {bit}"));
        };
        reader.bytes(3)?;
        let count = reader.u32()? as usize;
        if count > RANGES_MAX {
            return bad(format!("an acknowledgement of {count} ranges; {RANGES_MAX} at most"));
        }
        let mut frames = Vec::with_capacity(count);
        for _ in 0..count {
            let (first, many) = (reader.u64()?, reader.u64()?);
            let Some(end) = first.checked_add(many) else { return bad("an acknowledgement beyond all numbers") };
            frames.push(first..end);
        }
        Ok(Ack { level, frames })
    }
}

impl FinishedHead {
    pub fn set(&mut self, counts: FrameCounts, file_bytes: u64) {
        let FrameCounts { frames, missing, damaged, duplicate, late, partial, .. } = counts;
        let received = counts.received + duplicate + late;
        *self = FinishedHead { frames, received, missing, damaged, duplicate, late, file_bytes, partial, ..*self };
    }

    fn fields(&self) -> [u64; 9] {
        let FinishedHead { frames, received, missing, damaged, duplicate, late, dropped, file_bytes, partial } = *self;
        [frames, received, missing, damaged, duplicate, late, dropped, file_bytes, partial]
    }

    fn encode(&self) -> Vec<u8> {
        self.fields().into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn decode(reader: &mut MessageReader<'_>) -> Result<FinishedHead, BadMessage> {
        Ok(FinishedHead {
            frames: reader.u64()?,
            received: reader.u64()?,
            missing: reader.u64()?,
            damaged: reader.u64()?,
            duplicate: reader.u64()?,
            late: reader.u64()?,
            dropped: reader.u64()?,
            file_bytes: reader.u64()?,
            // Earlier services do not send this field.
            partial: if reader.0.is_empty() { 0 } else { reader.u64()? },
        })
    }
}

impl ShareHead {
    fn encode(&self) -> Vec<u8> {
        let mut head = self.epoch.to_le_bytes().to_vec();
        put_text(&self.file, &mut head);
        head.extend((self.description.len() as u32).to_le_bytes());
        head.extend(self.description.as_bytes());
        head
    }

    fn decode(reader: &mut MessageReader<'_>) -> Result<ShareHead, BadMessage> {
        let epoch = reader.u32()?;
        let file_bytes = reader.u16()?.into();
        let file = reader.text(file_bytes, "a file's name")?;
        let description_bytes = reader.u32()? as usize;
        Ok(ShareHead { epoch, file, description: reader.text(description_bytes, "a description")? })
    }
}
