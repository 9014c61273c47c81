//! Sizes and durations are parsed as people write them, rejected with a hint, and printed in a form that can be parsed
//! again.

use super::{Bytes, Rounded, Span};
use std::time::Duration;

#[test]
fn zero_duration_is_refused_where_length_is_required() {
    assert!(Span::of_some_length("0s").is_err() && Span::of_some_length("0").is_err());
    assert_eq!(Span::of_some_length("1ms").map(|span| span.0), Ok(Duration::from_millis(1)));
}

#[test]
fn sizes_are_read() {
    let cases = [
        ("0", 0),
        ("512", 512),
        ("64KiB", 65_536),
        ("64K", 65_536),
        ("1.5MiB", 1_572_864),
        ("2 GiB", 2 << 30),
        ("10kB", 10_000),
        ("3TB", 3_000_000_000_000),
        ("64k", 65_536),
        ("18446744073709551615", u64::MAX),
    ];
    for (text, bytes) in cases {
        assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
    }
}

#[test]
fn invalid_sizes_are_refused() {
    for text in ["", "KiB", "-1", "1e3", "12parsecs", "0.3", "99999999TiB", "99999999.5TiB", "1.2.3", ".", "0.0001KiB"]
    {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
}

#[test]
fn durations_are_read() {
    let cases =
        [("0", 0), ("250us", 250), ("5ms", 5_000), ("1.5s", 1_500_000), ("2min", 120_000_000), ("1m 30s", 90_000_000)];
    for (text, micros) in cases {
        assert_eq!(text.parse(), Ok(Span(Duration::from_micros(micros))), "{text}");
    }
}

#[test]
fn invalid_durations_are_refused() {
    for text in ["", "5", "s", "-5s", "5 fortnights", "99999999999999999999s", "9999999999999999d"] {
        assert!(text.parse::<Span>().is_err(), "{text}");
    }
}

#[test]
fn quantities_round_trip() {
    for bytes in [0, 1, 1023, 1024, 65_536, 1_572_864, 5 << 30] {
        assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
    }
    for micros in [0, 1, 999, 1_000, 5_000_000, 90_000_000, 7_200_000_000] {
        let span = Span(Duration::from_micros(micros));
        assert_eq!(span.to_string().parse(), Ok(span));
    }
}

/// Promise: sizes for readers have three digits.
#[test]
fn sizes_for_readers_are_rounded() {
    for (bytes, text) in [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (123_456, "121 KiB"),
        (1_572_864, "1.50 MiB"),
        (u64::MAX, "16.0 EiB"),
    ] {
        assert_eq!(Rounded(bytes).to_string(), text);
    }
}
