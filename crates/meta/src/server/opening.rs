//! From a worker's shards being closed to all of them being open, and back.
//!
//! A worker listens before its shards are open, for what a crash left in their logs may take seconds to replay. A call
//! for a shard that is not open yet waits for it, and has it opened next; so the first answers come after the replay of
//! one or two logs and not of all. A shard that cannot be opened at the start ends the server: what is damaged is for
//! the administrator to see at once, and not when somebody happens to ask for it.

use super::worker::Worker;
use crate::shards::{HOLD_VALID, Shard, ShardConfig, TableConfig};
use futures::future;
use futures::stream::{self, StreamExt};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use varve_types::{InodeId, ShardId};

/// Shards that one worker opens at a time: while one waits for the store, another uses the processor. With more, one that
/// is asked for would share the processors with those that nobody waits for.
const OPENING_MAX: usize = 2;

/// Shards that one worker closes at a time: mostly waiting for the store.
const CLOSING_MAX: usize = 8;

/// How long a call waits for its shard to be open before it is answered Busy, whereupon the client asks again until its own
/// deadline.
const WANTED_MAX: Duration = Duration::from_secs(5);

/// Between two attempts to open a shard whose store fails.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// The shards that are still to be opened.
#[derive(Default)]
pub struct Opening {
    /// In the order in which they will be.
    waiting: RefCell<VecDeque<ShardId>>,
    under_way: Cell<usize>,
}

impl Opening {
    /// `shards`, but first the one with the root, through which every path leads.
    pub fn of(shards: impl Iterator<Item = ShardId>) -> Opening {
        let opening = Opening { waiting: RefCell::new(shards.collect()), under_way: Cell::new(0) };
        opening.prefer(InodeId::ROOT.shard());
        opening
    }

    /// The shard is asked for: it comes next, if it has not begun.
    fn prefer(&self, shard: ShardId) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(place) = waiting.iter().position(|waits| *waits == shard) {
            waiting.remove(place);
            waiting.push_front(shard);
        }
    }

    fn next(&self) -> Option<ShardId> {
        self.waiting.borrow_mut().pop_front()
    }

    fn give_up(&self) {
        self.waiting.borrow_mut().clear();
    }
}

impl Worker {
    /// Opens all shards; the first failure is told, and no more are begun after it.
    pub(super) async fn open_shards(&self) -> Result<(), String> {
        let lane = || async {
            while let Some(shard) = self.opening.next() {
                let opened = self.open_shard(shard).await;
                if opened.is_err() {
                    self.opening.give_up();
                    return opened;
                }
            }
            Ok(())
        };
        future::join_all((0..OPENING_MAX).map(|_| lane())).await.into_iter().collect()
    }

    async fn open_shard(&self, id: ShardId) -> Result<(), String> {
        self.opening.under_way.set(self.opening.under_way.get() + 1);
        let opened = Shard::open(self.shard_config(id)).await;
        self.opening.under_way.set(self.opening.under_way.get() - 1);
        let opened = opened.map(|shard| self.shards.borrow_mut().insert(id, shard));
        self.changed.notify_waiters();
        opened.map(|_| ()).map_err(|error| format!("shard {id} cannot be opened: {error}"))
    }

    /// Waits until the shard is open, and has it opened next; for ever if it is another worker's.
    pub async fn opened(&self, shard: ShardId) -> Rc<Shard> {
        self.opening.prefer(shard);
        loop {
            let changed = self.changed.notified();
            if let Some(shard) = self.shard(shard) {
                return shard;
            }
            changed.await;
        }
    }

    /// The shard, which is this worker's, when it is open; `None`: not soon.
    pub async fn wanted(&self, shard: ShardId) -> Option<Rc<Shard>> {
        tokio::select! {
            shard = self.opened(shard) => Some(shard),
            () = self.stopping() => None,
            () = tokio::time::sleep(WANTED_MAX) => None,
        }
    }

    /// Opens a shard again whose table has refused a write: nobody knows whether it was written, and opening it answers
    /// that. Until then its calls wait. `failed` may be another call's discovery too.
    pub fn reopen(self: &Rc<Self>, failed: &Rc<Shard>) {
        let id = failed.id();
        let mut shards = self.shards.borrow_mut();
        if !shards.get(&id).is_some_and(|shard| Rc::ptr_eq(shard, failed)) {
            return;
        }
        shards.remove(&id);
        let (worker, failed) = (Rc::clone(self), Rc::clone(failed));
        self.spawn(async move {
            if let Err(error) = failed.close().await {
                tracing::debug!("shard {id} was not closed well: {error}");
            }
            // What it held in memory for others is not relied on any longer than that.
            tokio::time::sleep(HOLD_VALID).await;
            while !worker.is_stopping() {
                match worker.open_shard(id).await {
                    Ok(()) => return tracing::info!("shard {id} is open again"),
                    Err(reason) => tracing::error!("{reason}"),
                }
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
        });
    }

    /// Opens no more, waits for those that are being opened, and closes what is open: all of it even where some fail; the
    /// first failure is told.
    pub(super) async fn close_shards(&self) -> Result<(), String> {
        self.opening.give_up();
        loop {
            let changed = self.changed.notified();
            if self.opening.under_way.get() == 0 {
                break;
            }
            changed.await;
        }
        let shards: Vec<_> = self.shards.borrow().values().cloned().collect();
        let closed = stream::iter(shards).map(|shard| async move {
            let id = shard.id();
            shard.close().await.map_err(|error| format!("shard {id} cannot be closed: {error}"))
        });
        let closed: Vec<_> = closed.buffer_unordered(CLOSING_MAX).collect().await;
        self.shards.borrow_mut().clear();
        closed.into_iter().collect()
    }

    fn shard_config(&self, id: ShardId) -> ShardConfig {
        ShardConfig {
            id,
            settings: self.shared.settings.clone(),
            volume: self.shared.volume.clone(),
            table: TableConfig { shard: id, ..self.tables.table.clone() },
            peers: Rc::clone(&self.peers),
            clock: Arc::clone(&self.shared.clock),
            open_files: self.shared.open_files.clone(),
            cache: Arc::clone(&self.tables.cache),
            names_max: self.tables.names_max,
        }
    }
}
