//! The order in which the names of a partition are read, to decide what is read ahead.

use varve_types::{HashRange, NameHash};

/// Rows read ahead at first, and at most. One row takes a few microseconds, during which its worker does nothing else.
const ROWS_FIRST: usize = 16;
const ROWS_MAX: usize = 256;
/// A name counts as adjacent within this many times the average distance between names. One distance in three thousand
/// is longer.
const NEAR: u64 = 8;

/// How a partition's names were recently read from the table.
#[derive(Default)]
pub(super) struct ReadOrder {
    /// The last name requested or read ahead.
    last: Option<NameHash>,
    /// The number of recent names that were each near the one before.
    near: u32,
    /// The readahead in progress: its number, and where it begins.
    under_way: Option<(u64, NameHash)>,
}

impl ReadOrder {
    /// Whether a row with this hash may be among the rows being read ahead. A decision on it in the meantime must stay
    /// resident, or the row read would hide it.
    pub fn is_being_read(&self, hash: NameHash) -> bool {
        self.under_way.is_some_and(|(_, from)| hash >= from)
    }

    /// Begins a readahead of this `number` if names are read in order and none is in progress. Returns its rows.
    pub fn begin(&mut self, number: u64, hash: NameHash, range: HashRange, entries: u64) -> Option<usize> {
        if !range.contains(hash) || self.under_way.is_some() {
            return None;
        }
        let rows = self.follow(hash, range, entries);
        if rows == 0 {
            return None;
        }
        self.under_way = Some((number, hash));
        Some(rows)
    }

    /// `false`: this readahead is not in progress.
    pub fn end(&mut self, number: u64) -> bool {
        let is_this = self.under_way.is_some_and(|(under_way, _)| under_way == number);
        if is_this {
            self.under_way = None;
        }
        is_this
    }

    /// Records that the row with this hash was read ahead.
    pub fn note_read(&mut self, hash: NameHash) {
        self.last = Some(hash);
    }

    /// The number of rows to read ahead with `hash`, in a partition with this many entries.
    fn follow(&mut self, hash: NameHash, range: HashRange, entries: u64) -> usize {
        let distance = (range.last.0 - range.first.0) / entries.max(1);
        let near = |last: NameHash| last <= hash && hash.0 - last.0 <= distance.saturating_mul(NEAR);
        self.near = if self.last.is_some_and(near) { self.near.saturating_add(1) } else { 0 };
        self.last = Some(hash);
        match self.near {
            0 | 1 => 0,
            near => ROWS_MAX.min(ROWS_FIRST << (near - 2).min(ROWS_MAX.ilog2())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: HashRange = HashRange { first: NameHash(0), last: NameHash::LAST };

    /// Promise: rows are read ahead if names are adjacent, more each time, and not if names come in any other order.
    #[test]
    fn readahead_follows_sequential_names_only() {
        let step = NameHash::LAST.0 / 1000;
        let at = |n: u64| NameHash(step * n + 5);
        let mut order = ReadOrder::default();
        let rows: Vec<usize> =
            [1, 2, 3, 4, 5, 6, 7, 8, 500, 501, 9, 100].into_iter().map(|n| order.follow(at(n), WHOLE, 1000)).collect();
        assert_eq!(rows, [0, 0, 16, 32, 64, 128, 256, 256, 0, 0, 0, 0]);
        // There may be other names of the same hash.
        assert_eq!([order.follow(at(100), WHOLE, 1000), order.follow(at(101), WHOLE, 1000)], [0, 16]);
        // An empty partition has no distances.
        assert_eq!(order.follow(at(102), WHOLE, 0), 32);
    }
}
