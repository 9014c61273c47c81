//! Connections whose peer is not authenticated yet.
//!
//! A client authenticates within milliseconds. A peer that does not may be anyone, in any number. So unauthenticated
//! connections have a limit of their own and cannot take the places of clients. When the limit is reached, the oldest
//! unauthenticated connection is closed as soon as it has had the time that a slow machine may need; until then new
//! connections wait in the kernel's queue. One [`Principal`] has a smaller limit: when it is reached, the principal's
//! oldest connection is closed in the same way, and new ones are refused until that connection has had its time.

use super::limits::Principal;
use super::worker::Worker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::clock::Instant;

/// Minimum time that an unauthenticated connection gets to authenticate, however many wait. With this value, a full queue
/// of the kernel (4096 connections) is processed in two seconds, while clients wait ten seconds for a greeting.
const STAY_MIN: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct UnauthenticatedConnections {
    /// The oldest first.
    here: RefCell<VecDeque<PendingConnection>>,
    pending_made: Cell<u64>,
    changed: Notify,
}

struct PendingConnection {
    number: u64,
    principal: Principal,
    at: Instant,
    /// The connection was asked to close.
    leaves: Cell<bool>,
    evicted: Rc<Notify>,
}

impl PendingConnection {
    fn send_away(&self) {
        self.leaves.set(true);
        self.evicted.notify_one();
    }
}

/// Counts an unauthenticated connection until it is authenticated, closed or evicted.
pub struct PendingGuard {
    worker: Rc<Worker>,
    number: u64,
    evicted: Rc<Notify>,
}

impl UnauthenticatedConnections {
    pub fn count(&self) -> usize {
        self.here.borrow().len()
    }

    /// Waits until there is a free place, and evicts a connection if necessary.
    pub async fn room(&self, max: usize, now: impl Fn() -> Instant) {
        loop {
            let changed = self.changed.notified();
            if self.count() < max {
                return;
            }
            let left = self.here.borrow().front().map(|oldest| oldest.at.after(STAY_MIN).since(now()));
            match left {
                Some(left) if !left.is_zero() => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep(left) => {}
                },
                _ => {
                    if let Some(oldest) = self.here.borrow().front() {
                        oldest.send_away();
                    }
                    changed.await;
                }
            }
        }
    }

    /// Counts a new connection of `principal`. `Err` with the limit if the principal has reached it and none of its
    /// connections can be evicted yet.
    pub fn enter(worker: &Rc<Worker>, principal: Principal) -> Result<PendingGuard, usize> {
        let unauthenticated = &worker.unauthenticated;
        let at = worker.shared.clock.monotonic();
        let max = worker.shared.limits.strangers_of_one;
        {
            let here = unauthenticated.here.borrow();
            let alike = || {
                here.iter().filter(|pending_connection| {
                    pending_connection.principal == principal && !pending_connection.leaves.get()
                })
            };
            if alike().count() >= max {
                match alike().next() {
                    Some(oldest) if oldest.at.after(STAY_MIN) <= at => oldest.send_away(),
                    _ => return Err(max),
                }
            }
        }
        let number = unauthenticated.pending_made.get();
        unauthenticated.pending_made.set(number + 1);
        let evicted = Rc::new(Notify::new());
        let (leaves, unreachable) = (Cell::new(false), Rc::clone(&evicted));
        unauthenticated.here.borrow_mut().push_back(PendingConnection {
            number,
            principal,
            at,
            leaves,
            evicted: unreachable,
        });
        Ok(PendingGuard { worker: Rc::clone(worker), number, evicted })
    }
}

impl PendingGuard {
    /// Ready when the connection is evicted.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        let unauthenticated = &self.worker.unauthenticated;
        // The queue is sorted by number.
        let mut here = unauthenticated.here.borrow_mut();
        if let Ok(place) = here.binary_search_by_key(&self.number, |pending_connection| pending_connection.number) {
            here.remove(place);
        }
        drop(here);
        unauthenticated.changed.notify_waiters();
    }
}
