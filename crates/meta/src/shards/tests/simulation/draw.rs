//! Numbers derived from a seed.

use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Clone, Debug)]
pub struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    pub fn of(seed: u64) -> Draw {
        Draw { seed, drawn: 0 }
    }

    /// A sequence of its own for the thing with this number, whatever else was drawn before.
    pub fn branch(&self, number: u64) -> Draw {
        Draw::of(xxh3_64_with_seed(&number.to_le_bytes(), self.seed))
    }

    /// A sequence of its own.
    pub fn fork(&mut self) -> Draw {
        Draw::of(self.below(usize::MAX) as u64)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.drawn += 1;
        (xxh3_64_with_seed(&self.drawn.to_le_bytes(), self.seed) % end as u64) as usize
    }

    /// `true` in so many of a hundred cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn milliseconds(&mut self, end: usize) -> Duration {
        Duration::from_millis(self.below(end.max(1)) as u64)
    }

    pub fn one_of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}
