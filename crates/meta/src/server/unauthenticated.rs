//! Connections on which nobody has proved yet who comes.
//!
//! A client does that within milliseconds; who does not may be anyone, in any number. So they have room of their own, and
//! cannot take that of clients. When it is full, the oldest unauthenticated connection goes as soon as it has had the
//! time that a slow machine may need, and those who come meanwhile wait in the kernel's queue. One [`Principal`] may
//! have fewer: at its limit the oldest of its own goes in the same way, and until that one has had its time the next is turned away.

use super::limits::Principal;
use super::worker::Worker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::clock::Instant;

/// What an unauthenticated connection has to say who it is, however many wait. With this, a queue of
/// [`super::listener::BACKLOG`] is worked off in two seconds, and clients wait ten for a greeting.
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
    /// It was told to go.
    leaves: Cell<bool>,
    evicted: Rc<Notify>,
}

impl PendingConnection {
    fn send_away(&self) {
        self.leaves.set(true);
        self.evicted.notify_one();
    }
}

/// An unauthenticated connection's stay: until it is known, goes or is sent away.
pub struct PendingGuard {
    worker: Rc<Worker>,
    number: u64,
    evicted: Rc<Notify>,
}

impl UnauthenticatedConnections {
    pub fn count(&self) -> usize {
        self.here.borrow().len()
    }

    /// Waits until there is room for one more, and makes it if need be.
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

    /// `Err`: as many of `principal` are here as may be, none of them for long.
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
    /// Ready when others need the room.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        let unauthenticated = &self.worker.unauthenticated;
        // They are in the order of their numbers.
        let mut here = unauthenticated.here.borrow_mut();
        if let Ok(place) = here.binary_search_by_key(&self.number, |pending_connection| pending_connection.number) {
            here.remove(place);
        }
        drop(here);
        unauthenticated.changed.notify_waiters();
    }
}
