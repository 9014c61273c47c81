//! Predicts which new files will outgrow their rows: the files of a directory are often alike.
//!
//! The kernel can be given a backing file only when the file is opened, and a new file does not show whether it will
//! need one. If the last files that this client made in a directory all outgrew their rows, the next one gets its
//! backing file at creation, and its bytes are not copied through this process. If the last files that it made anywhere
//! did, the first file of a newly made directory also gets one, because programs make one directory for each checkpoint
//! or run. A file that was predicted wrongly stays in its backing file, which is correct but more expensive. It ends
//! the prediction for its directory, or for new ones.

use super::content::ContentState;
use super::{OpenInode, backing};
use crate::FileSystem;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use varve_env::key_hash::KeyHashing;
use varve_types::{Credentials, InodeId};

/// Number of consecutive new files of a directory that must outgrow their rows before the next one is predicted large.
/// In a directory where large and small files alternate, none is.
const ENOUGH: u8 = 2;

/// Directories with remembered state. When there are more, all is forgotten and learnt anew.
const DIRECTORIES_MAX: usize = 1024;

/// New directories whose first file is awaited. When there are more, all are forgotten.
const NEW_DIRECTORIES_MAX: usize = 64;

/// The history of the new files of directories.
#[derive(Default)]
pub(crate) struct LargeFilePredictor {
    outgrown: Mutex<Outgrown>,
    /// Whether `outgrown` has any entry. Where only small files are made, this avoids the lock.
    any: AtomicBool,
}

/// Files that outgrew their rows.
#[derive(Default)]
struct Outgrown {
    /// Number per directory since a file stayed small, up to [`ENOUGH`]; never 0.
    there: HashMap<InodeId, u8, KeyHashing>,
    /// The same number for all files, wherever they were made.
    anywhere: u8,
    /// Directories that were made while all files outgrew their rows.
    new: HashMap<InodeId, FirstFile, KeyHashing>,
    /// The first file of the last of those directories did not outgrow its row, as when programs begin with a small
    /// one.
    firsts_are_small: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum FirstFile {
    Awaited,
    Made,
}

impl Outgrown {
    fn count(&mut self, directory: InodeId, files: u8) {
        if self.there.len() >= DIRECTORIES_MAX && !self.there.contains_key(&directory) {
            self.there.clear();
        }
        let counted = self.there.entry(directory).or_insert(0);
        *counted = (*counted + files).min(ENOUGH);
    }
}

impl LargeFilePredictor {
    /// Whether the file that was just made in `directory` is predicted large.
    pub fn expects_large(&self, directory: InodeId) -> bool {
        if !self.any.load(Relaxed) {
            return false;
        }
        let mut outgrown = self.outgrown.lock();
        if outgrown.there.get(&directory).is_some_and(|files| *files >= ENOUGH) {
            return true;
        }
        let first = outgrown
            .new
            .get_mut(&directory)
            .is_some_and(|first| std::mem::replace(first, FirstFile::Made) == FirstFile::Awaited);
        first && !outgrown.firsts_are_small
    }

    /// Records that `directory` was made: only the history of other directories predicts its files.
    pub fn made(&self, directory: InodeId) {
        if self.any.load(Relaxed) {
            let mut outgrown = self.outgrown.lock();
            if outgrown.anywhere >= ENOUGH {
                if outgrown.new.len() >= NEW_DIRECTORIES_MAX {
                    outgrown.new.clear();
                }
                outgrown.new.insert(directory, FirstFile::Awaited);
            }
        }
    }

    /// Records that a new file of `directory` has outgrown its row.
    pub fn outgrew(&self, directory: InodeId) {
        let mut outgrown = self.outgrown.lock();
        let first = outgrown.new.remove(&directory).is_some();
        if first {
            outgrown.firsts_are_small = false;
        }
        outgrown.count(directory, if first { ENOUGH } else { 1 });
        outgrown.anywhere = (outgrown.anywhere + 1).min(ENOUGH);
        self.any.store(true, Relaxed);
    }

