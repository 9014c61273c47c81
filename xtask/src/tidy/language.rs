//! Language rules of `STYLE.md`: retired words stay out of prose and identifiers, and no statement has a relative clause
//! as its subject.
//!
//! The rules check Markdown, comments and identifiers of Rust, and `#` comments of Python, shell, TOML and the Makefile.
//! They do not check string literals, because stored names outlive a renaming.

use super::{SourceFile, SourceTree, Violation};

/// Retired words and their replacements, in lower case. An identifier contains a word if its parts, in snake or camel
/// case, do.
const RETIRED: [(&str, &str); 15] = [
    ("vigil", "busy-poll loop"),
    ("errand", "async operation"),
    ("errands", "async operations"),
    ("attendant", "reactor thread"),
    ("attendance", "reactor thread"),
    ("mailbox", "shared-memory slot"),
    ("mailboxes", "shared-memory slots"),
    ("neighbour", "in-process transport"),
    ("neighbours", "in-process transport"),
    ("desk", "request queue"),
    ("slab", "chunk group"),
    ("slabs", "chunk groups"),
    ("doubt", "unknown outcome"),
    ("doubts", "unknown outcomes"),
    ("at rest", "read-only recovery view"),
];

/// Retired words that are checked in prose alone, because identifiers contain them in another sense.
const RETIRED_IN_PROSE: [(&str, &str); 3] = [
    ("stranger", "unauthenticated connection"),
    ("strangers", "unauthenticated connections"),
    ("complaints", "rate-limited error log"),
];

/// Beginnings of a relative clause in the place of the subject.
const RELATIVE: [&str; 4] = ["Who", "Whoever", "What", "That which"];

/// Extensions and names of files with `#` comments.
const HASH_EXTENSIONS: [&str; 3] = ["py", "sh", "toml"];
const HASH_NAMES: [&str; 2] = ["Makefile", "run"];

const REPLACED: &str = "the request path that replaces this code deletes it";

/// Exempt files, or directories if the path ends with `/`, and the reason.
pub const EXEMPT: [(&str, &str); 3] = [
    ("STYLE.md", "lists the retired words and shows bad sentences"),
    ("docs/internals/renames.md", "lists the retired names"),
    ("crates/meta/src/server/local_session.rs", REPLACED),
];

/// No retired word is in prose or identifiers.
pub fn retired_words(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in checked(tree) {
        let source = Source::of(file);
        let identifiers = source.code.iter().flat_map(|(index, line)| found(*index, line, &RETIRED));
        let prose = source.prose.iter().flat_map(|line| {
            found(line.index, &line.text, &RETIRED).chain(found(line.index, &line.text, &RETIRED_IN_PROSE))
        });
        violations.extend(identifiers.chain(prose).map(|(index, word, instead)| {
            file.violation(index, format!("`{word}` is retired: write \"{instead}\" or describe the thing plainly"))
        }));
    }
    violations
}

/// No statement in prose begins with a relative clause; headings and questions may.
pub fn relative_subjects(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in checked(tree) {
        for paragraph in paragraphs(&Source::of(file).prose) {
            violations.extend(paragraph.relative_statements().map(|(index, begin)| {
                let text = format!("a statement begins with `{begin}`: name the actor and make it the subject");
                file.violation(index, text)
            }));
        }
    }
    violations
}

fn checked(tree: &SourceTree) -> impl Iterator<Item = &SourceFile> {
    let is_exempt = |path: &str| {
        EXEMPT.iter().any(|(exempt, _)| path == *exempt || (exempt.ends_with('/') && path.starts_with(exempt)))
    };
    tree.files.iter().filter(move |file| !is_exempt(&file.path))
}

type Words = [(&'static str, &'static str)];

/// The listed words in `text`, each with the line's index and its replacement.
fn found<'a>(
    index: usize,
    text: &str,
    words: &'a Words,
) -> impl Iterator<Item = (usize, &'static str, &'static str)> + use<'a> {
    let parts = split_into_words(text) + " ";
    let contained = move |word: &str| parts.contains(&format!(" {word} "));
    words.iter().filter(move |(word, _)| contained(word)).map(move |(word, instead)| (index, *word, *instead))
}

/// The words of `text` and of the identifiers in it, in lower case, each after a blank; `|` where a phrase ends.
fn split_into_words(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    let mut before = ' ';
    for each in text.chars() {
        if each.is_alphanumeric() {
            let is_begin = !before.is_alphanumeric() || (before.is_lowercase() && each.is_uppercase());
            words.extend(is_begin.then_some(' '));
            words.extend(each.to_lowercase());
        } else if ![' ', '_'].contains(&each) {
            words.push_str(" |");
        }
        before = each;
    }
    words
}

