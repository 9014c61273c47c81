//! `docs/semantics.md` states each promise and names it by an id in brackets, `[rename-atomic]`. `tests/promises.toml`
//! has a table for each id: the promise in one line, and the tests that check it. The two agree in both directions, and
//! every test exists.

use super::{SourceFile, SourceTree, Violation};
use std::collections::{BTreeMap, BTreeSet};

const SEMANTICS: &str = "docs/semantics.md";
const PROMISES: &str = "tests/promises.toml";
/// Limit for a page that a programmer reads completely; explanations are in `docs/internals`.
const SEMANTICS_BYTES_MAX: usize = 25 * 1024;

/// Every promise id in `docs/semantics.md` has an entry in `tests/promises.toml` and vice versa. An entry has a
/// statement and at least one test. Each test is a function with a test attribute. Each section of `docs/semantics.md`
/// has an id, and the page stays below its size limit.
pub fn promises(tree: &SourceTree) -> Vec<Violation> {
    let (semantics, promises) = match (tree.file(SEMANTICS), tree.file(PROMISES)) {
        (Some(semantics), Some(promises)) => (semantics, promises),
        (semantics, promises) => {
            let missing = [(semantics, SEMANTICS), (promises, PROMISES)].into_iter().filter(|(file, _)| file.is_none());
            return missing
                .map(|(_, path)| Violation { path: path.into(), line: 0, text: "is missing".into() })
                .collect();
        }
    };
    let entries = match promises.text.parse::<toml::Table>() {
        Ok(entries) => entries,
        Err(error) => return vec![promises.violation_in_file(format!("is not TOML: {}", error.message()))],
    };
    let ids = ids(semantics);
    let mut violations = sections_without_id(semantics, &ids);
    if semantics.text.len() > SEMANTICS_BYTES_MAX {
        let text = format!("has {} bytes; cut it below {SEMANTICS_BYTES_MAX}", semantics.text.len());
        violations.push(semantics.violation_in_file(text));
    }
    for (id, line) in &ids {
        if !entries.contains_key(*id) {
            violations.push(semantics.violation(*line, format!("the promise [{id}] has no entry in {PROMISES}")));
        }
    }
    for (id, entry) in &entries {
        if !ids.contains_key(id.as_str()) {
            let text = format!("{SEMANTICS} does not name the promise [{id}]; state it there or remove the entry");
            violations.push(promises.violation(line_of(promises, &format!("[{id}]")), text));
        }
        violations.extend(faults(tree, promises, id, entry));
    }
    violations
}

/// The violations in one entry.
fn faults(tree: &SourceTree, promises: &SourceFile, id: &str, entry: &toml::Value) -> Vec<Violation> {
    let head = line_of(promises, &format!("[{id}]"));
    let mut violations = Vec::new();
    let statement = entry.get("statement").and_then(toml::Value::as_str);
    if statement.is_none_or(|text| text.trim().is_empty() || text.contains('\n')) {
        violations.push(promises.violation(head, format!("[{id}] needs a `statement` of one line")));
    }
    let tests: Option<Vec<&str>> = entry
        .get("tests")
        .and_then(toml::Value::as_array)
        .and_then(|tests| tests.iter().map(toml::Value::as_str).collect());
    let Some(tests) = tests.filter(|tests| !tests.is_empty()) else {
        let text = format!("the promise [{id}] has no test; add tests = [\"path::name\"]");
        violations.push(promises.violation(head, text));
        return violations;
    };
    let mut seen = BTreeSet::new();
    for test in tests {
        let line = head + line_of_text(promises.text.lines().skip(head), &format!("\"{test}\""));
        if !seen.insert(test) {
            violations.push(promises.violation(line, format!("[{id}] names `{test}` twice")));
        } else if let Some(why) = missing(tree, test) {
            violations.push(promises.violation(line, why));
        }
    }
    let known = ["statement", "tests"];
    for key in entry.as_table().into_iter().flat_map(toml::Table::keys).filter(|key| !known.contains(&key.as_str())) {
        violations.push(promises.violation(head, format!("[{id}] has an unknown key `{key}`")));
    }
    violations
}

/// Sections (from one `##` or `###` heading to the next) that have text but name no promise.
fn sections_without_id(semantics: &SourceFile, ids: &BTreeMap<&str, usize>) -> Vec<Violation> {
    let lines: Vec<&str> = semantics.text.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|index| lines[*index].starts_with("##")).collect();
    let named: BTreeSet<usize> = lines_with_ids(semantics).map(|(line, _)| line).collect();
    let mut violations = Vec::new();
    for (position, start) in starts.iter().enumerate() {
        let end = starts.get(position + 1).copied().unwrap_or(lines.len());
        let has_text = lines[start + 1..end].iter().any(|line| !line.trim().is_empty());
        if has_text && !ids.is_empty() && named.range(*start..end).next().is_none() {
            let title = lines[*start].trim_start_matches('#').trim();
            violations
                .push(semantics.violation(*start, format!("the section \"{title}\" names no promise; add its [id]")));
        }
    }
    violations
}

/// Each id with the line, counted from 0, of its first occurrence.
fn ids(semantics: &SourceFile) -> BTreeMap<&str, usize> {
    let mut ids = BTreeMap::new();
    for (line, id) in lines_with_ids(semantics) {
        ids.entry(id).or_insert(line);
    }
    ids
}

/// Line and id of each `[id]` outside of code that is not a link text.
fn lines_with_ids(semantics: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    let text = semantics.text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    text.flat_map(|(index, line)| {
        let prose = line.split('`').step_by(2);
        prose.flat_map(bracketed).map(move |id| (index, id))
    })
}

fn bracketed(prose: &str) -> impl Iterator<Item = &str> {
    prose.match_indices('[').filter_map(|(start, _)| {
        let (id, rest) = prose[start + 1..].split_once(']')?;
        let is_id = id.starts_with(|first: char| first.is_ascii_lowercase())
            && id.chars().all(|each| each.is_ascii_lowercase() || each.is_ascii_digit() || each == '-');
        (is_id && !rest.starts_with(['(', '[', ':'])).then_some(id)
    })
}

/// Why the test `path::name` does not exist; `None` if it does.
fn missing(tree: &SourceTree, reference: &str) -> Option<String> {
    let Some((path, name)) = reference.rsplit_once("::") else {
        return Some(format!("`{reference}` is not of the form path::name"));
    };
    let Some(file) = tree.file(path) else {
        return Some(format!("`{path}` does not exist"));
    };
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let definition = format!("fn {name}(");
    let Some(at) = lines.iter().position(|line| line.contains(&definition)) else {
        return Some(format!("`{path}` has no test `{name}`"));
    };
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let tested = above.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    (!tested).then(|| format!("`{name}` in `{path}` has neither #[test] nor #[tokio::test]"))
}

/// The line, counted from 0, that begins with `start`; the first if there is none.
fn line_of(file: &SourceFile, start: &str) -> usize {
    file.text.lines().position(|line| line.starts_with(start)).unwrap_or(0)
}

fn line_of_text<'a>(mut lines: impl Iterator<Item = &'a str>, text: &str) -> usize {
    lines.position(|line| line.contains(text)).unwrap_or(0)
}
