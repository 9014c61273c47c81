//! State shared by a client and its connections.

use super::options::{ClientError, ClientOptions};
use super::outgoing::Outgoing;
use super::scalars::{Coded, SentScalars};
use crate::answers::NO_FRAME;
use crate::{ErrorCode, FinishedHead, Notice, NoticeCode, StreamRefusal};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::ranges::Ranges;

/// Upper limit for notices that the caller has not fetched; there may be one per frame.
const NOTICES_MAX: usize = 1024;
/// This many consecutive `protocol` errors, with nothing acknowledged in between, are not transmission damage.
const PROTOCOL_ERRORS: u32 = 10;

/// Meaning of the END message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The source is complete.
    Source,
    /// Only the connections end; the run waits for its client to come back.
    Connection,
}

pub(crate) enum QueuedItem {
    Frames { out: Arc<Outgoing>, again: bool },
    Scalars(Arc<Coded>),
}

/// State shared by the connections.
pub(crate) struct ClientShared {
    pub options: ClientOptions,
    pub id: [u8; 16],
    pub state: Mutex<ClientState>,
    pub changed: Condvar,
}

#[derive(Default)]
pub(crate) struct ClientState {
    pub waiting: VecDeque<QueuedItem>,
    /// Frames sent or queued and not acknowledged at the requested level, by first number.
    pub kept: BTreeMap<u64, Arc<Outgoing>>,
    pub kept_bytes: usize,
    pub sent_scalars: SentScalars,
    pub acknowledged: [Ranges; 3],
    /// Frames that the service dropped or refused.
    pub over: Ranges,
    pub notices: VecDeque<Notice>,
    pub dropped: u64,
    /// Frames that the caller had to drop.
    pub lost: u64,
    pub welcomed: u16,
    /// Protocol version that the service last agreed to.
    pub version: u16,
    /// How often the caller has begun to wait until everything is acknowledged.
    pub flushes: u64,
    /// Set when no more frames come. Connections send END once nothing is queued and nothing is kept.
    pub ending: Option<Ending>,
    pub finished: Option<FinishedHead>,
    pub failed: Option<ClientError>,
    /// `protocol` errors since a frame was last acknowledged or given up.
    pub protocol_errors: u32,
    pub closed: bool,
}

impl ClientState {
    /// Whether nothing is in flight.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.kept.is_empty() && self.sent_scalars.is_empty()
    }

    /// Whether the run accepts nothing more from this client.
    pub fn is_over(&self) -> bool {
        self.failed.is_some() || self.finished.is_some()
    }

    /// The counts of a run that has ended with everything that this client sent.
    pub fn has_ended_well(&mut self) -> Option<FinishedHead> {
        self.finished.filter(|_| self.is_settled())
    }

    pub fn ended_without(&self) -> ClientError {
        let unsent = self.waiting.iter().filter(|item| matches!(item, QueuedItem::Scalars(_))).count();
        ClientError::Ended { frames: self.kept.len(), scalars: self.sent_scalars.len() + unsent }
    }

    pub fn acknowledge(&mut self, level: AckLevel, own: AckLevel, ranges: &[std::ops::Range<u64>]) {
        for range in ranges {
            self.acknowledged[level as usize].add(range.clone());
        }
        if level < own {
            return;
        }
        for range in ranges {
            // The first message that may reach into the range; messages do not overlap.
            let before = self.kept.range(..=range.start).next_back().map_or(range.start, |(number, _)| *number);
            self.settle_kept(level, before..range.end);
        }
    }

    /// Drops the messages that begin in `range` and whose frames are all acknowledged or given up.
    pub fn settle_kept(&mut self, level: AckLevel, range: std::ops::Range<u64>) {
        let (reached, over) = (&self.acknowledged[level as usize], &self.over);
        let is_settled = |out: &Outgoing| out.numbers().all(|number| reached.contains(number) || over.contains(number));
        let settled: Vec<u64> =
            self.kept.range(range).filter(|(_, out)| is_settled(out)).map(|(number, _)| *number).collect();
        for number in settled {
            if let Some(out) = self.kept.remove(&number) {
                self.kept_bytes -= out.bytes();
                self.protocol_errors = 0;
            }
        }
        self.sent_scalars.settle(&self.kept);
    }

    /// Whether reconnecting may help after this refusal.
    pub fn passes(&mut self, refusal: &StreamRefusal) -> bool {
        self.protocol_errors += u32::from(refusal.code == ErrorCode::Protocol);
        refusal.code.passes() && self.protocol_errors < PROTOCOL_ERRORS
    }

    /// Handles a notice about something that a connection sent.
    pub fn take_notice(&mut self, connection: u16, notice: Notice, own: AckLevel) {
        self.dropped += u64::from(notice.code == NoticeCode::Dropped && notice.frame != NO_FRAME);
        let before = self.kept.range(..=notice.frame).next_back().map(|(number, out)| (*number, out.numbers()));
        if let Some((number, numbers)) = before.filter(|(_, numbers)| numbers.contains(&notice.frame)) {
            match notice.code {
                NoticeCode::Dropped => self.over.add(notice.frame..notice.frame + 1),
                // A wrong message shape is refused for the whole message, under its first number.
                NoticeCode::Refused if notice.frame == number => self.over.add(numbers),
                NoticeCode::Refused => self.over.add(notice.frame..notice.frame + 1),
                // An earlier copy may already have been acknowledged, or will be.
                NoticeCode::Duplicate | NoticeCode::Damaged => {}
            }
            self.settle_kept(own, number..number + 1);
        }
        if notice.code == NoticeCode::Damaged {
            match self.kept.get(&notice.frame) {
                Some(out) => self.waiting.push_back(QueuedItem::Frames { out: Arc::clone(out), again: true }),
                // The notice concerns scalars.
                None if notice.frame == NO_FRAME => {
                    let unsure = self.sent_scalars.take_unsure(connection);
                    self.waiting.extend(unsure.into_iter().map(QueuedItem::Scalars));
                }
                None => {}
            }
        }
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }
}
