//! The house rules that a machine can check. Each rule is one function from the tree to complaints; a complaint names
//! the place and says what to do.
//!
//! - [`layers`]: arrows between crates follow the architecture page; SlateDB stays in `meta::shards`, HDF5 in
//!   `detector`.
//! - [`store_access`]: files of a store are opened beneath its directory, never by their whole path.
//! - [`text`]: no overlong files, no unfinished business, no trailing blanks.
//! - [`documents`]: every format names a test that exists; every chore the README names exists.
//! - [`promises`]: `docs/semantics.md` and `tests/promises.toml` name the same promises; every promise has tests that exist.
//! - [`links`]: a relative link of a document leads to a file and a heading that exist.

pub mod documents;
pub mod layers;
pub mod links;
pub mod promises;
pub mod store_access;
pub mod text;
mod tree;

pub use tree::{File, Tree};

use std::fmt;
use std::path::Path;

/// One rule broken at one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// Path from the root of the workspace.
    pub path: String,
    /// Counted from 1; 0 where the whole file is meant.
    pub line: usize,
    pub text: String,
}

impl fmt::Display for Complaint {
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
pub fn check(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let tree = Tree::read(root)?;
    let rules = [
        layers::arrows,
        layers::seams,
        layers::licenses,
        store_access::beneath,
        text::sizes,
        text::unfinished,
        text::blanks,
        promises::promises,
        links::links,
        documents::formats,
        documents::chores,
    ];
    let mut complaints: Vec<Complaint> = rules.iter().flat_map(|rule| rule(&tree)).collect();
    complaints.sort();
    Ok(complaints)
}
