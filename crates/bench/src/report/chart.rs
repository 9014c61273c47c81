//! Charts as inline SVG: rates as bars with whiskers, latencies as ranges on a logarithmic axis. Colours are CSS
//! variables of the page, so that one drawing works in light and dark mode.

mod axis;
mod latencies;
mod rates;

pub use latencies::latencies;
pub use rates::rates;

/// Width of a drawing in its own units, which are pixels until the page scales it.
const WIDTH: f64 = 420.0;

/// Text for HTML and for attributes in double quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The number of colours for targets; further targets reuse them from the start.
pub const COLOURS: usize = 6;

/// The CSS class of the `n`-th target's marks.
pub fn colour(n: usize) -> String {
    format!("t{}", n % COLOURS)
}
