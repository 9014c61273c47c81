//! The calls in progress at a shard, counted by caller, so that a handover can wait for their end.

use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::Notify;

/// The caller of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrigin {
    Client,
    /// Another shard.
    Peer,
}

/// Counts the calls in progress at a shard.
#[derive(Default)]
pub(super) struct CallsInProgress {
    of_clients: Cell<usize>,
    of_peers: Cell<usize>,
    /// A handover waits for their end.
    awaited: Cell<bool>,
    ended: Notify,
}

impl CallsInProgress {
    /// Counts a call until the returned value is dropped.
    pub fn begin(self: &Rc<Self>, origin: CallOrigin) -> CallInProgress {
        let count = self.count(origin);
        count.set(count.get() + 1);
        CallInProgress(Rc::clone(self), origin)
    }

    /// Returns when no call of `origin` is in progress.
    pub async fn ended(&self, origin: CallOrigin) {
        self.awaited.set(true);
        loop {
            let ended = self.ended.notified();
            if self.count(origin).get() == 0 {
                break;
            }
            ended.await;
        }
        self.awaited.set(false);
    }

    fn count(&self, origin: CallOrigin) -> &Cell<usize> {
        match origin {
            CallOrigin::Client => &self.of_clients,
            CallOrigin::Peer => &self.of_peers,
        }
    }
}

/// A call in progress at a shard, until dropped.
pub struct CallInProgress(Rc<CallsInProgress>, CallOrigin);

impl Drop for CallInProgress {
    fn drop(&mut self) {
        let CallInProgress(calls, origin) = self;
        let count = calls.count(*origin);
        count.set(count.get() - 1);
        if calls.awaited.get() && count.get() == 0 {
            calls.ended.notify_waiters();
        }
    }
}
