//! The files of the workspace, read once.

use super::Violation;
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::Path;

/// Generated, downloaded or vendored directories, only at the root of the workspace.
const NOT_OURS: [&str; 4] = ["target", "third_party", "venv", ".git"];
/// Files that are read as text; others (golden bytes, pictures) are not read.
const TEXT: [&str; 7] = ["rs", "md", "toml", "py", "sh", "yml", "txt"];
const TEXT_NAMES: [&str; 5] = ["Makefile", "run", "LICENSE", ".gitignore", "mount.fuse.varve"];

pub struct SourceFile {
    /// Path from the root, with `/` as separator.
    pub path: String,
    pub text: String,
}

impl SourceFile {
    pub fn has_extension(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, e)| e == extension)
    }

    /// A violation in one line; `index` counts from 0.
    pub fn violation(&self, index: usize, text: impl Into<String>) -> Violation {
        Violation { path: self.path.clone(), line: index + 1, text: text.into() }
    }

    pub fn violation_in_file(&self, text: impl Into<String>) -> Violation {
        Violation { path: self.path.clone(), line: 0, text: text.into() }
    }
}

pub struct SourceTree {
    /// Sorted by path.
    pub files: Vec<SourceFile>,
    /// Paths from the root of every file and directory, including those that are not text.
    paths: BTreeSet<String>,
}

impl SourceTree {
    /// Reads every text file below `root`.
    ///
    /// # Errors
    /// If a directory or file cannot be read, or a text file is not UTF-8.
    pub fn read(root: &Path) -> anyhow::Result<SourceTree> {
        let mut files = Vec::new();
        let mut paths = BTreeSet::new();
        let mut waiting = vec![root.to_path_buf()];
        while let Some(directory) = waiting.pop() {
            let entries = std::fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
            for entry in entries {
                let entry = entry.with_context(|| format!("reading {}", directory.display()))?;
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                let kind = entry.file_type().with_context(|| format!("looking at {}", path.display()))?;
                if directory == root && NOT_OURS.contains(&name.as_str()) {
                    continue;
                }
                let below = path.strip_prefix(root).expect("walked from the root").to_string_lossy().into_owned();
                if kind.is_file() && is_text(&name) {
                    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                    files.push(SourceFile { path: below.clone(), text });
                }
                paths.insert(below);
                if kind.is_dir() {
                    waiting.push(path);
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(SourceTree { files, paths })
    }

    /// Whether the tree has a file or directory with this path.
    pub fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|index| &self.files[index])
    }

    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a SourceFile> {
        self.files.iter().filter(move |file| file.has_extension(extension))
    }
}

fn is_text(name: &str) -> bool {
    TEXT_NAMES.contains(&name) || name.rsplit_once('.').is_some_and(|(_, extension)| TEXT.contains(&extension))
}
