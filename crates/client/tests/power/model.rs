//! The state after each action of a run, and the states that may be found after a power failure.

use super::steps::Path;
use std::collections::BTreeMap;
use varve_env::power_loss::History;
use varve_types::InodeId;

pub const INLINE_LIMIT: usize = 4096;

// Marks: the number of an action plus its state.
pub const BEGUN: u64 = 1000;
pub const SYNCED: u64 = 2000;

/// Numbers of actions at a point. Actions in one shard that were synced are completely there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletedActions {
    pub synced: usize,
    pub begun: usize,
}

impl CompletedActions {
    pub fn at(history: &History, point: usize) -> CompletedActions {
        let mut done = CompletedActions { synced: 0, begun: 0 };
        for mark in history.marks(point) {
            let number = (mark % 1000) as usize;
            match mark - mark % 1000 {
                BEGUN => done.begun = number,
                _ => done.synced = number,
            }
        }
        done
    }
}

#[derive(Clone, Default)]
struct ModelFile {
    /// Its contents, each with the action after which it had it.
    versions: Vec<(usize, Vec<u8>)>,
    /// Actions that have synced it.
    synced: Vec<usize>,
    /// The first action after which its content is in a backing file.
    large_from: Option<usize>,
}

type Names = BTreeMap<Path, usize>;

#[derive(Clone)]
pub struct FileModel {
    /// The names after each action, starting with none: numbers of files.
    names: Vec<Names>,
    files: Vec<ModelFile>,
    /// Actions that have synced everything.
    synced: Vec<usize>,
    /// The volume has one log, so names are there in the order in which they were made.
    pub one_order: bool,
}

/// The inode and content found under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContent {
    pub inode: InodeId,
    pub content: Vec<u8>,
}

impl FileModel {
    pub fn new(one_order: bool) -> FileModel {
        FileModel { names: vec![Names::new()], files: Vec::new(), synced: vec![0], one_order }
    }

    pub fn file_at(&self, path: Path) -> Option<usize> {
        self.names.last().and_then(|names| names.get(&path)).copied()
    }

    pub fn content(&self, file: usize) -> &[u8] {
        self.files[file].versions.last().map_or(&[], |(_, content)| content)
    }

    /// The action that is done next.
    pub fn next(&self) -> usize {
        self.names.len()
    }

    // The effects of actions; each function ends one action.

    pub fn nothing(&mut self) {
        self.rename(|_| {});
    }

    pub fn rename(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.names.last().cloned().unwrap_or_default();
        change(&mut names);
        self.names.push(names);
    }

    pub fn create(&mut self, path: Path) {
        let (action, file) = (self.next(), self.files.len());
        self.files.push(ModelFile { versions: vec![(action, Vec::new())], ..ModelFile::default() });
        self.rename(|names| _ = names.insert(path, file));
    }

    pub fn set_content(&mut self, file: usize, content: Vec<u8>) {
        let action = self.next();
        let file = &mut self.files[file];
        if content.len() > INLINE_LIMIT {
            file.large_from.get_or_insert(action);
        }
        file.versions.push((action, content));
        self.nothing();
    }

    pub fn sync(&mut self, file: Option<usize>) {
        let action = self.next();
        match file {
            Some(file) => self.files[file].synced.push(action),
            None => {
                self.synced.push(action);
                self.files.iter_mut().for_each(|file| file.synced.push(action));
            }
        }
        self.nothing();
    }

    // The states that may be found.

    /// The reason why `found` cannot be the state after the actions `done`; `None` if it can.
    pub fn objection(&self, found: &BTreeMap<Path, FoundContent>, done: CompletedActions) -> Option<String> {
        if self.one_order {
            let objections = (done.synced..=done.begun).map(|action| self.objection_to_prefix(found, action, done));
            let objections: Option<Vec<String>> = objections.collect();
            return objections.map(|all| format!("it is the tree after no prefix of the actions: {all:#?}"));
        }
        Path::ALL.iter().find_map(|path| self.objection_to_name(*path, found.get(path), done))
    }

