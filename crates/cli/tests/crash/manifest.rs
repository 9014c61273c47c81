//! The changes acknowledged to writers, kept outside the volume, and the valid operations on them.

use std::collections::{BTreeMap, BTreeSet};
use varve_env::random::Seeded;

/// With more names than this in one directory, later operations meet earlier files. It is a few times the split
/// threshold of the suite's volumes.
const NAMES: usize = 90;
/// Maximum number of files of one writer: every file is read after every kill.
const FILES_MAX: usize = 150;
const DIRECTORIES_MAX: usize = 6;
/// Mode of new files; no common umask removes any of its bits.
pub const MODE: u32 = 0o600;
/// From empty over inline to backing files (the inline limit of these volumes is 4 KiB).
const SIZES: [usize; 6] = [0, 1, 700, 4096, 4097, 60_000];

/// A number of random bytes, or zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentPiece {
    pub seed: Option<u64>,
    pub length: usize,
}

impl ContentPiece {
    fn chance(random: &mut Seeded, length: usize) -> ContentPiece {
        ContentPiece { seed: Some(random.number()), length }
    }

    pub fn bytes(&self) -> Vec<u8> {
        match self.seed {
            Some(seed) => Seeded::new(seed).bytes(self.length),
            None => vec![0; self.length],
        }
    }
}

/// The expected state of a file. Two names of one file share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedContent {
    pub pieces: Vec<ContentPiece>,
    pub mode: u32,
    /// Seconds, if it was set and no write changed it since.
    pub mtime: Option<i64>,
    /// The one extended attribute that the suite sets.
    pub xattr: Option<Vec<u8>>,
}

impl ExpectedContent {
    pub fn bytes(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(ContentPiece::bytes).collect()
    }

    fn length(&self) -> usize {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    fn truncate(&mut self, length: usize) {
        let mut left = length;
        self.pieces.retain_mut(|piece| {
            piece.length = piece.length.min(left);
            left -= piece.length;
            piece.length > 0
        });
        if left > 0 {
            self.pieces.push(ContentPiece { seed: None, length: left });
        }
    }
}

/// The changes acknowledged to one writer: names to files, files to contents. Names are paths below the writer's
/// directory.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    pub names: BTreeMap<String, u64>,
    pub files: BTreeMap<u64, ExpectedContent>,
    pub directories: BTreeSet<String>,
    next_directory: u64,
}

#[derive(Clone, Debug)]
pub enum FileOperation {
    /// Makes or replaces a file: writes it under the name and closes it; `sync`: with an fsync before the close.
    Write {
        name: String,
        piece: ContentPiece,
        sync: bool,
    },
    /// Opens a file, appends to it, and closes it; `sync`: with an fsync before the close.
    Append {
        name: String,
        piece: ContentPiece,
        sync: bool,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
    Chmod {
        name: String,
        mode: u32,
    },
    SetTime {
        name: String,
        seconds: i64,
    },
    SetXattr {
        name: String,
        value: Vec<u8>,
    },
    RemoveXattr {
        name: String,
    },
    Truncate {
        name: String,
        length: usize,
    },
    MakeDirectory {
        name: String,
    },
    MoveDirectory {
        from: String,
        to: String,
    },
    RemoveDirectory {
        name: String,
    },
}

impl FileOperation {
    /// The name of the file whose bytes it writes.
    pub fn writes(&self) -> Option<&str> {
        match self {
            FileOperation::Write { name, .. } | FileOperation::Append { name, .. } => Some(name),
            _ => None,
        }
    }
}

fn pick<'a, T>(random: &mut Seeded, mut all: impl ExactSizeIterator<Item = &'a T>) -> Option<&'a T> {
    if all.len() == 0 { None } else { all.nth(random.below(all.len())) }
}

impl Manifest {
    /// Chooses an operation that is valid in the present state.
    pub fn choose(&self, random: &mut Seeded) -> FileOperation {
        let unused = self.fresh(random);
        let Some(name) = pick(random, self.names.keys().collect::<Vec<_>>().iter()).map(|name| (*name).clone()) else {
            return self.write(unused, random);
        };
        if self.names.len() >= FILES_MAX {
            return FileOperation::Unlink { name };
        }
        match random.below(32) {
            0..=10 => self.write(unused, random),
            11 | 12 => {
                let length = SIZES[random.below(SIZES.len())];
                FileOperation::Append { name, piece: ContentPiece::chance(random, length), sync: random.below(2) == 0 }
            }
            13..=16 => FileOperation::Rename { from: name, to: unused },
            17 | 18 if !self.names.contains_key(&unused) => FileOperation::Link { from: name, to: unused },
            19 if self.names.contains_key(&unused) => FileOperation::Exchange { one: name, other: unused },
            19..=21 => FileOperation::Unlink { name },
            22 => FileOperation::Chmod { name, mode: 0o600 + random.below(0o100) as u32 },
            23 => FileOperation::SetTime { name, seconds: random.below(2_000_000_000) as i64 },
            24 => {
                let length = 1 + random.below(300);
                FileOperation::SetXattr { name, value: random.bytes(length) }
            }
            25 if self.files[&self.names[&name]].xattr.is_some() => FileOperation::RemoveXattr { name },
            25 | 26 => FileOperation::Truncate { name, length: SIZES[random.below(SIZES.len())] },
            _ => self.of_directories(random).unwrap_or(FileOperation::Unlink { name }),
        }
    }

