//! Keeps a worker awake between requests that come one after the other.
//!
//! While nothing else is to be done, a task of the worker looks for the next request, as [`Patience`] allows; each time
//! it yields, the runtime asks the kernel what has come without waiting for it. Without requests there is no vigil.

use std::cell::{Cell, RefCell};
use tokio::sync::Notify;
use varve_world::patience::Patience;

#[derive(Default)]
pub struct Vigil {
    patience: RefCell<Patience>,
    /// Requests that have come, and all that has moved on connections.
    requests: Cell<u64>,
    moves: Cell<u64>,
    kept: Cell<bool>,
    begin: Notify,
}

impl Vigil {
    /// A request has come.
    pub fn came(&self) {
        self.requests.set(self.requests.get() + 1);
        self.moved();
        if !self.kept.get() && self.patience.borrow_mut().look().is_some() {
            self.kept.set(true);
            self.begin.notify_one();
        }
    }

    /// Something that the next request may wait for has been done.
    pub fn moved(&self) {
        self.moves.set(self.moves.get() + 1);
    }

    /// Keeps vigils for as long as the worker lives.
    pub async fn keep(&self) {
        loop {
            self.begin.notified().await;
            self.look().await;
            self.kept.set(false);
        }
    }

    async fn look(&self) {
        let mut requests = self.requests.get();
        loop {
            let Some(look) = self.patience.borrow_mut().look() else { return };
            let moves = self.moves.get();
            loop {
                tokio::task::yield_now().await;
                if self.moves.get() != moves {
                    break;
                }
                if !look.again() {
                    self.patience.borrow_mut().failed();
                    return;
                }
            }
            if self.requests.get() != requests {
                requests = self.requests.get();
                self.patience.borrow_mut().succeeded();
            }
        }
    }
}