/// One line of prose.
struct ProseLine {
    /// Counted from 0.
    index: usize,
    /// Begins another comment than the line before.
    is_first: bool,
    /// Without the marker of the comment.
    text: String,
}

/// A file, divided into prose and code.
#[derive(Default)]
struct Source {
    prose: Vec<ProseLine>,
    /// Lines of Rust without comments and the content of literals, each with its index.
    code: Vec<(usize, String)>,
}

impl Source {
    fn of(file: &SourceFile) -> Source {
        if file.has_extension("rs") {
            return rust(&file.text);
        }
        if file.has_extension("md") {
            let lines = file.text.lines().enumerate();
            let prose = lines.map(|(index, line)| ProseLine { index, is_first: index == 0, text: line.to_owned() });
            return Source { prose: prose.collect(), code: Vec::new() };
        }
        let name = file.path.rsplit('/').next().unwrap_or_default();
        if HASH_EXTENSIONS.iter().any(|extension| file.has_extension(extension)) || HASH_NAMES.contains(&name) {
            return Source { prose: hash_comments(&file.text), code: Vec::new() };
        }
        Source::default()
    }
}

/// The `#` comments of a file. A `#` begins a comment at the start of a line, or after a blank outside quotes.
fn hash_comments(text: &str) -> Vec<ProseLine> {
    let mut prose = Vec::new();
    let mut last_alone = None;
    for (index, line) in text.lines().enumerate() {
        let begin = line.match_indices('#').map(|(at, _)| at).find(|at| {
            let before = &line[..*at];
            let is_quoted = ['"', '\''].iter().any(|quote| before.matches(*quote).count() % 2 == 1);
            before.trim().is_empty() || (before.ends_with([' ', '\t']) && !is_quoted)
        });
        let Some(begin) = begin else { continue };
        let comment = line[begin..].trim_start_matches('#');
        if index == 0 && comment.starts_with('!') {
            continue;
        }
        let is_alone = line[..begin].trim().is_empty();
        let is_first = !is_alone || last_alone.is_none_or(|last| last + 1 != index);
        prose.push(ProseLine { index, is_first, text: comment.to_owned() });
        last_alone = is_alone.then_some(index);
    }
    prose
}

/// Position of the Rust scanner.
enum In {
    Code,
    /// With the depth of nesting.
    BlockComment(usize),
    String,
    /// With the number of `#`.
    RawString(usize),
}

/// Divides Rust into comments and code. This is a scanner of literals and comments, not a parser: it accepts every
/// program that the compiler accepts.
fn rust(text: &str) -> Source {
    let mut source = Source::default();
    let mut state = In::Code;
    // Marker and index of the last comment that had its line for itself.
    let mut last: Option<(&str, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let mut code = String::new();
        let mut block = String::new();
        let is_inside = matches!(state, In::BlockComment(_));
        let mut rest = line;
        while let Some(next) = rest.chars().next() {
            let mut length = next.len_utf8();
            match state {
                In::Code if rest.starts_with("//") => {
                    let marker = ["//!", "///", "//"].into_iter().find(|marker| rest.starts_with(marker));
                    let marker = marker.expect("the line begins with the last one");
                    let is_alone = code.trim().is_empty();
                    let is_first = !is_alone || last.is_none_or(|(m, at)| m != marker || at + 1 != index);
                    source.prose.push(ProseLine { index, is_first, text: rest[marker.len()..].to_owned() });
                    last = is_alone.then_some((marker, index));
                    length = rest.len();
                }
                In::Code if rest.starts_with("/*") => {
                    state = In::BlockComment(1);
                    length = 2;
                }
                In::Code if next == '"' => {
                    state = raw_hashes(&code).map_or(In::String, In::RawString);
                    code.push('"');
                }
                In::Code if next == '\'' => {
                    length = char_literal(rest).unwrap_or(1);
                    code.push('\'');
                }
                In::Code => code.push(next),
                In::BlockComment(depth) if rest.starts_with("*/") => {
                    state = if depth == 1 { In::Code } else { In::BlockComment(depth - 1) };
                    length = 2;
                }
                In::BlockComment(depth) if rest.starts_with("/*") => {
                    state = In::BlockComment(depth + 1);
                    length = 2;
                }
                In::BlockComment(_) => block.push(next),
                In::String if next == '\\' => length += rest[1..].chars().next().map_or(0, char::len_utf8),
                In::String if next == '"' => state = In::Code,
                In::RawString(hashes) if next == '"' && rest[1..].starts_with(&"#".repeat(hashes)) => {
                    state = In::Code;
                    length = 1 + hashes;
                }
                In::String | In::RawString(_) => {}
            }
            rest = &rest[length..];
        }
        if !block.is_empty() {
            let text = block.trim_start().trim_start_matches('*').to_owned();
            source.prose.push(ProseLine { index, is_first: !is_inside, text });
        }
        source.code.push((index, code));
    }
    source
}

