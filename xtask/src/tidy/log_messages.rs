//! Every message above INFO is in `docs/operate/log-messages.md`.
//!
//! The rule compares the characteristic part of a message: its first fragment of three words between values and
//! punctuation, or else its longest fragment. A message whose text is a value, such as `warn!("{error}")`, has no such
//! part and is not checked.

use super::{SourceFile, SourceTree, Violation};

const PAGE: &str = "docs/operate/log-messages.md";
const MACROS: [&str; 2] = ["warn!(", "error!("];
/// Stands for a value, as in the page.
const VALUE: &str = "…";

/// Each message at WARN or ERROR is in the page.
pub fn documented(tree: &SourceTree) -> Vec<Violation> {
    let page = tree.file(PAGE).map_or(String::new(), messages_of);
    let mut violations = Vec::new();
    for file in tree.with_extension("rs").filter(|file| is_product(&file.path)) {
        let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (at, message) in messages(code) {
            let Some(part) = characteristic(&message) else { continue };
            if !page.contains(&part) {
                let line = code[..at].matches('\n').count();
                violations.push(file.violation(line, format!("{PAGE} lacks the message \"{part}\"")));
            }
        }
    }
    violations
}

fn is_product(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !path.contains("/tests")
}

/// The column of messages, one row a line.
fn messages_of(page: &SourceFile) -> String {
    let rows = page.text.lines().filter(|line| line.starts_with("| WARN") || line.starts_with("| ERROR"));
    rows.filter_map(|row| row.split('|').nth(2)).map(|cell| normal(cell) + "\n").collect()
}

/// The text with each value as [`VALUE`], in single blanks and without back quotes. Words in capitals are values.
fn normal(text: &str) -> String {
    let words = text.split_whitespace().map(|word| {
        let letters = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_value = !letters.is_empty() && letters.chars().all(|c| c.is_ascii_uppercase());
        if is_value { word.replace(letters, VALUE) } else { word.replace('`', "") }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The place and text of each message in `code`.
fn messages(code: &str) -> impl Iterator<Item = (usize, String)> {
    let calls = MACROS.iter().flat_map(|name| code.match_indices(name).map(|(at, name)| (at, at + name.len())));
    calls.filter_map(|(at, arguments)| Some((at, first_literal(&code[arguments..])?)))
}

/// The first string literal that is an argument by itself, not the value of a field.
fn first_literal(arguments: &str) -> Option<String> {
    let (mut depth, mut before) = (1, '(');
    let mut rest = arguments;
    while let Some(next) = rest.chars().next() {
        if next == '"' {
            let literal = string_literal(&rest[1..]);
            if depth == 1 && ['(', ','].contains(&before) {
                return Some(unescaped(literal));
            }
            rest = &rest[(literal.len() + 2).min(rest.len())..];
            before = '"';
            continue;
        }
        depth += i32::from("([{".contains(next)) - i32::from(")]}".contains(next));
        if depth == 0 {
            return None;
        }
        before = if next.is_whitespace() { before } else { next };
        rest = &rest[next.len_utf8()..];
    }
    None
}

/// The content of the literal that `text` continues.
fn string_literal(text: &str) -> &str {
    let mut is_escaped = false;
    let end = text.find(|next| {
        let is_end = next == '"' && !is_escaped;
        is_escaped = next == '\\' && !is_escaped;
        is_end
    });
    &text[..end.unwrap_or(text.len())]
}

/// Without continuations of lines, and with escaped quotes and line ends as such.
fn unescaped(literal: &str) -> String {
    let lines: Vec<&str> = literal.split("\\\n").collect();
    let joined = lines.iter().enumerate().map(|(at, line)| if at == 0 { line } else { line.trim_start() });
    joined.collect::<String>().replace("\\n", " ").replace("\\\"", "\"")
}

/// The part of a message that the page must have.
fn characteristic(message: &str) -> Option<String> {
    let mut fragments = Vec::new();
    for text in message.split('{').enumerate().map(|(at, text)| match at {
        0 => text,
        _ => text.split_once('}').map_or("", |(_, after)| after),
    }) {
        let sentences = [": ", "; ", ". ", ", "]
            .iter()
            .fold(vec![text], |parts, mark| parts.into_iter().flat_map(|part| part.split(mark)).collect::<Vec<_>>());
        let trimmed = sentences.into_iter().map(|part| normal(part.trim_matches([' ', ':', ';', '.', ',', '(', ')'])));
        fragments.extend(trimmed);
    }
    let words = |fragment: &str| fragment.split_whitespace().count();
    let first = fragments.iter().find(|fragment| words(fragment) >= 3);
    first.or(fragments.iter().max_by_key(|fragment| words(fragment))).filter(|part| words(part) >= 2).cloned()
}