    fn of_directories(&self, random: &mut Seeded) -> Option<FileOperation> {
        let fresh = format!("d{}", self.next_directory);
        let empty = |name: &String| !self.inside(name).any(|_| true);
        let name = pick(random, self.directories.iter());
        match random.below(4) {
            0 => {
                // A directory must be empty before it can be removed, so this removes one of its files.
                let name = name?;
                let inside = self.names.keys().find(|file| is_inside(file, name));
                Some(match inside {
                    Some(file) => FileOperation::Unlink { name: file.clone() },
                    None if empty(name) => FileOperation::RemoveDirectory { name: name.clone() },
                    None => return None,
                })
            }
            1 => {
                let name = name?;
                let parent = pick(random, self.directories.iter()).filter(|p| *p != name && !is_inside(p, name));
                let to = parent.map_or(fresh.clone(), |parent| format!("{parent}/{fresh}"));
                Some(FileOperation::MoveDirectory { from: name.clone(), to })
            }
            _ if self.directories.len() < DIRECTORIES_MAX => {
                let parent = name.filter(|_| random.below(2) == 0);
                Some(FileOperation::MakeDirectory { name: parent.map_or(fresh.clone(), |p| format!("{p}/{fresh}")) })
            }
            _ => self
                .directories
                .iter()
                .find(|name| empty(name))
                .map(|n| FileOperation::RemoveDirectory { name: n.clone() }),
        }
    }

    /// A name in some directory, whether it exists or not.
    fn fresh(&self, random: &mut Seeded) -> String {
        let name = format!("f{}", random.below(NAMES));
        match pick(random, self.directories.iter()).filter(|_| random.below(2) == 0) {
            Some(directory) => format!("{directory}/{name}"),
            None => name,
        }
    }

    fn inside<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a String> {
        self.names.keys().chain(&self.directories).filter(move |name| is_inside(name, directory))
    }

    fn write(&self, name: String, random: &mut Seeded) -> FileOperation {
        let length = SIZES[random.below(SIZES.len())];
        FileOperation::Write { name, piece: ContentPiece::chance(random, length), sync: random.below(4) == 0 }
    }

    fn file(&mut self, name: &str) -> &mut ExpectedContent {
        self.files.get_mut(&self.names[name]).expect("a name's file")
    }

    /// Applies an acknowledged operation.
    pub fn apply(&mut self, operation: &FileOperation) {
        match operation {
            FileOperation::Write { name, piece, .. } => {
                let next = self.files.keys().last().map_or(0, |last| last + 1);
                let file = *self.names.entry(name.clone()).or_insert(next);
                let new = ExpectedContent { pieces: Vec::new(), mode: MODE, mtime: None, xattr: None };
                let content = self.files.entry(file).or_insert(new);
                content.pieces = vec![piece.clone()];
                content.mtime = None;
            }
            FileOperation::Append { name, piece, .. } => {
                let content = self.file(name);
                content.pieces.push(piece.clone());
                // An empty append changes nothing.
                content.mtime = content.mtime.filter(|_| piece.length == 0);
            }
            FileOperation::Rename { from, to } => {
                // If both names belong to one file, rename(2) does nothing.
                if self.names.get(from) != self.names.get(to) {
                    let file = self.names.remove(from).expect("chosen among the names");
                    self.names.insert(to.clone(), file);
                }
            }
            FileOperation::Exchange { one, other } => {
                let (first, second) = (self.names[one], self.names[other]);
                self.names.insert(one.clone(), second);
                self.names.insert(other.clone(), first);
            }
            FileOperation::Link { from, to } => {
                self.names.insert(to.clone(), self.names[from]);
            }
            FileOperation::Unlink { name } => {
                self.names.remove(name);
            }
            FileOperation::Chmod { name, mode } => self.file(name).mode = *mode,
            FileOperation::SetTime { name, seconds } => self.file(name).mtime = Some(*seconds),
            FileOperation::SetXattr { name, value } => self.file(name).xattr = Some(value.clone()),
            FileOperation::RemoveXattr { name } => self.file(name).xattr = None,
            FileOperation::Truncate { name, length } => {
                let content = self.file(name);
                // truncate(2) to the same length may set the time or not.
                content.mtime = None;
                if content.length() != *length {
                    content.truncate(*length);
                }
            }
            FileOperation::MakeDirectory { name } => {
                self.directories.insert(name.clone());
                self.next_directory += 1;
            }
            FileOperation::MoveDirectory { from, to } => self.move_directory(from, to),
            FileOperation::RemoveDirectory { name } => {
                self.directories.remove(name);
            }
        }
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }

    fn move_directory(&mut self, from: &str, to: &str) {
        let moved = |name: &String| match name.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => name.clone(),
        };
        self.names = self.names.iter().map(|(name, file)| (moved(name), *file)).collect();
        self.directories = self.directories.iter().map(moved).collect();
        self.next_directory += 1;
    }

    /// Removes a file and all its names from the manifest; returns the names.
    pub fn forget(&mut self, name: &str) -> Vec<String> {
        let Some(file) = self.names.get(name).copied() else { return Vec::new() };
        let names = self.names.iter().filter(|(_, other)| **other == file).map(|(name, _)| name.clone()).collect();
        self.names.retain(|_, other| *other != file);
        self.files.remove(&file);
        names
    }
}

fn is_inside(name: &str, directory: &str) -> bool {
    name.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}
