//! Sets of frame numbers as ranges: a run whose frames come roughly in order is one range.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch, by their start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// Whether all of `range` is there.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.0.range(..=range.start).next_back().is_some_and(|(_, end)| range.end <= *end)
    }

    /// Whether it was not there before.
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

    /// Takes out up to `count` ranges, the lowest first.
    pub fn take(&mut self, count: usize) -> Vec<Range<u64>> {
        std::iter::from_fn(|| self.0.pop_first().map(|(start, end)| start..end)).take(count).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the highest number; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// How many numbers.
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
