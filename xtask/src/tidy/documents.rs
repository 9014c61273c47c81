//! Documents that speak of the code must be true: a promise names its test, a format its golden bytes, the README
//! chores that exist. (That the README's `varve` commands parse is a test of `crates/cli`, which has their definition.)

use super::{Complaint, File, Tree};

const SEMANTICS: &str = "SEMANTICS.md";
const README: &str = "README.md";

/// Every section of SEMANTICS.md (from one `##` or `###` heading to the next) whose body is not empty ends with lines
/// ``Test: `path::name` ``, and the file at `path` defines `name`.
pub fn promises(tree: &Tree) -> Vec<Complaint> {
    let Some(semantics) = tree.file(SEMANTICS) else {
        return vec![Complaint { path: SEMANTICS.into(), line: 0, text: "is missing".into() }];
    };
    let mut complaints = Vec::new();
    for section in sections(semantics) {
        if section.tests.is_empty() {
            let text =
                format!("the promise \"{}\" names no test; end it with a line Test: `path::name`", section.title);
            complaints.push(semantics.complain(section.line, text));
        }
        complaints.extend(
            section
                .tests
                .iter()
                .filter_map(|(line, name)| missing(tree, name).map(|why| semantics.complain(*line, why))),
        );
    }
    complaints
}

/// Every file of `formats/` names golden bytes by a line ``Golden: `path::name` ``, and the test exists.
pub fn formats(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for format in tree.with_extension("md").filter(|file| file.path.starts_with("formats/")) {
        let named: Vec<(usize, &str)> = references(format, "Golden: ").collect();
        if named.is_empty() {
            complaints.push(format.complain_whole("names no golden test; add a line Golden: `path::name`"));
        }
        complaints
            .extend(named.iter().filter_map(|(line, name)| missing(tree, name).map(|why| format.complain(*line, why))));
    }
    complaints
}

/// `make` and `cargo xtask` chores in the README's code blocks exist.
pub fn chores(tree: &Tree) -> Vec<Complaint> {
    let Some(readme) = tree.file(README) else {
        return vec![Complaint { path: README.into(), line: 0, text: "is missing".into() }];
    };
    let makefile = tree.file("Makefile").map_or("", |file| &file.text);
    let mut complaints = Vec::new();
    let mut code = false;
    for (index, line) in readme.text.lines().enumerate() {
        if line.starts_with("```") {
            code = !code;
            continue;
        }
        let words: Vec<&str> = line.trim_start_matches("$ ").split_whitespace().collect();
        if let (true, ["make", target, ..]) = (code, words.as_slice())
            && !makefile.lines().any(|rule| rule.starts_with(&format!("{target}:")))
        {
            complaints.push(readme.complain(index, format!("the Makefile has no target `{target}`")));
        }
    }
    complaints
}

struct Section<'a> {
    line: usize,
    title: &'a str,
    /// Line and `path::name`.
    tests: Vec<(usize, &'a str)>,
}

/// Sections that say something; a heading directly followed by a deeper one only groups.
fn sections(file: &File) -> Vec<Section<'_>> {
    let lines: Vec<&str> = file.text.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|index| lines[*index].starts_with("##")).collect();
    let mut sections = Vec::new();
    for (position, start) in starts.iter().enumerate() {
        let end = starts.get(position + 1).copied().unwrap_or(lines.len());
        if lines[start + 1..end].iter().all(|line| line.trim().is_empty()) {
            continue;
        }
        let tests = references(file, "Test: ").filter(|(line, _)| (*start..end).contains(line)).collect();
        sections.push(Section { line: *start, title: lines[*start].trim_start_matches('#').trim(), tests });
    }
    sections
}

/// The names in back quotes on lines that begin with `label`.
fn references<'a>(file: &'a File, label: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let labelled =
        file.text.lines().enumerate().filter_map(move |(index, line)| Some((index, line.strip_prefix(label)?)));
    labelled.flat_map(|(index, rest)| rest.split('`').skip(1).step_by(2).map(move |name| (index, name)))
}

/// Why the test `path::name` does not exist; `None` where it does.
fn missing(tree: &Tree, reference: &str) -> Option<String> {
    let Some((path, name)) = reference.rsplit_once("::") else {
        return Some(format!("`{reference}` is not of the form path::name"));
    };
    let Some(file) = tree.file(path) else {
        return Some(format!("`{path}` does not exist"));
    };
    let defined = [format!("fn {name}("), format!("def {name}("), format!("{name}()")];
    let exists = defined.iter().any(|definition| file.text.contains(definition.as_str()));
    (!exists).then(|| format!("`{path}` has no test `{name}`"))
}
