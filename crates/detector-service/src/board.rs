//! Progress of a run's frames and its distribution to clients. The writer's threads post levels here. Each connection
//! has an [`Outbox`] that its own thread drains, so that a slow client delays no other.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::ranges::Ranges;
use varve_detector_stream::answers::RANGES_MAX;
use varve_detector_stream::{Ack, FinishedHead, FromService, Notice, StreamRefusal, level_bit};
use varve_detector_writer::Listener;

/// Limit for queued notices of a client that does not read. Further notices are dropped, but the run still counts them.
const NOTICES_MAX: usize = 1024;
/// Minimum interval between level messages. Levels reached sooner are batched: every message costs both sides a context
/// switch, and fast detectors would have one message per frame.
const LEVELS_GAP: Duration = Duration::from_millis(2);
pub const LEVELS: [AckLevel; 3] = [AckLevel::Memory, AckLevel::Written, AckLevel::Durable];

/// Returns the level of a source's part of a frame.
pub type Reached = Box<dyn Fn(u64, u32) -> Option<AckLevel> + Send + Sync>;

/// The frames at each level; kept for each source separately if sources send regions of every frame.
pub struct ProgressBoard {
    posted: Mutex<PostedLevels>,
    /// Distinguishes sources that send regions: the writer reports only that some part of a frame has reached a level.
    reached: OnceLock<Reached>,
}

struct PostedLevels {
    /// One set, or one for each source that sends regions.
    sources: Vec<[Ranges; 3]>,
    outboxes: Vec<Weak<Outbox>>,
}

impl Default for ProgressBoard {
    fn default() -> ProgressBoard {
        ProgressBoard::with(vec![Ranges::default()])
    }
}

impl ProgressBoard {
    /// A board for a run that already has these frames durably; one set per source if sources send regions.
    pub fn with(sources: Vec<Ranges>) -> ProgressBoard {
        let sources = sources.into_iter().map(|frames| [frames.clone(), frames.clone(), frames]).collect();
        ProgressBoard { posted: Mutex::new(PostedLevels { sources, outboxes: Vec::new() }), reached: OnceLock::new() }
    }

    /// Distinguishes sources from now on.
    pub fn distinguish(&self, reached: Reached) {
        self.reached.get_or_init(|| reached);
    }

    /// Posts frames of one source, or of all sources as source 0.
    pub fn post_ranges(&self, source: usize, level: AckLevel, new: &Ranges) {
        let mut posted = self.posted.lock();
        for range in new.iter() {
            posted.sources[source][level as usize].add(range);
        }
        let tell = |outbox: Arc<Outbox>| {
            if outbox.source == source {
                outbox.acknowledge(level, new);
            }
        };
        posted.outboxes.retain(|outbox| outbox.upgrade().map(tell).is_some());
    }

    /// Repeats the levels of a frame. A client that resends a frame may have received the acknowledgement before
    /// resending, and waits for another.
    pub fn repeat(&self, source: usize, number: u64) {
        let frame = std::iter::once(number).collect();
        let posted = self.posted.lock();
        let reached = LEVELS.into_iter().filter(|level| posted.sources[source][*level as usize].contains(number));
        for level in reached {
            let outboxes = posted.outboxes.iter().filter_map(Weak::upgrade).filter(|outbox| outbox.source == source);
            outboxes.for_each(|outbox| outbox.acknowledge(level, &frame));
        }
    }

    pub fn frames(&self, source: usize, level: AckLevel) -> Ranges {
        self.posted.lock().sources[source][level as usize].clone()
    }

    /// Whether any part of a frame has been received from a source.
    pub fn has(&self, source: usize, number: u64) -> bool {
        self.posted.lock().sources[source][AckLevel::Memory as usize].contains(number)
    }

    /// The frames at a level, for each distinguished source.
    pub fn all_frames(&self, level: AckLevel) -> Vec<Ranges> {
        self.posted.lock().sources.iter().map(|levels| levels[level as usize].clone()).collect()
    }

    /// One past the highest frame with any part at a level.
    pub fn end(&self, level: AckLevel) -> u64 {
        self.posted.lock().sources.iter().map(|levels| levels[level as usize].end()).max().unwrap_or(0)
    }

    /// The lowest frame that some distinguished source lacks at a level.
    pub fn first_gap(&self, level: AckLevel) -> u64 {
        self.posted.lock().sources.iter().map(|levels| levels[level as usize].first_gap()).min().unwrap_or(0)
    }

