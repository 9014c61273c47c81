//! Files whose row is in this shard and whose number is another shard's, which keeps who has them open
//! ([`super::open_files`]). Usually both are one shard, and nothing here is needed.
//!
//! An open is decided here and registered there, and only then answered. A change that is allowed only if nobody has
//! the file open asks there before it is decided. Between the two:
//!
//! - While an open is being registered, the row is not changed (`must_wait` in `view.rs`). So the other shard knows of the
//!   open before anything can depend on it.
//! - The answer "not open" holds until this shard has registered another open of the file. A decision that finds it
//!   outdated asks again. No other shard can grant an open, because it would need the row.
//! - If the row is at a participant of a cross-shard change, the participant asks, and locks the row in the same step in
//!   which it finds the answer still valid. From then on nobody sees the row.
//! - If a split takes the row away while an open is being registered, the open is answered with `Moved`.
//!
//! This file has the state; `ask_home.rs` asks the other shards.

use super::open_files::{FileUse, Openness};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use varve_env::key_hash::KeyHashing;
use varve_schema::{EntryBody, Key, Row};
use varve_types::InodeId;

/// Registrations and questions of this shard in progress, about files of other shards.
#[derive(Clone, Default)]
pub(super) struct OpensElsewhere(Rc<RefCell<HashMap<InodeId, FileElsewhere, KeyHashing>>>);

#[derive(Default)]
struct FileElsewhere {
    /// Opens that are being registered.
    registering: u32,
    /// Decisions that wait for an answer about the file or rely on one.
    watches: u32,
    /// Changes when an answer is outdated.
    version: u64,
}

impl OpensElsewhere {
    /// Begins to register an open that is decided.
    pub fn grant(&self, used: FileUse) -> Grant {
        self.0.borrow_mut().entry(used.inode).or_default().registering += 1;
        Grant { files: self.clone(), used }
    }

    /// Must be called before the question is sent.
    pub fn watch(&self, inode: InodeId) -> OpennessWatch {
        let mut files = self.0.borrow_mut();
        let file = files.entry(inode).or_default();
        file.watches += 1;
        OpennessWatch { files: self.clone(), inode, version: file.version }
    }

    pub fn is_registering(&self, inode: InodeId) -> bool {
        self.0.borrow().get(&inode).is_some_and(|file| file.registering > 0)
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Answers about the file are outdated.
    pub fn outdate(&self, inode: InodeId) {
        if let Some(file) = self.0.borrow_mut().get_mut(&inode) {
            file.version += 1;
        }
    }

    fn leave(&self, inode: InodeId, leave: impl FnOnce(&mut FileElsewhere)) {
        let mut files = self.0.borrow_mut();
        let Some(file) = files.get_mut(&inode) else { return };
        leave(file);
        if file.registering == 0 && file.watches == 0 {
            files.remove(&inode);
        }
    }
}

/// A decided use of a file that is not registered yet.
pub(super) struct Grant {
    files: OpensElsewhere,
    pub used: FileUse,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.files.leave(self.used.inode, |file| {
            file.registering -= 1;
            file.version += 1;
        });
    }
}

/// Notices whether an answer about a file may be outdated.
pub(super) struct OpennessWatch {
    files: OpensElsewhere,
    inode: InodeId,
    version: u64,
}

impl OpennessWatch {
    pub fn is_valid(&self) -> bool {
        self.files.0.borrow().get(&self.inode).is_some_and(|file| file.version == self.version)
    }
}

impl Drop for OpennessWatch {
    fn drop(&mut self) {
        self.files.leave(self.inode, |file| file.watches -= 1);
    }
}

/// Answers of other shards, for one decision.
#[derive(Default)]
pub(super) struct AskedFiles(Vec<(OpennessWatch, Openness)>);

impl AskedFiles {
    /// Must be called before a question about these files is sent again.
    pub fn forget(&mut self, inodes: &[InodeId]) {
        self.0.retain(|(watch, _)| !inodes.contains(&watch.inode));
    }

    pub fn add(&mut self, answers: impl IntoIterator<Item = (OpennessWatch, Openness)>) {
        self.0.extend(answers);
    }

    /// `None`: the other shard was not asked, or its answer is outdated.
    pub fn openness(&self, inode: InodeId) -> Option<Openness> {
        let answer = self.0.iter().find(|(watch, _)| watch.inode == inode && watch.is_valid());
        answer.map(|(_, openness)| *openness)
    }
}

/// The file whose attributes are in this row.
pub(super) fn file_in(key: &Key, row: &Row) -> Option<InodeId> {
    match (key, row) {
        (Key::Inode(inode), _) => Some(*inode),
        (_, Row::Entry(entry)) if matches!(entry.body, EntryBody::Node(_)) => Some(entry.inode),
        _ => None,
    }
}