    fn objection_to_prefix(
        &self,
        found: &BTreeMap<Path, FoundContent>,
        action: usize,
        done: CompletedActions,
    ) -> Option<String> {
        let names = self.names.get(action).unwrap_or_else(|| &self.names[self.names.len() - 1]);
        if names.keys().ne(found.keys()) {
            return Some(format!("action {action}: names {:?}, found {:?}", names.keys(), found.keys()));
        }
        for (path, file) in names {
            let twins = names.iter().filter(|(_, other)| *other == file).map(|(twin, _)| twin);
            for twin in twins {
                if found[twin].inode != found[path].inode {
                    return Some(format!("action {action}: {path:?} and {twin:?} are two files"));
                }
            }
            if let Some(objection) = self.objection_to_content(*file, action..=action, &found[path].content, done) {
                return Some(format!("action {action}: {path:?}: {objection}"));
            }
        }
        None
    }

    fn objection_to_name(&self, path: Path, found: Option<&FoundContent>, done: CompletedActions) -> Option<String> {
        let everything = self.synced.iter().rfind(|action| **action <= done.synced).copied().unwrap_or(0);
        let named = |action: &usize| {
            self.names[*action].get(&path).is_some_and(|file| self.files[*file].synced.contains(action))
        };
        let from = (everything..=done.synced).rfind(named).unwrap_or(everything);
        let until = done.begun.min(self.names.len() - 1);
        let mut objections = Vec::new();
        for action in from..=until {
            let objection = match (self.names[action].get(&path), found) {
                (None, None) => None,
                (None, Some(_)) => Some("there is no such name".to_owned()),
                (Some(_), None) => Some("it is missing".to_owned()),
                (Some(file), Some(found)) => {
                    let synced = self.synced_at(*file, done);
                    self.objection_to_content(*file, synced..=until, &found.content, done)
                }
            };
            objections.push(format!("action {action}: {path:?}: {}", objection?));
        }
        Some(format!("{objections:#?}"))
    }

    fn synced_at(&self, file: usize, done: CompletedActions) -> usize {
        self.files[file].synced.iter().rfind(|action| **action <= done.synced).copied().unwrap_or(0)
    }

    /// `rows`: the actions whose version of the row may have survived.
    fn objection_to_content(
        &self,
        file: usize,
        mut rows: std::ops::RangeInclusive<usize>,
        content: &[u8],
        done: CompletedActions,
    ) -> Option<String> {
        let number = file;
        let file = &self.files[file];
        let after = |action: usize| {
            let version = file.versions.iter().rfind(|(at, _)| *at <= action);
            version.map_or(&[][..], |(_, content)| content)
        };
        let is_large = |action| file.large_from.is_some_and(|from| from <= action);
        if rows.any(|action| is_large(action) || after(action) == content) {
            // The content is as a row says, or as pages of the backing file may be.
            let synced = self.synced_at(number, done);
            let versions: Vec<&[u8]> = (synced..=done.begun).map(after).collect();
            return objection_to_bytes(&versions, content);
        }
        Some(format!("{} bytes that the row did not have", content.len()))
    }
}

/// Each byte must be one that some version had there, or zero where a version had ended before.
fn objection_to_bytes(versions: &[&[u8]], content: &[u8]) -> Option<String> {
    if !versions.iter().any(|version| version.len() == content.len()) {
        let sizes: Vec<usize> = versions.iter().map(|version| version.len()).collect();
        return Some(format!("{} bytes, and it had {sizes:?}", content.len()));
    }
    let wrong = content.iter().enumerate().find(|(at, byte)| {
        !versions.iter().any(|version| version.get(*at).map_or(**byte == 0, |known| known == *byte))
    });
    wrong.map(|(at, byte)| format!("byte {at} is {byte:#x}, which it never was"))
}
