//! Real source trees, and whether two trees are equal.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The sources of crates that cargo has unpacked on this machine, those with the smallest files first, until there are
/// `files` of them; returns paths of directories. If cargo has fewer, the sources of the system fill the rest.
pub fn sources(files: usize) -> Vec<PathBuf> {
    let mut crates: Vec<(u64, usize, PathBuf)> = registry().into_iter().map(|path| weigh(&path)).collect();
    // Sorted by bytes per file: many small files test the metadata best.
    crates.sort();
    let mut fillers =
        ["/usr/include", "/usr/share/doc", "/usr/share/perl", "/usr/lib/python3"].map(PathBuf::from).into_iter();
    let mut found = 0;
    let mut chosen = Vec::new();
    let mut candidates = crates.into_iter();
    while found < files {
        let (_, count, path) = match candidates.next() {
            Some(next) => next,
            None => weigh(&fillers.next().unwrap_or_else(|| panic!("only {found} source files on this machine"))),
        };
        found += count;
        chosen.push(path);
    }
    chosen
}

fn registry() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"))).expect("a home");
    let indexes =
        std::fs::read_dir(home.join("registry/src")).expect("cargo has unpacked this workspace's dependencies");
    let crates = indexes.flatten().filter_map(|index| std::fs::read_dir(index.path()).ok());
    crates.flat_map(|entries| entries.flatten().map(|entry| entry.path())).filter(|path| path.is_dir()).collect()
}

fn weigh(path: &Path) -> (u64, usize, PathBuf) {
    let (mut bytes, mut count) = (0, 0);
    walk(path, &mut |_, metadata| {
        if !metadata.is_dir() {
            bytes += metadata.len();
            count += 1;
        }
    });
    (bytes / (count as u64).max(1), count, path.to_owned())
}

/// The content of a tree: an entry for each name with its kind, permissions, size, time and content.
pub type TreeManifest = BTreeMap<Vec<u8>, TreeEntry>;

#[derive(Clone, PartialEq, Eq)]
pub struct TreeEntry {
    pub mode: u32,
    /// For files; a directory's size depends on the file system.
    pub size: u64,
    /// For files, in whole seconds, because not every tool preserves more.
    pub mtime: i64,
    /// The hash of a file's bytes, or of a symlink's target.
    pub hash: u128,
}

impl std::fmt::Debug for TreeEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:o} {} bytes mtime {} {:032x}", self.mode, self.size, self.mtime, self.hash)
    }
}

/// Reads the whole tree below `root`. `times`: whether to include modification times.
pub fn manifest(root: &Path, times: bool) -> TreeManifest {
    let mut manifest = TreeManifest::new();
    walk(root, &mut |path, metadata| {
        let content = if metadata.is_symlink() {
            std::fs::read_link(path).expect("a symlink has a target").as_os_str().as_bytes().to_vec()
        } else if metadata.is_file() {
            std::fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
        } else {
            Vec::new()
        };
        let file = metadata.is_file();
        let entry = TreeEntry {
            mode: metadata.mode(),
            size: if file { metadata.len() } else { 0 },
            mtime: if file && times { metadata.mtime() } else { 0 },
            hash: xxhash_rust::xxh3::xxh3_128(&content),
        };
        if file {
            assert_eq!(metadata.len(), content.len() as u64, "stat and read disagree on {}", path.display());
        }
        let name = path.strip_prefix(root).expect("below the root").as_os_str().as_bytes().to_vec();
        manifest.insert(name, entry);
    });
    manifest
}

/// # Panics
/// If the manifests differ; shows the first differences.
pub fn assert_equal(what: &str, expected: &TreeManifest, found: &TreeManifest) {
    let show = |name: &[u8], entry: Option<&TreeEntry>| format!("{} {entry:?}", String::from_utf8_lossy(name));
    let names: std::collections::BTreeSet<&Vec<u8>> = expected.keys().chain(found.keys()).collect();
    let different: Vec<String> = names
        .into_iter()
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| format!("expected {}\n   found {}", show(name, expected.get(name)), show(name, found.get(name))))
        .collect();
    let shown = different.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(different.is_empty(), "{what}: {} of {} differ:\n{shown}", different.len(), expected.len());
}

fn walk(directory: &Path, visit: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("cannot list {}: {error}", directory.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("cannot list {}: {error}", directory.display())).path();
        let metadata =
            path.symlink_metadata().unwrap_or_else(|error| panic!("cannot stat {}: {error}", path.display()));
        visit(&path, &metadata);
        if metadata.is_dir() {
            walk(&path, visit);
        }
    }
}
