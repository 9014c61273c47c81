//! Records of a dataset whose chunks are numbered. Only stretches with at least one record are in memory, because a
//! number may be far above all others where the inner sides of a scan can still grow.

use super::record::ChunkRecord;
use std::collections::BTreeMap;

/// Chunk numbers per stretch.
const STRETCH: u64 = 1 << 10;

#[derive(Clone, Debug, Default)]
pub struct Array {
    /// Stretches by chunk number divided by [`STRETCH`]. Each vector ends with its last record.
    stretches: BTreeMap<u64, Vec<ChunkRecord>>,
    length: u64,
}

impl Array {
    /// One past the highest number set.
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn get(&self, number: u64) -> ChunkRecord {
        of(self.stretches.get(&(number / STRETCH)), number)
    }

    /// Sets one record and returns the previous one.
    ///
    /// # Panics
    /// If `number` is [`u64::MAX`].
    pub fn set(&mut self, number: u64, record: ChunkRecord) -> ChunkRecord {
        self.length = self.length.max(number.checked_add(1).expect("a number below the last that there is"));
        let (stretch, at) = (self.stretches.entry(number / STRETCH).or_default(), (number % STRETCH) as usize);
        if stretch.len() <= at {
            stretch.resize(at + 1, ChunkRecord::ABSENT);
        }
        std::mem::replace(&mut stretch[at], record)
    }

    /// All present records.
    pub fn present(&self) -> impl Iterator<Item = &ChunkRecord> {
        self.stretches.values().flatten().filter(|record| !record.is_absent())
    }

    pub fn present_mut(&mut self) -> impl Iterator<Item = &mut ChunkRecord> {
        self.stretches.values_mut().flatten().filter(|record| !record.is_absent())
    }

    /// Returns `count` records from number `first` on.
    pub fn run(&self, first: u64, count: u64) -> impl Iterator<Item = ChunkRecord> {
        let (mut at, mut stretch) = (None, None);
        (first..first + count).map(move |number| {
            if at != Some(number / STRETCH) {
                at = Some(number / STRETCH);
                stretch = self.stretches.get(&(number / STRETCH));
            }
            of(stretch, number)
        })
    }

    /// Whether any of `count` records from number `first` on is present.
    pub fn any(&self, first: u64, count: u64) -> bool {
        let end = first + count;
        let stretches = self.stretches.range(first / STRETCH..end.div_ceil(STRETCH));
        let mut records = stretches.flat_map(|(stretch, records)| (stretch * STRETCH..).zip(records));
        records.any(|(number, record)| (first..end).contains(&number) && !record.is_absent())
    }
}

fn of(stretch: Option<&Vec<ChunkRecord>>, number: u64) -> ChunkRecord {
    stretch.and_then(|records| records.get((number % STRETCH) as usize)).copied().unwrap_or(ChunkRecord::ABSENT)
}
