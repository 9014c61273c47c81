//! The connections to one worker that have nothing under way.

use super::super::connection::{Reach, ServerConnection};
use parking_lot::Mutex;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::{WorkerAddress, WorkerPlace};

/// Kept at most: as many as there are asynchronous operations under way at a time, and a bound on the server's
/// descriptors.
const KEPT_MAX: usize = 64;

/// Kept when they are of no use: as many threads as a mount has.
const KEPT_UNUSED: usize = 8;

/// One that was of no use for so long is surplus: a crowd has gone.
const SURPLUS_AFTER: Duration = Duration::from_secs(10);

pub(super) struct Pool {
    pub place: WorkerPlace,
    pub address: WorkerAddress,
    pub reach: Reach,
    idle: Mutex<Idle<ServerConnection>>,
}

struct Idle<C> {
    /// Last used last.
    connections: Vec<C>,
    /// So few there have been at some time since `since`: as many, the first ones, were of no use.
    fewest: usize,
    since: Instant,
}

impl Pool {
    pub fn new(place: WorkerPlace, address: WorkerAddress, reach: Reach, now: Instant) -> Pool {
        Pool { place, address, reach, idle: Mutex::new(Idle::new(now)) }
    }

    /// A pool to the same worker without connections.
    pub fn emptied(&self, now: Instant) -> Pool {
        Pool::new(self.place, self.address.clone(), self.reach, now)
    }

    pub fn take(&self) -> Option<ServerConnection> {
        self.idle.lock().take()
    }

    /// `connection` has nothing under way.
    pub fn give_back(&self, connection: ServerConnection) {
        self.idle.lock().give_back(connection);
    }

    pub fn close_surplus(&self, now: Instant) {
        let surplus = self.idle.lock().surplus(now);
        drop(surplus);
    }
}

impl<C> Idle<C> {
    fn new(now: Instant) -> Idle<C> {
        Idle { connections: Vec::new(), fewest: 0, since: now }
    }

    fn take(&mut self) -> Option<C> {
        let taken = self.connections.pop();
        self.fewest = self.fewest.min(self.connections.len());
        taken
    }

    fn give_back(&mut self, connection: C) {
        if self.connections.len() < KEPT_MAX {
            self.connections.push(connection);
        }
    }

    /// Takes out what was of no use since this was asked last, if that is long enough ago.
    fn surplus(&mut self, now: Instant) -> Vec<C> {
        if now.since(self.since) < SURPLUS_AFTER {
            return Vec::new();
        }
        let surplus = self.fewest.min(self.connections.len().saturating_sub(KEPT_UNUSED));
        let taken = self.connections.drain(..surplus).collect();
        (self.fewest, self.since) = (self.connections.len(), now);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_env::clock::{Clock, RealClock};

    /// Promise: what a crowd needed is closed when it has gone, the longest unused first, and what is in use is not.
    #[test]
    fn unused_connections_are_surplus() {
        let begun = RealClock::new().monotonic();
        let after = |turns| begun.after(turns * SURPLUS_AFTER);
        let mut idle = Idle::new(begun);
        (0..100).for_each(|connection| idle.give_back(connection));
        assert_eq!(idle.connections.len(), KEPT_MAX);
        assert_eq!(idle.surplus(after(1)), [0; 0], "all were in use");
        let used: Vec<_> = (0..20).filter_map(|_| idle.take()).collect();
        used.into_iter().rev().for_each(|connection| idle.give_back(connection));
        assert_eq!(idle.surplus(after(1)), [0; 0], "a moment later");
        assert_eq!(idle.surplus(after(2)), (0..KEPT_MAX - 20).collect::<Vec<_>>());
        assert_eq!(idle.surplus(after(3)).len(), 20 - KEPT_UNUSED);
        assert_eq!(idle.surplus(after(4)), [0; 0]);
        assert_eq!(idle.take(), Some(KEPT_MAX - 1), "last used first used");
    }
}
