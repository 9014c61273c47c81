//! The content of a directory tree, as values.

use crate::disk::journal::{DiskRecord, NodeKind};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something below the directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum DiskItem {
    Directory,
    File { mode: u32, content: Arc<Vec<u8>> },
    Symlink { target: PathBuf },
}

/// Keyed by the path below the directory; a directory precedes its content. Two names of one file count as two files
/// here: no code creates hard links that stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DiskState {
    pub(super) items: BTreeMap<PathBuf, DiskItem>,
}

impl DiskState {
    /// Reads the tree below `root`.
    pub fn read_from(root: &Path) -> io::Result<DiskState> {
        let mut state = DiskState::default();
        state.read_below(root, root)?;
        Ok(state)
    }

    fn read_below(&mut self, root: &Path, directory: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let metadata = path.symlink_metadata()?;
            let kind = metadata.file_type();
            let item = if kind.is_dir() {
                self.read_below(root, &path)?;
                DiskItem::Directory
            } else if kind.is_symlink() {
                DiskItem::Symlink { target: std::fs::read_link(&path)? }
            } else if kind.is_file() {
                let content = Arc::new(std::fs::read(&path)?);
                DiskItem::File { mode: metadata.permissions().mode() & 0o777, content }
            } else {
                // Sockets and the like are not kept on a disk.
                continue;
            };
            let below = path.strip_prefix(root).map_err(io::Error::other)?.to_owned();
            self.items.insert(below, item);
        }
        Ok(())
    }

    /// Writes the whole tree into `root`, which is empty.
    pub fn write_to(&self, root: &Path) -> io::Result<()> {
        for (below, item) in &self.items {
            let path = root.join(below);
            match item {
                DiskItem::Directory => std::fs::create_dir(path)?,
                DiskItem::Symlink { target } => std::os::unix::fs::symlink(target, path)?,
                DiskItem::File { mode, content } => {
                    let mut options = std::fs::OpenOptions::new();
                    let mut file = options.write(true).create_new(true).mode(*mode).open(path)?;
                    io::Write::write_all(&mut file, content)?;
                }
            }
        }
        Ok(())
    }

    /// This state without the empty directories in `directory`.
    pub fn without_empty(mut self, directory: &Path) -> DiskState {
        let paths: Vec<PathBuf> = self.items.keys().filter(|path| path.parent() == Some(directory)).cloned().collect();
        for path in paths {
            let empty = !self.items.keys().any(|other| other != &path && other.starts_with(&path));
            if empty && self.items[&path] == DiskItem::Directory {
                self.items.remove(&path);
            }
        }
        self
    }

    /// Equal states have equal digests, so a caller can skip states that it has already tried.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// The paths at which two states differ, ignoring permissions.
    pub(super) fn difference(&self, other: &DiskState) -> Vec<PathBuf> {
        let content = |item: Option<&DiskItem>| match item {
            Some(DiskItem::File { content, .. }) => Some((true, Some(content.clone()))),
            Some(_) => Some((false, None)),
            None => None,
        };
        let paths = self.items.keys().chain(other.items.keys().filter(|path| !self.items.contains_key(*path)));
        paths.filter(|path| content(self.items.get(*path)) != content(other.items.get(*path))).cloned().collect()
    }

    /// Adds the names to a record.
    pub(super) fn enter(&self, root: &Path, record: &mut DiskRecord) {
        for (below, item) in &self.items {
            let kind = match item {
                DiskItem::Directory => NodeKind::Directory,
                DiskItem::File { mode, .. } => NodeKind::File { mode: *mode },
                DiskItem::Symlink { target } => NodeKind::Symlink { target: target.clone() },
            };
            record.create(&root.join(below), kind);
        }
    }
}