    /// Sends a new connection the current levels and subscribes it to further ones.
    pub fn attach(&self, outbox: &Arc<Outbox>) {
        let mut posted = self.posted.lock();
        for level in LEVELS {
            if level == AckLevel::Memory || outbox.wants(level) {
                outbox.start(level, &posted.sources[outbox.source][level as usize]);
            }
        }
        posted.outboxes.push(Arc::downgrade(outbox));
    }

    /// Calls `tell` with the outbox of every connection.
    pub fn each(&self, tell: impl Fn(&Outbox)) {
        let outboxes: Vec<_> = self.posted.lock().outboxes.iter().filter_map(Weak::upgrade).collect();
        outboxes.iter().for_each(|outbox| tell(outbox));
    }
}

impl Listener for ProgressBoard {
    fn reached(&self, level: AckLevel, numbers: &[u64]) {
        let Some(reached) = self.reached.get() else {
            return self.post_ranges(0, level, &numbers.iter().copied().collect());
        };
        // The receiver itself posts the memory level. A region noted here may not have queue space yet.
        if level == AckLevel::Memory {
            return;
        }
        let sources = self.posted.lock().sources.len();
        for source in 0..sources {
            let has = |number: &u64| reached(*number, source as u32) >= Some(level);
            self.post_ranges(source, level, &numbers.iter().copied().filter(has).collect());
        }
    }

    fn waits_for(&self, level: AckLevel) -> bool {
        let posted = self.posted.lock();
        let waits = |outbox: Arc<Outbox>| LEVELS[level as usize..].iter().any(|level| outbox.wants(*level));
        posted.outboxes.iter().filter_map(Weak::upgrade).any(waits)
    }
}

/// Messages waiting to be sent on one connection.
pub struct Outbox {
    levels: u8,
    /// The set of the board that this connection receives.
    pub source: usize,
    /// The client that owns the connection.
    pub client: [u8; 16],
    waiting: Mutex<PendingMessages>,
    wake: Condvar,
}

#[derive(Default)]
struct PendingMessages {
    levels: [Ranges; 3],
    notices: VecDeque<Notice>,
    answers: VecDeque<FromService>,
    pongs: u32,
    last: Option<FromService>,
    closed: bool,
    /// Levels are not sent before this time.
    levels_from: Option<Instant>,
}

impl PendingMessages {
    /// Remaining delay for levels; `None`: they are sent now, as they are together with any other message.
    fn gap(&self) -> Option<Duration> {
        let alone = self.answers.is_empty() && self.notices.is_empty() && self.pongs == 0 && self.last.is_none();
        let gap = self.levels_from?.saturating_duration_since(Instant::now());
        (alone && !gap.is_zero()).then_some(gap)
    }
}

impl Outbox {
    pub fn new(levels: u8, source: usize, client: [u8; 16]) -> Outbox {
        Outbox { levels, source, client, waiting: Mutex::default(), wake: Condvar::new() }
    }

    fn wants(&self, level: AckLevel) -> bool {
        self.levels & level_bit(level) != 0
    }

    fn start(&self, level: AckLevel, frames: &Ranges) {
        self.waiting.lock().levels[level as usize] = frames.clone();
        self.wake.notify_one();
    }

    fn acknowledge(&self, level: AckLevel, new: &Ranges) {
        if self.wants(level) {
            let mut waiting = self.waiting.lock();
            new.iter().for_each(|range| waiting.levels[level as usize].add(range));
            // The sending thread wakes by itself when the delay is over.
            if waiting.gap().is_none() {
                self.wake.notify_one();
            }
        }
    }

    pub fn notice(&self, notice: Notice) {
        let mut waiting = self.waiting.lock();
        if waiting.notices.len() < NOTICES_MAX {
            waiting.notices.push_back(notice);
            self.wake.notify_one();
        }
    }

    /// Queues a reply to a writer, which has one request at a time, or a message to it.
    pub fn answer(&self, answer: FromService) {
        self.waiting.lock().answers.push_back(answer);
        self.wake.notify_one();
    }

    pub fn pong(&self) {
        self.waiting.lock().pongs += 1;
        self.wake.notify_one();
    }

    /// Queues the final message, after which the connection is closed. The first final message counts.
    pub fn finish(&self, finished: FinishedHead) {
        self.end(FromService::Finished(finished));
    }

    pub fn refuse(&self, refusal: StreamRefusal) {
        self.end(FromService::Error(refusal));
    }

    fn end(&self, last: FromService) {
        let mut waiting = self.waiting.lock();
        waiting.last.get_or_insert(last);
        self.wake.notify_one();
    }

