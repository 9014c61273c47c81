//! Formats numbers for people.

/// Three significant digits with k, M or G: `45.3 k`.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        x if x >= 0.9995e9 => (value / 1e9, " G"),
        x if x >= 0.9995e6 => (value / 1e6, " M"),
        x if x >= 999.5 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    format!("{}{unit}", digits(scaled))
}

fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        x if x >= 99.95 => format!("{value:.0}"),
        x if x >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Microseconds as µs, ms or s.
pub fn latency(microseconds: f64) -> String {
    match microseconds {
        x if x >= 0.9995e6 => format!("{} s", digits(x / 1e6)),
        x if x >= 999.5 => format!("{} ms", digits(x / 1e3)),
        x => format!("{} µs", digits(x)),
    }
}

/// Groups thousands: `45 312`; one decimal below a thousand.
pub fn grouped(value: f64) -> String {
    if value.abs() < 1000.0 {
        return format!("{value:.1}");
    }
    let plain = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (i, digit) in plain.chars().enumerate() {
        if i > 0 && (plain.len() - i) % 3 == 0 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits, thousands grouped by commas: `45,300`.
pub fn with_commas(value: f64) -> String {
    if value.abs() < 999.5 || !value.is_finite() {
        return digits(value);
    }
    let unit = 10_f64.powf(value.abs().log10().floor() - 2.0);
    grouped((value / unit).round() * unit).replace('\u{202f}', ",")
}

/// One digit after the point below ten, none above.
fn one_digit(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A ratio of rates in words: `2.1 times as fast`, `3.4 times slower`.
pub fn times_as_fast(ratio: f64) -> String {
    match ratio {
        x if (0.95..1.05).contains(&x) => "about as fast".to_owned(),
        x if x < 0.95 => format!("{} times slower", one_digit(1.0 / x)),
        x => format!("{} times as fast", one_digit(x)),
    }
}

/// Two digits after the point, three below a tenth, one above 10: `0.42`, `0.031`, `13.1`.
pub fn ratio(value: f64) -> String {
    match value {
        x if x < 0.0995 => format!("{x:.3}"),
        x if x < 9.995 => format!("{x:.2}"),
        x => format!("{x:.1}"),
    }
}

/// `1 client`, `2 clients`.
pub fn clients(clients: usize) -> String {
    if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") }
}

pub fn bytes(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GiB", digits(b as f64 / (1_u64 << 30) as f64)),
        b if b >= 1 << 20 => format!("{} MiB", digits(b as f64 / (1_u64 << 20) as f64)),
        b if b >= 1 << 10 => format!("{} KiB", digits(b as f64 / 1024.0)),
        b => format!("{b} bytes"),
    }
}
