//! Escapes text for terminals and logs: text from stores, records and other processes may contain escape sequences.

use std::io::{self, Write};
use varve_env::printable::printable;

/// Every line of `text`, escaped. Newlines and tabs stay, because the program's own layout uses them.
pub fn lines(text: &str) -> String {
    let is_layout = |character: char| matches!(character, '\n' | '\t');
    text.split_inclusive(is_layout).fold(String::with_capacity(text.len()), |mut shown, piece| {
        let words = piece.strip_suffix(is_layout);
        shown += &printable(words.unwrap_or(piece));
        shown + &piece[words.map_or(piece.len(), str::len)..]
    })
}

/// Replaces the characters that [`printable`] would escape by `\uXXXX`. Such characters occur only within JSON's
/// strings.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let mut bytes = [0; 4];
        // JSON has escaped the other control characters, and its own layout is not content.
        let is_plain = matches!(character, '\n' | ' '..='~');
        let piece: &str = character.encode_utf8(&mut bytes);
        if is_plain || printable(piece) == piece {
            shown.push(character);
        } else {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().for_each(|unit| shown += &format!("\\u{unit:04x}"));
        }
    }
    shown
}

/// A writer that escapes its input. With `colours` it keeps the colour sequences of the log itself.
pub struct Escaping<W> {
    output: W,
    colours: bool,
}

impl<W: Write> Escaping<W> {
    pub fn new(output: W, colours: bool) -> Escaping<W> {
        Escaping { output, colours }
    }
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let shown = if self.colours { coloured_lines(&text) } else { lines(&text) };
        self.output.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Like [`lines`], but keeps sequences that only change the colour: `ESC [ digits ; … m`.
pub fn coloured_lines(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let mut shown = lines(pieces.next().unwrap_or_default());
    for piece in pieces {
        let end = piece.find(|character: char| !character.is_ascii_digit() && character != ';').unwrap_or(piece.len());
        match piece[end..].strip_prefix('m') {
            Some(rest) => shown += &format!("\x1b[{}m{}", &piece[..end], lines(rest)),
            None => shown += &lines(&format!("\x1b[{piece}")),
        }
    }
    shown
}

#[cfg(test)]
mod tests;
