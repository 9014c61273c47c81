//! How far each frame has come, by source: so that a frame that comes twice is taken once, and that whoever brought it
//! can ask.

use crate::frame::Level;
use parking_lot::Mutex;

#[derive(Debug)]
pub struct Levels {
    sources: usize,
    /// By frame, then by source; 0: it has not come.
    reached: Mutex<Vec<u8>>,
}

fn byte(level: Level) -> u8 {
    match level {
        Level::Memory => 1,
        Level::Written => 2,
        Level::Durable => 3,
    }
}

fn level(byte: u8) -> Option<Level> {
    [None, Some(Level::Memory), Some(Level::Written), Some(Level::Durable)][usize::from(byte)]
}

impl Levels {
    pub fn new(sources: usize) -> Levels {
        Levels { sources, reached: Mutex::default() }
    }

    fn at(&self, frame: u64, source: u32) -> usize {
        frame as usize * self.sources + source as usize
    }

    pub fn get(&self, frame: u64, source: u32) -> Option<Level> {
        self.reached.lock().get(self.at(frame, source)).copied().and_then(level)
    }

    /// Notes that it has come; answers how far it is if it had come before.
    pub fn take(&self, frame: u64, source: u32) -> Option<Level> {
        let at = self.at(frame, source);
        let mut reached = self.reached.lock();
        if reached.len() <= at {
            reached.resize((frame as usize + 1) * self.sources, 0);
        }
        let before = level(reached[at]);
        if before.is_none() {
            reached[at] = byte(Level::Memory);
        }
        before
    }

    /// It was not taken after all.
    pub fn give_back(&self, frame: u64, source: u32) {
        let at = self.at(frame, source);
        self.reached.lock()[at] = 0;
    }

    /// All sources of a frame but those `missing` have come so far; answers whether any had not.
    pub fn raise(&self, frame: u64, missing: &[u32], to: Level) -> bool {
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
        raised
    }
}