    /// Closes the outbox because the client is gone.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.wake.notify_one();
    }

    /// Whether the final message is queued or the client is gone.
    pub fn is_over(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.closed || waiting.last.is_some()
    }

    /// Returns the next messages in the required order: acknowledgements for a client precede the reply to its PING.
    /// `None`: no further messages.
    pub fn take(&self) -> Option<Vec<FromService>> {
        /// Upper limit for one batch, which bounds memory however far a client is behind.
        const MESSAGES_MAX: usize = 64;
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.closed {
                return None;
            }
            let gap = waiting.gap();
            let mut messages = Vec::new();
            for level in LEVELS.into_iter().filter(|_| gap.is_none()) {
                while messages.len() < MESSAGES_MAX && !waiting.levels[level as usize].is_empty() {
                    let frames = waiting.levels[level as usize].take(RANGES_MAX);
                    messages.push(FromService::Ack(Ack { level, frames }));
                }
            }
            if !messages.is_empty() {
                waiting.levels_from = Some(Instant::now() + LEVELS_GAP);
            }
            messages.extend(waiting.answers.drain(..));
            let room = MESSAGES_MAX.saturating_sub(messages.len());
            let notices = waiting.notices.len().min(room);
            messages.extend(waiting.notices.drain(..notices).map(FromService::Notice));
            if messages.len() < MESSAGES_MAX {
                messages.extend((0..std::mem::take(&mut waiting.pongs)).map(|_| FromService::Pong));
                if let Some(last) = waiting.last.take() {
                    messages.push(last);
                    waiting.closed = true;
                    return Some(messages);
                }
            }
            if !messages.is_empty() {
                return Some(messages);
            }
            self.wake.wait_for(&mut waiting, gap.unwrap_or(Duration::from_secs(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u64 = 200;

    fn outbox() -> Outbox {
        Outbox::new(level_bit(AckLevel::Written), 0, [0; 16])
    }

    fn write(outbox: &Outbox, frame: u64) {
        outbox.acknowledge(AckLevel::Written, &[frame].into_iter().collect());
    }

    fn written(frames: std::ops::Range<u64>) -> FromService {
        FromService::Ack(Ack { level: AckLevel::Written, frames: vec![frames] })
    }

    /// Promise: frames are awaited at a level while a connection exists that subscribes to that level or a higher one.
    #[test]
    fn each_connection_waits_for_its_level() {
        let board = ProgressBoard::default();
        let waits = |board: &ProgressBoard| LEVELS.map(|level| board.waits_for(level));
        assert_eq!(waits(&board), [false; 3]);
        let written = Arc::new(Outbox::new(level_bit(AckLevel::Written), 0, [0; 16]));
        board.attach(&written);
        assert_eq!(waits(&board), [true, true, false]);
        let durable = Arc::new(Outbox::new(level_bit(AckLevel::Durable), 0, [1; 16]));
        board.attach(&durable);
        assert_eq!(waits(&board), [true; 3]);
        drop((written, durable));
        assert_eq!(waits(&board), [false; 3]);
    }

    /// Promise: with any other message, levels that were reached before are sent first and without delay.
    #[test]
    fn levels_are_sent_before_other_messages() {
        let outbox = outbox();
        write(&outbox, 0);
        assert_eq!(outbox.take(), Some(vec![written(0..1)]));
        write(&outbox, 1);
        outbox.pong();
        assert_eq!(outbox.take(), Some(vec![written(1..2), FromService::Pong]));
    }

    /// Promise: level messages keep the minimum interval, and no level is lost.
    #[test]
    fn close_levels_are_sent_together() {
        let (outbox, begun) = (outbox(), Instant::now());
        let reported = std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let (mut reported, mut messages) = (0, 0);
                while reported < FRAMES {
                    for message in outbox.take().into_iter().flatten() {
                        let FromService::Ack(ack) = message else { panic!("{message:?}") };
                        assert!(
                            ack.frames.first().is_some_and(|range| range.start == reported),
                            "{ack:?} after {reported}"
                        );
                        reported = ack.frames.last().map_or(reported, |range| range.end);
                        messages += 1;
                    }
                }
                messages
            });
            for frame in 0..FRAMES {
                write(&outbox, frame);
                std::thread::sleep(Duration::from_micros(100));
            }
            taker.join().unwrap()
        });
        assert!(reported <= 1 + begun.elapsed().as_millis() / LEVELS_GAP.as_millis(), "{reported} messages");
    }
}
