//! Sizes and durations as people write them: `64KiB`, `1.5GiB`, `5s`, `250ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Longest first, so that `KiB` is not read as `B`. A single letter is binary, as in coreutils.
const BYTE_UNITS: [(&str, u64); 17] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("bytes", 1),
    ("B", 1),
    ("", 1),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let (number, scale) = split(text, &BYTE_UNITS).ok_or_else(|| {
            format!("{text:?} is not a size; write a number and B, KiB, MiB, GiB, TiB, kB, MB, GB or TB, as in 64KiB")
        })?;
        let bytes = number * scale as f64;
        if bytes > u64::MAX as f64 {
            return Err(format!("{text:?} is more than {} bytes", u64::MAX));
        }
        if bytes.fract() != 0.0 {
            return Err(format!("{text:?} is not a whole number of bytes"));
        }
        Ok(Bytes(bytes as u64))
    }
}

impl fmt::Display for Bytes {
    /// Uses the largest binary unit that gives a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
        let (unit, scale) =
            units.into_iter().find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale)).unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / scale)
    }
}

/// A duration, in whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const SPAN_UNITS: [(&str, u64); 9] = [
    ("us", 1),
    ("µs", 1),
    ("ms", 1_000),
    ("sec", 1_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

impl Span {
    /// A duration above zero, for the command line.
    pub fn of_some_length(text: &str) -> Result<Span, String> {
        match text.parse()? {
            Span(Duration::ZERO) => Err("it must be longer than 0".to_owned()),
            span => Ok(span),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        if text == "0" {
            return Ok(Span(Duration::ZERO));
        }
        let (number, scale) = split(text, &SPAN_UNITS).ok_or_else(|| {
            format!("{text:?} is not a duration; write a number and us, ms, s, min, h or d, as in 5s")
        })?;
        let micros = number * scale as f64;
        if micros > u64::MAX as f64 {
            return Err(format!("{text:?} is too long"));
        }
        Ok(Span(Duration::from_micros(micros.round() as u64)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let units = [("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
        let unit = units.into_iter().find(|(_, scale)| micros >= *scale && micros.is_multiple_of(*scale));
        match unit {
            _ if micros == 0 => write!(f, "0"),
            Some((unit, scale)) => write!(f, "{}{unit}", micros / scale),
            None => write!(f, "{micros}us"),
        }
    }
}

/// A non-negative number and the scale of the unit behind it.
fn split(text: &str, units: &[(&str, u64)]) -> Option<(f64, u64)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = text[end..].trim_start();
    units.iter().find(|(name, _)| *name == unit).map(|(_, scale)| (number, *scale))
}

#[cfg(test)]
#[path = "quantity/tests.rs"]
mod tests;
