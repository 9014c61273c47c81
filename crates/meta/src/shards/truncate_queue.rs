//! Queues of truncates, one per file.

use super::refusal::ShardRefusal;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use tokio::sync::{Mutex, MutexGuard};
use varve_posix::PendingTruncate;
use varve_types::InodeId;

/// The queue of truncates of one file.
#[derive(Default)]
pub(super) struct TruncateQueue {
    turn: Mutex<()>,
    /// Why the last truncate was given up, if it was. The request that decided it may not be the one that tried it, and
    /// it may have replaced another.
    given_up: RefCell<Option<ShardRefusal>>,
}

impl TruncateQueue {
    /// Waits for the turn of a truncate, which lasts until the returned guard is dropped.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub fn note_done(&self) {
        self.given_up.replace(None);
    }

    pub fn note_given_up(&self, refusal: &ShardRefusal) {
        self.given_up.replace(Some(refusal.clone()));
    }

    /// The result of a truncate that the row no longer requires.
    pub fn ended(&self, decided: Option<PendingTruncate>) -> Result<(), ShardRefusal> {
        match &*self.given_up.borrow() {
            Some(refusal) if decided.is_some() => Err(refusal.clone()),
            _ => Ok(()),
        }
    }
}

/// The queues of the files with truncates in progress.
#[derive(Default)]
pub(super) struct TruncateQueues(HashMap<InodeId, Rc<TruncateQueue>>);

impl TruncateQueues {
    pub fn of(&mut self, inode: InodeId) -> Rc<TruncateQueue> {
        self.0.entry(inode).or_default().clone()
    }

    /// To be called when a request needs `queue` no more.
    pub fn leave(&mut self, inode: InodeId, queue: &Rc<TruncateQueue>) {
        // Only this request and the map hold it: no truncate of the file waits or is being given up.
        if Rc::strong_count(queue) == 2 {
            self.0.remove(&inode);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
