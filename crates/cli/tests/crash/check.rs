//! A writer: performs operations and records them in its manifest, then compares the volume with it.

use super::frontend::{FoundFile, Frontend, Stopped};
use super::manifest::{ExpectedContent, FileOperation, Manifest};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// One writer's directory, with its manifest.
pub struct ManifestWriter {
    pub name: String,
    frontend: Box<dyn Frontend>,
    random: varve_env::random::Seeded,
    manifest: Manifest,
    /// The operation that was in progress when a process died.
    pub unanswered: Option<FileOperation>,
    pub acknowledged: u64,
}

impl fmt::Debug for ManifestWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not answered {:?}", self.name, self.unanswered)
    }
}

impl ManifestWriter {
    pub fn new(name: String, frontend: Box<dyn Frontend>, seed: u64) -> ManifestWriter {
        let random = varve_env::random::Seeded::new(seed);
        ManifestWriter { name, frontend, random, manifest: Manifest::default(), unanswered: None, acknowledged: 0 }
    }

    pub fn files(&self) -> usize {
        self.manifest.files.len()
    }

    /// Works until it is stopped, or until its process is dead.
    pub fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let operation = self.manifest.choose(&mut self.random);
            match self.frontend.perform(&operation) {
                Ok(()) => self.acknowledge(&operation),
                Err(Stopped { error, synced }) if is_death(&error) => {
                    if synced {
                        self.acknowledge(&operation);
                    } else {
                        self.unanswered = Some(operation);
                    }
                    return;
                }
                Err(Stopped { error, .. }) => panic!("{}: {operation:?}: {error}", self.name),
            }
        }
    }

    fn acknowledge(&mut self, operation: &FileOperation) {
        self.manifest.apply(operation);
        self.acknowledged += 1;
    }

    /// Compares the volume with the manifest. For an operation without a reply, the manifest then takes over the
    /// volume's state.
    pub fn check(&mut self, when: &str) {
        let tree =
            VolumeTree::read(self.frontend.as_ref()).unwrap_or_else(|error| panic!("{when}: {}: {error}", self.name));
        let unlike_before = tree.differences(&self.manifest, None);
        let Some(operation) = self.unanswered.take() else {
            assert!(unlike_before.is_empty(), "{when}: {}: {}", self.name, unlike_before.join("\n"));
            return;
        };
        if unlike_before.is_empty() {
            return;
        }
        let mut after = self.manifest.clone();
        after.apply(&operation);
        let partial = operation.writes().map(|name| Partial::new(name, &operation, &self.manifest, &after));
        let unlike_after = tree.differences(&after, partial.as_ref());
        assert!(
            unlike_after.is_empty(),
            "{when}: {}: after {operation:?}, which was not answered, the volume is neither as before:\n{}\nnor as \
             after:\n{}",
            self.name,
            unlike_before.join("\n"),
            unlike_after.join("\n")
        );
        self.manifest = after;
        if let Some(name) = operation.writes() {
            self.forget(name);
        }
    }

    /// Removes a file whose content was acknowledged only in part.
    fn forget(&mut self, name: &str) {
        for name in self.manifest.forget(name) {
            match self.frontend.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{}: {name}: {error}", self.name),
                _ => {}
            }
        }
    }
}

/// Whether the error is one that a dead mount returns.
fn is_death(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO | libc::EINTR))
}

/// The allowed content of a file after an interrupted write: the old content, and some of the written bytes.
struct Partial {
    file: u64,
    before: Option<Vec<u8>>,
    after: Vec<u8>,
    appends: bool,
}

impl Partial {
    fn new(name: &str, operation: &FileOperation, before: &Manifest, after: &Manifest) -> Partial {
        let bytes = |manifest: &Manifest| manifest.names.get(name).map(|file| manifest.files[file].bytes());
        Partial {
            file: after.names[name],
            before: bytes(before),
            after: bytes(after).expect("the operation makes it"),
            appends: matches!(operation, FileOperation::Append { .. }),
        }
    }

    fn allows(&self, found: &[u8]) -> bool {
        let least = if self.appends { self.before.as_ref().map_or(0, Vec::len) } else { 0 };
        self.before.as_deref() == Some(found) || (found.len() >= least && self.after.starts_with(found))
    }
}

/// A writer's directory as it is on the volume.
struct VolumeTree {
    files: BTreeMap<String, FoundFile>,
    directories: BTreeSet<String>,
}

impl VolumeTree {
    fn read(frontend: &dyn Frontend) -> io::Result<VolumeTree> {
        let mut tree = VolumeTree { files: BTreeMap::new(), directories: BTreeSet::new() };
        let mut waiting = vec![String::new()];
        while let Some(directory) = waiting.pop() {
            let within = |error: io::Error| io::Error::new(error.kind(), format!("listing {directory:?}: {error}"));
            for name in frontend.list(&directory).map_err(within)? {
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                let within =
                    |error: io::Error| io::Error::new(error.kind(), format!("{path:?} is listed, but: {error}"));
                let found = frontend.look(&path).map_err(within)?;
                if found.directory {
                    tree.directories.insert(path.clone());
                    waiting.push(path);
                } else if tree.files.insert(path.clone(), found).is_some() {
                    return Err(io::Error::other(format!("{path:?} is listed twice")));
                }
            }
        }
        Ok(tree)
    }

    /// The differences between the volume and the manifest, except those that `partial` allows.
    fn differences(&self, manifest: &Manifest, partial: Option<&Partial>) -> Vec<String> {
        let mut differences = Vec::new();
        for (name, file) in &manifest.names {
            let content = &manifest.files[file];
            let links = manifest.names.values().filter(|other| *other == file).count() as u64;
            match (self.files.get(name), partial) {
                (None, Some(partial)) if partial.file == *file && partial.before.is_none() => {}
                (None, _) => differences.push(format!("{name} is lost")),
                (Some(found), Some(partial)) if partial.file == *file => {
                    if !partial.allows(&found.bytes) {
                        differences.push(format!("{name} has {} bytes that nobody wrote", found.bytes.len()));
                    }
                }
                (Some(found), _) => differences.extend(unlike(name, found, content, links)),
            }
        }
        let unknown = self.files.keys().filter(|name| !manifest.names.contains_key(*name));
        differences.extend(unknown.map(|name| format!("{name} should not be there")));
        if self.directories != manifest.directories {
            differences.push(format!("directories are {:?}, not {:?}", self.directories, manifest.directories));
        }
        differences
    }
}

fn unlike(name: &str, found: &FoundFile, content: &ExpectedContent, links: u64) -> Vec<String> {
    let mut differences = Vec::new();
    if found.bytes != content.bytes() {
        differences.push(format!("{name} has {} other bytes than {:?}", found.bytes.len(), content.pieces));
    }
    if (found.mode, found.nlink) != (content.mode, links) {
        let (mode, nlink) = (found.mode, found.nlink);
        differences.push(format!("{name} has mode {mode:o} and {nlink} links, not {:o} and {links}", content.mode));
    }
    if content.mtime.is_some_and(|mtime| mtime != found.mtime) {
        differences.push(format!("{name} has mtime {}, not {:?}", found.mtime, content.mtime));
    }
    if found.xattr != content.xattr {
        differences.push(format!("{name} has the attribute {:?}, not {:?}", found.xattr, content.xattr));
    }
    differences
}
