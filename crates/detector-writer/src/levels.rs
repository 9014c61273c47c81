//! The level of each frame by source. A frame that arrives twice is taken once, and its sender can query its level.

use parking_lot::Mutex;
use varve_detector_dataset::frame::AckLevel;

#[derive(Debug)]
pub struct Levels {
    sources: usize,
    /// Indexed by frame, then by source; 0: not received.
    reached: Mutex<Vec<u8>>,
    /// Indexed by frame, if there are several sources: one bit for each level at which it has been counted.
    counted: Mutex<Vec<u8>>,
}

fn byte(level: AckLevel) -> u8 {
    match level {
        AckLevel::Memory => 1,
        AckLevel::Written => 2,
        AckLevel::Durable => 3,
    }
}

fn level(byte: u8) -> Option<AckLevel> {
    [None, Some(AckLevel::Memory), Some(AckLevel::Written), Some(AckLevel::Durable)][usize::from(byte)]
}

impl Levels {
    pub fn new(sources: usize) -> Levels {
        Levels { sources, reached: Mutex::default(), counted: Mutex::default() }
    }

    fn at(&self, frame: u64, source: u32) -> usize {
        frame as usize * self.sources + source as usize
    }

    pub fn get(&self, frame: u64, source: u32) -> Option<AckLevel> {
        self.reached.lock().get(self.at(frame, source)).copied().and_then(level)
    }

    /// Notes that a source's part has arrived; returns its level if it had arrived before.
    pub fn take(&self, frame: u64, source: u32) -> Option<AckLevel> {
        let at = self.at(frame, source);
        let mut reached = self.reached.lock();
        if reached.len() <= at {
            reached.resize((frame as usize + 1) * self.sources, 0);
        }
        let before = level(reached[at]);
        if before.is_none() {
            reached[at] = byte(AckLevel::Memory);
        }
        before
    }

    /// Reverts [`Levels::take`] for a part that was not taken.
    pub fn give_back(&self, frame: u64, source: u32) {
        let at = self.at(frame, source);
        self.reached.lock()[at] = 0;
    }

    /// Notes that a part of a frame was taken, and returns whether it was the first.
    pub fn count_taken(&self, frame: u64) -> bool {
        self.count(frame, AckLevel::Memory, AckLevel::Memory)
    }

    /// Marks a frame as counted at the levels from `from` to `to`, and returns whether it was not yet counted at `to`.
    fn count(&self, frame: u64, from: AckLevel, to: AckLevel) -> bool {
        if self.sources == 1 {
            return true;
        }
        let mut counted = self.counted.lock();
        if counted.len() <= frame as usize {
            counted.resize(frame as usize + 1, 0);
        }
        let before = counted[frame as usize];
        counted[frame as usize] |= (byte(from)..=byte(to)).fold(0, |bits, level| bits | 1 << level);
        before & 1 << byte(to) == 0
    }

    /// Marks a frame as durable on resumption, except for its missing sources.
    pub fn resume(&self, frame: u64, missing: &[u32]) {
        self.raise(frame, missing, AckLevel::Durable);
        self.count(frame, AckLevel::Memory, AckLevel::Durable);
    }

    /// Raises all sources of a frame except `missing` to a level. `None` if they already had it. Otherwise returns
    /// whether every part that has arrived is at this level for the first time.
    pub fn raise(&self, frame: u64, missing: &[u32], to: AckLevel) -> Option<bool> {
        let first = self.at(frame, 0);
        let mut reached = self.reached.lock();
        if reached.len() < first + self.sources {
            reached.resize(first + self.sources, 0);
        }
        let mut raised = false;
        for (source, level) in reached[first..first + self.sources].iter_mut().enumerate() {
            if *level < byte(to) && !missing.contains(&(source as u32)) {
                *level = byte(to);
                raised = true;
            }
        }
        let whole = reached[first..first + self.sources].iter().all(|level| *level == 0 || *level >= byte(to));
        drop(reached);
        raised.then(|| whole && self.count(frame, to, to))
    }
}
