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
//!
//! Programs with 32-bit offsets get the top 31 bits of the hash. Names with equal top bits are then a run like names with
//! the same hash.

use crate::config::CookieWidth;
use std::collections::HashMap;
use varve_types::{Errno, NameHash};

pub(super) const START: u64 = 0;
pub(super) const AFTER_DOT: u64 = 1;
pub(super) const AFTER_DOT_DOT: u64 = 2;

/// Random cookies that one handle remembers. Two names share a hash once in 2^63; this many indicate an attack. Two names
/// share the top 31 bits more often: a directory of 16 million names needs this many.
const DRAWN_MAX: usize = 65_536;

impl CookieWidth {
    /// The low bits of the hash that a cookie lacks.
    fn cut(self) -> u32 {
        match self {
            CookieWidth::Long => 0,
            CookieWidth::Short => 32,
        }
    }

    /// The cookie after all names with the hash, or with the same top bits.
    pub(super) fn of(self, hash: u64) -> u64 {
        (hash >> self.cut()).max(NameHash::FIRST.0)
    }

    /// The lowest hash after those of the cookie.
    fn next_hash(self, cookie: u64) -> u64 {
        cookie.saturating_add(1).saturating_mul(1 << self.cut())
    }

    fn largest(self) -> u64 {
        NameHash::LAST.0 >> self.cut()
    }
}

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
    pub width: CookieWidth,
    drawn: HashMap<u64, (u64, Vec<u8>)>,
    known: HashMap<(u64, Vec<u8>), u64>,
}

impl Cookies {
    pub fn new(width: CookieWidth) -> Cookies {
        Cookies { width, ..Cookies::default() }
    }

    pub fn position(&self, cookie: u64) -> ListingPosition {
        match cookie {
            START => ListingPosition::Start,
            AFTER_DOT => ListingPosition::AfterDot,
            AFTER_DOT_DOT => ListingPosition::From(0),
            _ => match self.drawn.get(&cookie) {
                Some((hash, name)) => ListingPosition::After(*hash, name.clone()),
                None => ListingPosition::From(self.width.next_hash(cookie)),
            },
        }
    }

    /// The cookie after a name; `last`: no later name has a hash with the same cookie.
    pub fn after(&mut self, hash: u64, name: &[u8], last: bool, mut draw: impl FnMut() -> u64) -> Result<u64, Errno> {
        let plain = self.width.of(hash);
        if last && !self.drawn.contains_key(&plain) {
            return Ok(plain);
        }
        let position = (hash, name.to_vec());
        if let Some(cookie) = self.known.get(&position) {
            return Ok(*cookie);
        }
        if self.drawn.len() >= DRAWN_MAX {
            return Err(Errno::EOVERFLOW);
        }
        let cookie = loop {
            let drawn = draw() & self.width.largest();
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
