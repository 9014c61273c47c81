//! Output channels: results go to stdout, as text or JSON; progress goes to stderr, and only if that is a terminal.

use crate::escaping;
use crate::problem::{Problem, Result};
use crate::stdout::{self, Stdout};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Raised when a field of any command's JSON changes its meaning or is removed; new fields do not raise it.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    watched: bool,
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    schema_version: u32,
    command: &'a str,
    #[serde(flatten)]
    result: &'a T,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output { json, watched: io::stderr().is_terminal() }
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether progress bars may be drawn on stderr.
    pub fn shows_progress(&self) -> bool {
        self.watched && !self.json
    }

    /// Prints a command's result: the fields of `result` beside `schema_version` and `command`, or `text`.
    pub fn result<T: Serialize>(&self, command: &str, result: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        print_line(&self.line(command, result, text)?)
    }

    /// [`Output::result`] for one of many results. Returns `false` if nobody reads further output.
    pub fn one_of_many<T: Serialize>(
        &self,
        command: &str,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<bool> {
        print_read(&self.line(command, result, text)?)
    }

    /// [`Output::result`] for a command that then continues to run and may have acknowledged something already. It
    /// continues whether this is written or not. A caller that closed stdout does not want the output.
    pub fn announce<T: Serialize>(&self, command: &str, result: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        let line = self.line(command, result, text)?;
        if !stdout::is_closed()
            && let Err(problem) = print_line(&line)
        {
            let _ = writeln!(io::stderr(), "varve: {problem}\n  It goes on all the same.");
        }
        Ok(())
    }

    fn line<T: Serialize>(&self, command: &str, result: &T, text: impl FnOnce(&T) -> String) -> Result<String> {
        if self.json {
            let envelope = Envelope { schema_version: SCHEMA_VERSION, command, result };
            serde_json::to_string(&envelope)
                .map(|line| escaping::json(&line))
                .map_err(|error| Problem::new("cannot write the result as JSON").caused_by(&error))
        } else {
            Ok(escaping::lines(&text(result)))
        }
    }
}

/// Prints `text`, with a newline unless it ends with one. A closed pipe is no error.
pub fn print_line(text: &str) -> Result<()> {
    print_read(text).map(drop)
}

/// Like [`print_line`]; returns `false` if the reader has closed the pipe.
fn print_read(text: &str) -> Result<bool> {
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    match Stdout.write_all(format!("{text}{newline}").as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let problem = Problem::new("cannot write the result to standard output").caused_by(&error);
            Err(if stdout::is_closed() { problem.next("It was closed when the program was started.") } else { problem })
        }
        written => Ok(written.is_ok()),
    }
}

/// `name  value` lines with the values in one column.
pub fn columns(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// A table with a head: the first column to the left, the others to the right, each as wide as its widest cell.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(|&word| word.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line += &format!("  {cell:>width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    /// Promise: columns are as wide as their widest cell.
    #[test]
    fn table_is_aligned() {
        let rows = [vec!["lookup".to_owned(), "7".to_owned()], vec!["x".to_owned(), "12345".to_owned()]];
        assert_eq!(table(&["name", "n"], rows.into_iter()), "name        n\nlookup      7\nx       12345\n");
    }
}
