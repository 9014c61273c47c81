//! Rules of the codebase that a machine can check. Each rule is one function from the tree to violations; a violation
//! names the place and the correction.
//!
//! - [`layers`]: dependencies between crates follow the architecture page; SlateDB stays in `meta::shards`, HDF5 in
//!   the crates of the detector service.
//! - [`store_access`]: files of a store are opened beneath its directory, never by their full path.
//! - [`text`]: no overlong files, no markers of unfinished work, no trailing blanks.
//! - [`language`]: no retired words; no statement begins with a relative clause.
//! - [`documents`]: every format names an existing test; every command that the README names exists.
//! - [`log_messages`]: every message above INFO is in `docs/operate/log-messages.md`.
//! - [`promises`]: `docs/semantics.md` and `tests/promises.toml` name the same promises; every promise has existing
//!   tests.
//! - [`links`]: the target file and heading of a relative link in a document exist.

pub mod documents;
pub mod language;
pub mod layers;
pub mod links;
pub mod log_messages;
pub mod promises;
pub mod store_access;
pub mod text;
mod tree;

pub use tree::{SourceFile, SourceTree};

use std::fmt;
use std::path::Path;

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path from the root of the workspace.
    pub path: String,
    /// Counted from 1; 0 for the whole file.
    pub line: usize,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// Checks every rule on the tree at `root`.
///
/// # Errors
/// If a file of the tree cannot be read.
pub fn check(root: &Path) -> anyhow::Result<Vec<Violation>> {
    let tree = SourceTree::read(root)?;
    let rules = [
        layers::arrows,
        layers::seams,
        layers::licenses,
        store_access::beneath,
        text::sizes,
        text::unfinished,
        text::blanks,
        promises::promises,
        log_messages::documented,
        links::links,
        language::retired_words,
        language::relative_subjects,
        documents::formats,
        documents::chores,
    ];
    let mut violations: Vec<Violation> = rules.iter().flat_map(|rule| rule(&tree)).collect();
    violations.sort();
    Ok(violations)
}
