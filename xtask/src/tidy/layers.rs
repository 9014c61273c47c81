//! Layering: dependencies between crates, modules that alone may use a library, licences.

use super::{SourceFile, SourceTree, Violation};
use std::collections::{BTreeMap, BTreeSet};

const ARCHITECTURE: &str = "docs/internals/architecture.md";
const PREFIX: &str = "varve-";

/// Libraries that only one module may use: the word as it appears in code and manifests, and the paths that may contain
/// it.
const SEAMS: [(&str, &[&str]); 7] = [
    ("slatedb", &["crates/store/"]),
    ("hdf5_reader", &["crates/detector-file/", "crates/detector-tools/", "crates/detector-writer/"]),
    ("fuser", &["crates/fuse/", "crates/bench/"]),
    ("libloading", &["crates/detector-filters/"]),
    ("roxmltree", &["crates/detector-dataset/"]),
    ("subtle", &["crates/detector-stream/"]),
    ("tokio_rustls", &["crates/cluster/", "crates/detector-stream/"]),
];

/// Dependencies between crates match the code map in docs/internals/architecture.md. Dependencies of tests are
/// unrestricted.
pub fn arrows(tree: &SourceTree) -> Vec<Violation> {
    let Some(architecture) = tree.file(ARCHITECTURE) else {
        return vec![Violation { path: ARCHITECTURE.into(), line: 0, text: "is missing".into() }];
    };
    let map = code_map(&architecture.text);
    let mut violations = Vec::new();
    for manifest in manifests(tree) {
        let Some(name) = manifest.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let Some(allowed) = map.get(name) else {
            violations
                .push(manifest.violation_in_file(format!("crate `{name}` is not in the code map of {ARCHITECTURE}")));
            continue;
        };
        if allowed.contains("all") {
            continue;
        }
        let known = match dependencies(manifest) {
            Ok(known) => known,
            Err(violation) => {
                violations.push(violation);
                continue;
            }
        };
        for dependency in known.iter().filter_map(|name| name.strip_prefix(PREFIX)) {
            if !allowed.contains(dependency) {
                violations.push(manifest.violation_in_file(format!(
                    "`{name}` must not know `{dependency}`: the code map of {ARCHITECTURE} has no such arrow"
                )));
            }
        }
    }
    violations
}

/// A restricted library is mentioned only by its module.
pub fn seams(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (library, rooms) in SEAMS {
        for file in tree.files.iter().filter(|file| file.path.starts_with("crates/")) {
            if rooms.iter().any(|room| file.path.starts_with(room)) {
                continue;
            }
            let named = |line: &str| -> bool {
                if file.path.ends_with("Cargo.toml") {
                    line.trim_start().replace('-', "_").starts_with(library)
                } else {
                    file.has_extension("rs")
                        && (line.contains(&format!("{library}::")) || line.contains(&format!("use {library}")))
                }
            };
            for (index, _) in file.text.lines().enumerate().filter(|(_, line)| named(line)) {
                violations.push(file.violation(index, format!("only {} may know `{library}`", rooms[0])));
            }
        }
    }
    violations
}

/// Every crate has the workspace's licence, and the licence text exists.
pub fn licenses(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    match tree.file("LICENSE") {
        Some(license) if license.text.contains("Apache License") => {}
        _ => violations.push(Violation {
            path: "LICENSE".into(),
            line: 0,
            text: "must hold the text of the Apache License 2.0".into(),
        }),
    }
    for manifest in manifests(tree) {
        let inherits = manifest.text.lines().any(|line| line.trim() == "license.workspace = true");
        let states = manifest.path == "Cargo.toml" && manifest.text.contains("license = \"Apache-2.0\"");
        if !inherits && !states {
            violations.push(manifest.violation_in_file("must say `license.workspace = true`"));
        }
    }
    violations
}

fn manifests(tree: &SourceTree) -> impl Iterator<Item = &SourceFile> {
    tree.files.iter().filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml"))
}

/// Maps each crate to the crates that it may depend on, from the table `| Crate | Holds | Knows |`.
fn code_map(architecture: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let rows =
        architecture.lines().skip_while(|line| !line.starts_with("| Crate |")).take_while(|l| l.starts_with('|'));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells.first()?.trim_matches('`').strip_prefix("crates/")?;
        Some((name, cells.last()?.split(',').map(str::trim).collect()))
    })
    .collect()
}

fn dependencies(manifest: &SourceFile) -> Result<Vec<String>, Violation> {
    let table: toml::Table =
        manifest.text.parse().map_err(|error| manifest.violation_in_file(format!("is not TOML: {error}")))?;
    let names = ["dependencies", "build-dependencies"]
        .iter()
        .filter_map(|section| table.get(*section)?.as_table())
        .flat_map(|section| section.keys().cloned());
    Ok(names.collect())
}