    /// Records that a new file of `directory` was closed without outgrowing its row.
    pub fn stayed_small(&self, directory: InodeId) {
        if self.any.load(Relaxed) {
            let mut outgrown = self.outgrown.lock();
            outgrown.firsts_are_small |= outgrown.new.contains_key(&directory);
            outgrown.new.clear();
            outgrown.anywhere = 0;
            outgrown.there.remove(&directory);
            self.any.store(!outgrown.there.is_empty(), Relaxed);
        }
    }
}

impl FileSystem {
    /// Gives a file that was just made in `directory` its backing file at once, if it is predicted large and the kernel
    /// can be given that file. Returns whether it has one now.
    pub(super) async fn outgrows_early(
        &self,
        caller: &Credentials,
        open: &OpenInode,
        content: &mut ContentState,
        directory: InodeId,
    ) -> bool {
        if !self.offers_passthrough() || !self.files.prediction.expects_large(directory) {
            return false;
        }
        content.writer = caller.clone();
        match self.promote(open, content, 0).await {
            Ok(()) => open.backing.read().size_stale,
            Err(failure) => {
                tracing::debug!(inode = %open.inode, "a new file stays in its row: {failure}");
                false
            }
        }
    }

    /// Called when this client has no writer of the file left: records its final size, if this client made it.
    pub(super) fn has_grown(&self, open: &OpenInode) {
        let Some(directory) = open.growing_in.lock().take() else { return };
        let size = open.file().map(|file| backing::stat(&file)).transpose();
        match size {
            Ok(Some(stat)) if stat.size > self.files.inline_limit() as u64 => self.files.prediction.outgrew(directory),
            _ => self.files.prediction.stayed_small(directory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the size class of several consecutive files predicts that of the next one of the directory, until one
    /// differs.
    #[test]
    fn prediction_follows_files_of_the_directory() {
        let prediction = LargeFilePredictor::default();
        let (here, there) = (InodeId(7), InodeId(8));
        prediction.stayed_small(here);
        for _ in 0..3 {
            prediction.outgrew(here);
            assert!(!prediction.expects_large(here), "one is not enough");
            prediction.outgrew(here);
            prediction.outgrew(here);
            assert!(prediction.expects_large(here) && !prediction.expects_large(there));
            prediction.stayed_small(here);
            assert!(!prediction.expects_large(here));
        }
    }

    /// Promise: the first file of a new directory is predicted like the files before it, wherever those were; later
    /// files follow the first.
    #[test]
    fn new_directory_inherits_the_prediction() {
        let prediction = LargeFilePredictor::default();
        let [here, there, early, next] = [1, 2, 3, 4].map(InodeId);
        prediction.outgrew(here);
        prediction.made(early);
        prediction.outgrew(there);
        assert!(!prediction.expects_large(early), "it was made after one");
        prediction.made(next);
        assert!(prediction.expects_large(next));
        assert!(!prediction.expects_large(next), "nobody knows yet what the first one comes to");
        prediction.outgrew(next);
        assert!(prediction.expects_large(next) && prediction.expects_large(next));
    }

    /// Promise: one small file ends the prediction for all new directories. If the first file of one was small, the
    /// first files of the next ones are not predicted large until a first file is large.
    #[test]
    fn small_file_resets_prediction_for_new_directories() {
        let prediction = LargeFilePredictor::default();
        let [here, other, first, second, third, fourth] = [1, 2, 3, 4, 5, 6].map(InodeId);
        let large = || (0..2).for_each(|_| prediction.outgrew(here));
        large();
        prediction.made(first);
        prediction.stayed_small(other);
        assert!(!prediction.expects_large(first), "a small file elsewhere");
        large();
        prediction.made(second);
        assert!(prediction.expects_large(second));
        prediction.stayed_small(second);
        large();
        prediction.made(third);
        assert!(!prediction.expects_large(third), "programs begin with a small one");
        prediction.outgrew(third);
        prediction.made(fourth);
        assert!(prediction.expects_large(fourth));
    }

    /// Promise: the memory is bounded by the limits.
    #[test]
    fn prediction_memory_is_bounded() {
        let prediction = LargeFilePredictor::default();
        for _ in 0..2 {
            (0..3 * DIRECTORIES_MAX as u64).for_each(|at| prediction.outgrew(InodeId(at)));
            (0..3 * DIRECTORIES_MAX as u64).for_each(|at| prediction.made(InodeId(at)));
        }
        let outgrown = prediction.outgrown.lock();
        assert!(outgrown.there.len() <= DIRECTORIES_MAX && outgrown.new.len() <= NEW_DIRECTORIES_MAX);
    }
}
