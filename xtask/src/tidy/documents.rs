//! Checks documents against the code: a format names its golden bytes, and the commands in the README exist. (A test of
//! `crates/cli`, which defines the `varve` commands, checks that those in the README parse.)

use super::{SourceFile, SourceTree, Violation};

const README: &str = "README.md";

/// Every file of `formats/` names golden bytes by a line ``Golden: `path::name` ``, and the test exists.
pub fn formats(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for format in tree.with_extension("md").filter(|file| file.path.starts_with("formats/")) {
        let named: Vec<(usize, &str)> = references(format, "Golden: ").collect();
        if named.is_empty() {
            violations.push(format.violation_in_file("names no golden test; add a line Golden: `path::name`"));
        }
        violations.extend(
            named.iter().filter_map(|(line, name)| missing(tree, name).map(|why| format.violation(*line, why))),
        );
    }
    violations
}

/// `make` and `cargo xtask` commands in the README's code blocks exist.
pub fn chores(tree: &SourceTree) -> Vec<Violation> {
    let Some(readme) = tree.file(README) else {
        return vec![Violation { path: README.into(), line: 0, text: "is missing".into() }];
    };
    let makefile = tree.file("Makefile").map_or("", |file| &file.text);
    let mut violations = Vec::new();
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
            violations.push(readme.violation(index, format!("the Makefile has no target `{target}`")));
        }
    }
    violations
}

/// The names in back quotes on lines that begin with `label`.
fn references<'a>(file: &'a SourceFile, label: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let labelled =
        file.text.lines().enumerate().filter_map(move |(index, line)| Some((index, line.strip_prefix(label)?)));
    labelled.flat_map(|(index, rest)| rest.split('`').skip(1).step_by(2).map(move |name| (index, name)))
}

/// The reason why the test `path::name` does not exist; `None` if it does.
fn missing(tree: &SourceTree, reference: &str) -> Option<String> {
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
