//! Readdir cookies: positions in a listing as numbers.
//!
//! The names of a directory are ordered by hash, then by bytes. A cookie denotes the position after a name. It is the
//! name's hash, so it has the same meaning in every handle and after every split. Names with the same hash are listed
//! together, but a reader's buffer may end between two of them. The position after each but the last of such a run
//! therefore gets a random number, which this handle remembers. The module does no I/O; random numbers are passed in.
//!
//! ```text
//! 0  start       1  after "."       2  after ".."       from 16  after the names with this hash, or a random number
//! ```

use std::collections::HashMap;
use varve_types::{Errno, NameHash};

pub(super) const START: u64 = 0;
pub(super) const AFTER_DOT: u64 = 1;
pub(super) const AFTER_DOT_DOT: u64 = 2;

/// Random cookies that one handle remembers. Two names share a hash once in 2^63; this many indicate an attack.
const DRAWN_MAX: usize = 65_536;

/// The position where a listing continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListingPosition {
    Start,
    AfterDot,
    /// Before the first name with this hash or a higher one.
    From(u64),
    /// After this name, which shares its hash with later ones.
    After(u64, Vec<u8>),
}

impl ListingPosition {
    /// The lowest hash at or after the position.
    pub fn hash(&self) -> u64 {
        match self {
            ListingPosition::Start | ListingPosition::AfterDot => 0,
            ListingPosition::From(hash) | ListingPosition::After(hash, _) => *hash,
        }
    }

    /// Whether the name is after the position.
    pub fn precedes(&self, hash: u64, name: &[u8]) -> bool {
        match self {
            ListingPosition::Start | ListingPosition::AfterDot => true,
            ListingPosition::From(from) => *from <= hash,
            ListingPosition::After(after, last) => (*after, last.as_slice()) < (hash, name),
        }
    }
}

#[derive(Default)]
pub(super) struct Cookies {
    drawn: HashMap<u64, (u64, Vec<u8>)>,
    known: HashMap<(u64, Vec<u8>), u64>,
}

impl Cookies {
    pub fn position(&self, cookie: u64) -> ListingPosition {
        match cookie {
            START => ListingPosition::Start,
            AFTER_DOT => ListingPosition::AfterDot,
            AFTER_DOT_DOT => ListingPosition::From(0),
            _ => match self.drawn.get(&cookie) {
                Some((hash, name)) => ListingPosition::After(*hash, name.clone()),
                None => ListingPosition::From(cookie.saturating_add(1)),
            },
        }
    }

    /// The cookie after a name; `last`: no later name has the same hash.
    pub fn after(&mut self, hash: u64, name: &[u8], last: bool, mut draw: impl FnMut() -> u64) -> Result<u64, Errno> {
        if last && !self.drawn.contains_key(&hash) {
            return Ok(hash);
        }
        let position = (hash, name.to_vec());
        if let Some(cookie) = self.known.get(&position) {
            return Ok(*cookie);
        }
        if self.drawn.len() >= DRAWN_MAX {
            return Err(Errno::EOVERFLOW);
        }
        let cookie = loop {
            let drawn = draw() & NameHash::LAST.0;
            if drawn >= NameHash::FIRST.0 && !self.drawn.contains_key(&drawn) {
                break drawn;
            }
        };
        self.drawn.insert(cookie, position.clone());
        self.known.insert(position, cookie);
        Ok(cookie)
    }
}

#[cfg(test)]
mod tests;
