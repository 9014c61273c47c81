//! Describes an error in a TOML text on one line with its position. For a value of the wrong type, the parser's own
//! message gives neither.

use toml::de::Error;

/// Longest part of a line that is shown, in characters: its beginning identifies it.
const SHOWN_MAX: usize = 60;

/// Describes the error in `text` and its line. A key that is missing from the whole text has no line.
pub fn reason(text: &str, error: &Error) -> String {
    let message = error.message().lines().map(str::trim).collect::<Vec<_>>().join("; ");
    let place = error.span().map(|span| span.start).filter(|start| *start > 0 || !message.starts_with("missing field"));
    let Some(before) = place.and_then(|start| text.get(..start)) else { return message };
    let number = before.matches('\n').count();
    let line = text.lines().nth(number).unwrap_or_default().trim();
    match line.char_indices().nth(SHOWN_MAX) {
        _ if line.is_empty() => format!("line {}: {message}", number + 1),
        Some((end, _)) => format!("line {}, `{}…`: {message}", number + 1, &line[..end]),
        None => format!("line {}, `{line}`: {message}", number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Text {
        size: u16,
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        name: String,
    }

    fn said(text: &str) -> String {
        reason(text, &toml::from_str::<Text>(text).unwrap_err())
    }

    #[test]
    fn toml_errors_name_their_line() {
        assert_eq!(said("# a\n\nsize = \"2\"\n"), "line 3, `size = \"2\"`: invalid type: string \"2\", expected u16");
        assert_eq!(said("# a\ninner.name = \"x\"\n"), "missing field `size`");
        let inner = said("size = 2\n[inner]\nother = 1\n");
        assert!(inner.starts_with("line 2, `[inner]`") && inner.ends_with("missing field `name`"), "{inner}");
        let unknown = said("size = 2\ncolour = 1\n");
        assert!(unknown.starts_with("line 2, `colour = 1`: unknown field `colour`"), "{unknown}");
        let broken = said("size = 2\nsize 3\n");
        assert!(broken.starts_with("line 2, `size 3`: ") && !broken.contains('\n'), "{broken}");
        assert!(said(&format!("size = \"{}\"", "x".repeat(1000))).starts_with("line 1, `size = \"xxx"));
        assert!(said("size = 2\n[").starts_with("line 2"));
        let Text { size, inner } = toml::from_str("size = 2\ninner.name = \"x\"\n").unwrap();
        assert_eq!((size, inner.unwrap().name.as_str()), (2, "x"));
    }
}
