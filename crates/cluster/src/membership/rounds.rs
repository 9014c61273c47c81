//! The standing duties of a member: it renews its lease, watches others, and follows the map.

use super::{Membership, Standing, leave};
use crate::detector::{Detector, Verdict};
use crate::map::{ClusterMap, ServerId};
use crate::registry::Taken;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::Instant;

/// Pause after a call that the registry did not answer.
const TRIED_AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Membership {
    /// Returns when the server was killed. To leave, drop the future and call [`leave`].
    pub async fn run(mut self) {
        let lease_time = self.lease_time;
        let late = Cell::new(0u64);
        let beat = &mut self.beat;
        let rounds = Rounds {
            registry: &self.registry,
            clock: &self.clock,
            server: self.server,
            lease: &self.lease,
            lease_time,
            standing: &self.standing,
            late: &late,
        };
        let detector = RefCell::new(Detector::new(lease_time));
        tokio::select! {
            () = rounds.renew(beat) => {}
            () = rounds.watch(&detector) => {}
            () = rounds.follow() => {}
        }
        self.lease.end();
        self.standing.send_replace(Standing::Killed);
    }
}

struct Rounds<'m> {
    registry: &'m Arc<dyn crate::registry::Registry>,
    clock: &'m Arc<dyn varve_env::clock::Clock>,
    server: ServerId,
    lease: &'m crate::lease::Lease,
    lease_time: Duration,
    standing: &'m tokio::sync::watch::Sender<Standing>,
    /// Number of renewals that were late.
    late: &'m Cell<u64>,
}

impl Rounds<'_> {
    fn every(&self) -> Duration {
        self.lease_time / 3
    }

    fn map(&self) -> Option<Arc<ClusterMap>> {
        match &*self.standing.borrow() {
            Standing::Member(map) => Some(Arc::clone(map)),
            Standing::Killed => None,
        }
    }

    /// Renews the lease. Returns when the server was killed.
    async fn renew(&self, beat: &mut crate::registry::Beat) {
        // The first renewal belongs to the join.
        let mut begun = self.clock.monotonic();
        loop {
            self.sleep_until(begun.after(self.every())).await;
            begun = self.clock.monotonic();
            match self.registry.renew(self.server, beat.next()).await {
                Ok(Taken::Ours) => {
                    *beat = beat.next();
                    if !self.lease.renewed(begun, self.lease_time) {
                        tracing::warn!(
                            "server {}: the lease was renewed late; it did not answer in between",
                            self.server
                        );
                        self.late.set(self.late.get() + 1);
                    }
                }
                Ok(Taken::Others) => {
                    tracing::error!(
                        "server {} was taken for dead by another server and owns no shard now",
                        self.server
                    );
                    return;
                }
                Err(error) => {
                    tracing::warn!("server {} cannot renew its lease: {error}", self.server);
                    tokio::time::sleep(TRIED_AGAIN_AFTER.min(self.every())).await;
                }
            }
        }
    }

    async fn sleep_until(&self, at: Instant) {
        tokio::time::sleep(at.since(self.clock.monotonic())).await;
    }

    /// Looks at the members that this one watches, and kills those that are silent. Never returns.
    async fn watch(&self, detector: &RefCell<Detector>) {
        let mut late = self.late.get();
        loop {
            tokio::time::sleep(self.every()).await;
            let Some(map) = self.map() else { continue };
            let is_ours = |server: &&ServerId| map.watchers(**server).contains(&self.server);
            let watched: BTreeSet<_> = map.members.keys().filter(is_ours).copied().collect();
            detector.borrow_mut().watch(&watched);
            for server in watched {
                if self.late.get() != late || !self.lease.is_valid() {
                    late = self.late.get();
                    detector.borrow_mut().start_again();
                    break;
                }
                self.look_at(server, detector).await;
            }
        }
    }

    async fn look_at(&self, server: ServerId, detector: &RefCell<Detector>) {
        let asked = self.clock.monotonic();
        let killed = match self.registry.pulse(server).await {
            Ok(pulse) => {
                let verdict = detector.borrow_mut().saw(server, pulse, asked, self.clock.monotonic());
                match verdict {
                    Verdict::Alive => false,
                    Verdict::Dead => true,
                    // A late renewal of this server may have begun since.
                    Verdict::Silent(_) if !self.lease.is_valid() => false,
                    Verdict::Silent(beat) => self.kill(server, beat).await,
                }
            }
            Err(error) => {
                tracing::warn!("cannot look whether server {server} is alive: {error}");
                false
            }
        };
        if killed && let Err(error) = leave(&**self.registry, server).await {
            tracing::warn!("cannot remove the dead server {server} from the map, and will try again: {error}");
        }
    }

    async fn kill(&self, server: ServerId, beat: crate::registry::Beat) -> bool {
        match self.registry.kill(server, beat).await {
            Ok(Taken::Ours) => {
                tracing::warn!("server {server} has not renewed its lease and is taken for dead");
                true
            }
            // It has renewed after all.
            Ok(Taken::Others) => false,
            Err(error) => {
                tracing::warn!("cannot take the silent server {server} for dead: {error}");
                false
            }
        }
    }

    /// Follows the map. Returns when this server is no longer in it.
    async fn follow(&self) {
        loop {
            let known = self.map().map_or(0, |map| map.version);
            match self.registry.later_map(known, self.every()).await {
                Ok(Some(map)) if map.members.contains_key(&self.server) => {
                    self.standing.send_replace(Standing::Member(Arc::new(map)));
                }
                Ok(Some(_)) => {
                    tracing::error!("server {} was removed from the cluster by another server", self.server);
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("cannot read the cluster's map: {error}");
                    tokio::time::sleep(TRIED_AGAIN_AFTER.min(self.every())).await;
                }
            }
        }
    }
}
