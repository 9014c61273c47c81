//! Makes text from untrusted files safe for terminals and logs.
//!
//! Names, host names and paths that are read from a store may contain escape sequences that change a terminal's state,
//! or characters that reorder a line. Every message that shows such text passes it through [`printable`] first.

use std::fmt::Write;
use std::path::Path;

/// Longest output in characters. A path has at most 4,096 bytes; longer text hides the message around it.
const CHARACTERS_MAX: usize = 4096;

/// Escapes every character of `text` that is not printable: controls as `\n` or `\u{1b}`, and the Unicode characters
/// that reorder, hide or break a line. Keeps at most 4,096 characters of the result and marks the cut with `…`.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut length = 0;
    let mut piece = String::new();
    for character in text.chars() {
        piece.clear();
        match character {
            _ if is_printable(character) => piece.push(character),
            '\n' | '\r' | '\t' => piece.extend(character.escape_default()),
            _ => write!(piece, "\\u{{{:x}}}", u32::from(character)).expect("a String takes all"),
        }
        length += piece.chars().count();
        if length > CHARACTERS_MAX {
            shown.push('…');
            break;
        }
        shown.push_str(&piece);
    }
    shown
}

/// [`printable`] of a path; bytes that are not UTF-8 become `�`.
pub fn printable_path(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn is_printable(character: char) -> bool {
    // Formatting characters (Unicode category Cf), line and paragraph separators, private use and noncharacters.
    let is_hidden = matches!(u32::from(character),
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x180e
        | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f
        | 0xe000..=0xf8ff | 0xfdd0..=0xfdef | 0xfeff | 0xfff0..=0xfffb
        | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
        | 0xe0000..=0x10ffff)
        || u32::from(character) & 0xfffe == 0xfffe;
    !character.is_control() && !is_hidden
}

#[cfg(test)]
mod tests;
