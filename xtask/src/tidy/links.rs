//! Checks that links between documents have targets.

use super::{SourceFile, SourceTree, Violation};
use std::collections::BTreeSet;

/// A relative link in a Markdown file, `[text](path#heading)`, refers to an existing file or directory of the tree and,
/// in a Markdown file, to an existing heading.
pub fn links(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.with_extension("md") {
        for (line, target) in targets(file) {
            if let Some(why) = dangling(tree, file, target) {
                violations.push(file.violation(line, why));
            }
        }
    }
    violations
}

/// Line and target of each inline link outside of code.
fn targets(file: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    let text = file.text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    text.flat_map(|(index, line)| {
        let starts = line.match_indices("](");
        let quoted = |at: usize| line[..at].matches('`').count() % 2 == 1;
        starts.filter(move |(at, _)| !quoted(*at)).filter_map(move |(at, mark)| {
            let (target, _) = line[at + mark.len()..].split_once(')')?;
            Some((index, target.split_whitespace().next()?))
        })
    })
}

/// The reason why a link of `file` has no target; `None` if it has one or points outside of the tree.
fn dangling(tree: &SourceTree, file: &SourceFile, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = resolve(&file.path, path) else {
        return Some(format!("the link `{target}` leads out of the tree"));
    };
    if !path.is_empty() && !tree.has(&path) {
        return Some(format!("the link `{target}` leads to `{path}`, which does not exist"));
    }
    let linked = tree.file(&path).filter(|linked| linked.has_extension("md"))?;
    (!heading.is_empty() && !headings(linked).contains(heading))
        .then(|| format!("the link `{target}` names a heading that `{path}` does not have"))
}

/// The path from the root to the target of `link` in the document `from`; `None` if it is above the root.
fn resolve(from: &str, link: &str) -> Option<String> {
    if link.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchors that a Markdown renderer gives to headings: in lower case, without punctuation, blanks replaced by
/// hyphens, with `-1` for the second of the same name.
fn headings(file: &SourceFile) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut code = false;
    for line in file.text.lines() {
        code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|each| each.is_alphanumeric() || [' ', '-', '_'].contains(each));
        let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let mut again = 0;
        let mut unique = anchor.clone();
        while !anchors.insert(unique.clone()) {
            again += 1;
            unique = format!("{anchor}-{again}");
        }
    }
    anchors
}
