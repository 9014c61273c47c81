//! Sets of frame numbers as ranges. Frames that arrive roughly in order form one range.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-adjacent ranges: start to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// Whether the set contains all of `range`.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.0.range(..=range.start).next_back().is_some_and(|(_, end)| range.end <= *end)
    }

    /// Adds a number and returns whether it was new.
    pub fn insert(&mut self, number: u64) -> bool {
        let new = !self.contains(number);
        if new {
            self.add(number..number + 1);
        }
        new
    }

    pub fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((&at, &until)) = self.0.range(..=end).next_back()
            && until >= start
        {
            self.0.remove(&at);
            start = start.min(at);
            end = end.max(until);
        }
        self.0.insert(start, end);
    }

    pub fn remove(&mut self, number: u64) {
        if let Some((&start, &end)) = self.0.range(..=number).next_back()
            && number < end
        {
            self.0.remove(&start);
            self.add(start..number);
            self.add(number + 1..end);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Removes and returns up to `count` ranges, lowest first.
    pub fn take(&mut self, count: usize) -> Vec<Range<u64>> {
        std::iter::from_fn(|| self.0.pop_first().map(|(start, end)| start..end)).take(count).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the highest number; 0 if the set is empty.
    pub fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// The lowest number that the set does not contain.
    pub fn first_gap(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }

    /// The number of elements.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

impl FromIterator<u64> for Ranges {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Ranges {
        let mut ranges = Ranges::default();
        for number in numbers {
            ranges.insert(number);
        }
        ranges
    }
}
