//! Sizes and durations as people write them: `64KiB`, `1.5GiB`, `5s`, `250ms`.

use bytesize::Unit;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let unknown = || {
            format!("{text:?} is not a size; write a number and B, KiB, MiB, GiB, TiB, kB, MB, GB or TB, as in 64KiB")
        };
        let too_large = || format!("{text:?} is more than {} bytes", u64::MAX);
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim_start());
        let scale = 1_u64 * byte_unit(unit).ok_or_else(unknown)?;
        if let Ok(number) = number.parse::<u64>() {
            return number.checked_mul(scale).map(Bytes).ok_or_else(too_large);
        }
        let bytes = number.parse::<f64>().map_err(|_| unknown())? * scale as f64;
        if bytes > u64::MAX as f64 {
            return Err(too_large());
        }
        if bytes.fract() != 0.0 {
            return Err(format!("{text:?} is not a whole number of bytes"));
        }
        Ok(Bytes(bytes as u64))
    }
}

/// No unit means bytes. A single letter is binary, as in coreutils; bytesize itself reads it as decimal.
fn byte_unit(unit: &str) -> Option<Unit> {
    match unit {
        "" => Some(Unit::Byte),
        "k" | "K" | "M" | "G" | "T" => format!("{unit}iB").parse().ok(),
        _ => unit.parse().ok(),
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

/// A number of bytes for readers: three digits and a binary unit. [`Bytes`] is exact, and for settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounded(pub u64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 1023.5 and more would be shown with four digits.
        while value >= 999.5 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
        write!(f, "{value:.digits$} {}", units[unit])
    }
}

/// A duration. Its text is that of humantime: `5s`, `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

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
        match humantime::parse_duration(text) {
            Ok(duration) => Ok(Span(duration)),
            Err(humantime::DurationError::NumberOverflow) => Err(format!("{text:?} is too long or too precise")),
            Err(_) => Err(format!("{text:?} is not a duration; write a number and us, ms, s, min, h or d, as in 5s")),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

#[cfg(test)]
#[path = "quantity/tests.rs"]
mod tests;
