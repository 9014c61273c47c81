//! Rules for the text of files.

use super::{SourceTree, Violation};

/// 400 lines are a smell; twice as many hide a second subject.
const LINES_MAX: usize = 800;
/// Markers of postponed work, which belongs in an issue or RFC. Split, because this file obeys the rule too.
const UNFINISHED: [&str; 4] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("for ", "now")];

pub fn sizes(tree: &SourceTree) -> Vec<Violation> {
    let code = tree.files.iter().filter(|file| ["rs", "py", "sh"].iter().any(|e| file.has_extension(e)));
    code.filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > LINES_MAX).then(|| file.violation_in_file(format!("has {lines} lines; cut it below {LINES_MAX}")))
    })
    .collect()
}

pub fn unfinished(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != "LICENSE") {
        for (index, line) in file.text.lines().enumerate() {
            for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
                violations
                    .push(file.violation(index, format!("`{word}`: finish it, or open an issue and say what is")));
            }
        }
    }
    violations
}

pub fn blanks(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                violations.push(file.violation(index, "trailing blanks"));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            violations.push(file.violation_in_file("does not end with a newline"));
        }
    }
    violations
}