/// The number of `#` if `code`, which precedes a quote, ends with the beginning of a raw string.
fn raw_hashes(code: &str) -> Option<usize> {
    let prefix = code.trim_end_matches('#');
    let before = prefix.strip_suffix('r')?;
    let before = before.strip_suffix(['b', 'c']).unwrap_or(before);
    let is_prefix = !before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    is_prefix.then(|| code.len() - prefix.len())
}

/// The length of the character literal that `rest` begins with; `None` if its quote begins a lifetime.
fn char_literal(rest: &str) -> Option<usize> {
    let content = &rest[1..];
    if let Some(escaped) = content.strip_prefix('\\') {
        // The first escaped character may be a quote itself.
        let first = escaped.chars().next()?.len_utf8();
        return Some(2 + first + escaped[first..].find('\'')? + 1);
    }
    let first = content.chars().next()?.len_utf8();
    content[first..].starts_with('\'').then_some(1 + first + 1)
}

/// Text without an empty line, or one item of a list, or one cell of a table.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// Place in the text and index of each line.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn of(index: usize, text: &str) -> Paragraph {
        let mut paragraph = Paragraph::default();
        paragraph.push(index, text);
        paragraph
    }

    fn push(&mut self, index: usize, text: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), index));
        self.text.push_str(text.trim());
    }

    /// Line index and beginning of each statement that begins with a relative clause.
    fn relative_statements(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let mut statements = Vec::new();
        let mut begin = 0;
        while begin < self.text.len() {
            let rest = &self.text[begin..];
            let sentence = &rest[..sentence_end(rest, &['.', '?', '!'])];
            let opened = sentence.trim_start_matches(['*', '_', '(', '"', ' ']);
            let relative = RELATIVE.into_iter().find(|words| {
                opened.strip_prefix(words).is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric()))
            });
            if let Some(words) = relative
                && !sentence.trim_end_matches(['*', '_', ')', '"']).ends_with('?')
            {
                let line = self.lines.iter().rev().find(|(place, _)| *place <= begin);
                statements.push((line.expect("the first line is at 0").1, words));
            }
            // A part after a colon or semicolon may be a statement of its own.
            begin += sentence_end(rest, &['.', '?', '!', ':', ';']);
            begin += self.text[begin..].len() - self.text[begin..].trim_start().len();
        }
        statements.into_iter()
    }
}

/// The length of `text` up to and including the first of `marks` that a blank or the end follows.
fn sentence_end(text: &str, marks: &[char]) -> usize {
    let ends = text.match_indices(marks).map(|(at, mark)| at + mark.len());
    let mut ends = ends.map(|end| {
        let closed = text[end..].trim_start_matches([')', '"', '*', '_']);
        (text.len() - closed.len(), closed)
    });
    ends.find(|(_, after)| after.is_empty() || after.starts_with(' ')).map_or(text.len(), |(end, _)| end)
}

/// The paragraphs of prose, without headings (also of tables) and blocks of code.
fn paragraphs(prose: &[ProseLine]) -> Vec<Paragraph> {
    let mut all = Vec::new();
    let mut current = Paragraph::default();
    let mut is_code = false;
    for (at, line) in prose.iter().enumerate() {
        let text = line.text.trim();
        let fence = text.starts_with("```");
        is_code = (is_code && !line.is_first) ^ fence;
        let item = list_item(text);
        let is_apart = is_code || fence || text.is_empty() || text.starts_with(['#', '|']);
        if line.is_first || is_apart || item.is_some() {
            all.push(std::mem::take(&mut current));
        }
        if !is_code && text.starts_with('|') {
            let is_heading = prose.get(at + 1).is_some_and(|next| next.text.trim().starts_with("|--"));
            let cells = text.split('|').filter(|_| !is_heading);
            all.extend(cells.map(|cell| Paragraph::of(line.index, cell)));
        }
        if !is_apart {
            current.push(line.index, item.unwrap_or(text).trim_start_matches("> "));
        }
    }
    all.push(current);
    all
}

/// The text of the list item that `line` begins.
fn list_item(line: &str) -> Option<&str> {
    if let Some(item) = line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")) {
        return Some(item);
    }
    let (number, item) = line.split_once(". ")?;
    (!number.is_empty() && number.chars().all(|each| each.is_ascii_digit())).then_some(item)
}
