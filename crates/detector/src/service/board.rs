//! What a run's frames have reached, and who is to be told: the writer's threads post here, each connection has an
//! [`Outbox`] that a thread of its own empties, so that a slow client holds up nobody else.

use crate::frame::Level;
use crate::stream::{Ack, FinishedHead, FromService, Notice, Ranges, Refusal, answers::RANGES_MAX, level_bit};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Notices that wait for a client who does not read; further ones are counted by the run all the same.
const NOTICES_MAX: usize = 1024;
pub const LEVELS: [Level; 3] = [Level::Memory, Level::Written, Level::Durable];

/// The frames at each level.
#[derive(Default)]
pub struct Board(Mutex<Posted>);

#[derive(Default)]
struct Posted {
    levels: [Ranges; 3],
    outboxes: Vec<Weak<Outbox>>,
}

impl Board {
    /// Of a run that has these frames durably.
    pub fn with(frames: Ranges) -> Board {
        let levels = [frames.clone(), frames.clone(), frames];
        Board(Mutex::new(Posted { levels, outboxes: Vec::new() }))
    }

    pub fn post(&self, level: Level, numbers: &[u64]) {
        let new: Ranges = numbers.iter().copied().collect();
        self.post_ranges(level, &new);
    }

    pub fn post_ranges(&self, level: Level, new: &Ranges) {
        let mut posted = self.0.lock();
        for range in new.iter() {
            posted.levels[level as usize].add(range);
        }
        posted.outboxes.retain(|outbox| outbox.upgrade().map(|outbox| outbox.acknowledge(level, new)).is_some());
    }

    pub fn frames(&self, level: Level) -> Ranges {
        self.0.lock().levels[level as usize].clone()
    }

    /// Numbers and ends of the levels, without copying them.
    pub fn reached(&self) -> [(u64, u64); 3] {
        let posted = self.0.lock();
        std::array::from_fn(|level| (posted.levels[level].len(), posted.levels[level].end()))
    }

    pub fn has(&self, level: Level, number: u64) -> bool {
        self.0.lock().levels[level as usize].contains(number)
    }

    /// Tells a new connection all that is known, and from then on what comes.
    pub fn attach(&self, outbox: &Arc<Outbox>) {
        let mut posted = self.0.lock();
        for level in LEVELS {
            if level == Level::Memory || outbox.wants(level) {
                outbox.start(level, &posted.levels[level as usize]);
            }
        }
        posted.outboxes.push(Arc::downgrade(outbox));
    }

    /// Does `tell` with the outbox of every connection.
    pub fn each(&self, tell: impl Fn(&Outbox)) {
        let outboxes: Vec<_> = self.0.lock().outboxes.iter().filter_map(Weak::upgrade).collect();
        outboxes.iter().for_each(|outbox| tell(outbox));
    }
}

/// What waits to be told on one connection.
pub struct Outbox {
    levels: u8,
    /// Whose connection it is.
    pub client: [u8; 16],
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    levels: [Ranges; 3],
    notices: VecDeque<Notice>,
    answers: VecDeque<FromService>,
    pongs: u32,
    last: Option<FromService>,
    closed: bool,
}

impl Outbox {
    pub fn new(levels: u8, client: [u8; 16]) -> Outbox {
        Outbox { levels, client, waiting: Mutex::default(), wake: Condvar::new() }
    }

    fn wants(&self, level: Level) -> bool {
        self.levels & level_bit(level) != 0
    }

    fn start(&self, level: Level, frames: &Ranges) {
        self.waiting.lock().levels[level as usize] = frames.clone();
        self.wake.notify_one();
    }

    fn acknowledge(&self, level: Level, new: &Ranges) {
        if self.wants(level) {
            let mut waiting = self.waiting.lock();
            new.iter().for_each(|range| waiting.levels[level as usize].add(range));
            self.wake.notify_one();
        }
    }

    pub fn notice(&self, notice: Notice) {
        let mut waiting = self.waiting.lock();
        if waiting.notices.len() < NOTICES_MAX {
            waiting.notices.push_back(notice);
            self.wake.notify_one();
        }
    }

    /// An answer to a writer, who has one question at a time; or a word to it.
    pub fn answer(&self, answer: FromService) {
        self.waiting.lock().answers.push_back(answer);
        self.wake.notify_one();
    }

    pub fn pong(&self) {
        self.waiting.lock().pongs += 1;
        self.wake.notify_one();
    }

    /// The last words, after which the connection is closed. The first ones said count.
    pub fn finish(&self, finished: FinishedHead) {
        self.end(FromService::Finished(finished));
    }

    pub fn refuse(&self, refusal: Refusal) {
        self.end(FromService::Error(refusal));
    }

    fn end(&self, last: FromService) {
        let mut waiting = self.waiting.lock();
        waiting.last.get_or_insert(last);
        self.wake.notify_one();
    }

    /// Nobody listens any more.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.wake.notify_one();
    }

    /// Whether the last words are said or nobody listens.
    pub fn is_over(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.closed || waiting.last.is_some()
    }

    /// What is to be said next, in the order in which it must come: what a client has before the answer to its PING.
    /// `None`: nothing more ever.
    pub fn take(&self) -> Option<Vec<FromService>> {
        /// How many messages are gathered at most, so that memory stays bounded however far a client is behind.
        const MESSAGES_MAX: usize = 64;
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.closed {
                return None;
            }
            let mut messages = Vec::new();
            for level in LEVELS {
                while messages.len() < MESSAGES_MAX && !waiting.levels[level as usize].is_empty() {
                    let frames = waiting.levels[level as usize].take(RANGES_MAX);
                    messages.push(FromService::Ack(Ack { level, frames }));
                }
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
            self.wake.wait_for(&mut waiting, Duration::from_secs(1));
        }
    }
}
