//! Which new files will outgrow their rows: the files of a directory are often alike.
//!
//! The kernel can be given a file's backing file only when the file is opened, and of a new file nobody knows yet whether it
//! will need one. Where the last files that this client has made in a directory all outgrew their rows, the next one is
//! given its backing file from the beginning, and its bytes are not copied through this process. Where the last files that it
//! has made anywhere did, so is the first file of a directory that it makes then, as programs make one for each checkpoint or
//! run. A file for which that was wrong stays in its backing file, which is right, only dearer, and ends the guess for its
//! directory, or for new ones.

use super::content::ContentState;
use super::{OpenInode, backing};
use crate::FileSystem;
use crate::async_ops::waiting;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use varve_env::key_hash::KeyHashing;
use varve_types::{Credentials, InodeId};

/// So many new files of a directory have to outgrow their rows, one after the other, before that is expected of the next: of a
/// directory in which large and small files alternate, nothing is.
const ENOUGH: u8 = 2;

/// Directories of which anything is remembered. When there are more, all is forgotten and learnt anew.
const DIRECTORIES_MAX: usize = 1024;

/// New directories whose first file is waited for. When there are more, all are forgotten.
const NEW_DIRECTORIES_MAX: usize = 64;

/// What the new files of directories have come to.
#[derive(Default)]
pub(crate) struct LargeFilePredictor {
    outgrown: Mutex<Outgrown>,
    /// There are any. Where small files are made, nobody has to ask further.
    any: AtomicBool,
}

/// Files that outgrew their rows.
#[derive(Default)]
struct Outgrown {
    /// How many of a directory since one did not, up to [`ENOUGH`]; never 0.
    there: HashMap<InodeId, u8, KeyHashing>,
    /// The same of all files, wherever they were made.
    anywhere: u8,
    /// Directories that were made while all files outgrew their rows.
    new: HashMap<InodeId, FirstFile, KeyHashing>,
    /// The first file of the last one of those did not outgrow its row, as where programs begin with a small one.
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
    /// Of the file that was just made in `directory`.
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

    /// `directory` was made: nothing is known of its files but what those before it came to.
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

    /// A new file of `directory` has outgrown its row.
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

    /// Or it was closed without having done so.
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
    /// Gives a file that was just made in `directory` its backing file at once, where that is expected of it and the kernel can
    /// be given that. Whether it has one now.
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
        match waiting(self.promote(open, content, 0)).await {
            Ok(()) => open.backing.read().size_stale,
            Err(failure) => {
                tracing::debug!(inode = %open.inode, "a new file stays in its row: {failure}");
                false
            }
        }
    }

    /// Nobody here writes the file any more: what it has come to, if this client has made it.
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

    /// Promise: what several files in a row came to is expected of the next one of that directory, until one is different.
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

    /// Promise: the first file of a new directory is expected to be as the files before it, wherever those were; and those
    /// after it as that was.
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

    /// Promise: one small file ends that for all new directories; and where the first file of one was small, it is not
    /// expected of the next ones until a first file is large.
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

    /// Promise: no more is remembered than the limit.
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
