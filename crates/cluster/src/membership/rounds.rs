//! The standing duties of a member: it renews its lease, watches others, and follows the map.

use super::{EndCause, Membership, MembershipError, Standing, leave};
use crate::detector::{Detector, Verdict};
use crate::map::{ClusterMap, ServerId};
use crate::registry::{Beat, KillReason, Pulse, RegistryError, Taken};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::rate_limited_log::RateLimitedLog;

/// Pause after a call that the registry did not answer.
const TRIED_AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Membership {
    /// Returns when the server is no member any more. To leave, drop the future and call [`leave`].
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
            failures: RateLimitedLog::default(),
        };
        let detector = RefCell::new(Detector::new(lease_time));
        let cause = tokio::select! {
            cause = rounds.renew(beat) => cause,
            cause = rounds.watch(&detector) => match cause {},
            cause = rounds.follow() => cause,
        };
        self.lease.end();
        tracing::error!("{}", MembershipError::Ended(self.server, cause.clone()));
        self.standing.send_replace(Standing::Ended(cause));
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
    failures: RateLimitedLog<Failing>,
}

/// A call that fails again and again while the registry does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Failing {
    Renewal,
    Look(ServerId),
    Kill(ServerId),
    Removal(ServerId),
    Map,
}

impl Rounds<'_> {
    fn every(&self) -> Duration {
        self.lease_time / 3
    }

    fn map(&self) -> Option<Arc<ClusterMap>> {
        match &*self.standing.borrow() {
            Standing::Member(map) => Some(Arc::clone(map)),
            Standing::Ended(_) => None,
        }
    }

    /// Logs a failure, unless the same was logged a moment ago.
    fn warn(&self, failing: Failing, what: fmt::Arguments<'_>, error: &dyn fmt::Display) {
        if let Some(suppressed) = self.failures.due(failing, self.clock.monotonic()) {
            tracing::warn!("{what}: {error}{suppressed}");
        }
    }

    /// Renews the lease. Returns when the server cannot renew any more.
    async fn renew(&self, beat: &mut Beat) -> EndCause {
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
                Ok(Taken::Others) => return self.cause_of_refusal(*beat).await,
                Err(error) => {
                    self.warn(Failing::Renewal, format_args!("server {} cannot renew its lease", self.server), &error);
                    tokio::time::sleep(TRIED_AGAIN_AFTER.min(self.every())).await;
                }
            }
        }
    }

    /// Why the number after `beat` is not this server's.
    async fn cause_of_refusal(&self, beat: Beat) -> EndCause {
        match self.registry.pulse(self.server).await {
            Ok(Pulse::Killed(KillReason::Evicted)) => EndCause::Evicted,
            Ok(Pulse::Beats(newest)) if newest < beat => EndCause::RegistryLost(format!(
                "the registry has lost the renewals of this server: number {} was there, and the newest is {}; stop all \
                 servers of the volume, then start them again",
                beat.0, newest.0
            )),
            _ => EndCause::TakenForDead,
        }
    }

    async fn sleep_until(&self, at: Instant) {
        tokio::time::sleep(at.since(self.clock.monotonic())).await;
    }

    /// Looks at the members that this one watches, and kills those that are silent.
    async fn watch(&self, detector: &RefCell<Detector>) -> Infallible {
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
                self.warn(Failing::Look(server), format_args!("cannot look whether server {server} is alive"), &error);
                false
            }
        };
        if killed && let Err(error) = leave(&**self.registry, server).await {
            let what = format_args!("cannot remove the dead server {server} from the map, and will try again");
            self.warn(Failing::Removal(server), what, &error);
        }
    }

    async fn kill(&self, server: ServerId, beat: Beat) -> bool {
        match self.registry.kill(server, beat, KillReason::Silent).await {
            Ok(Taken::Ours) => {
                tracing::warn!("server {server} has not renewed its lease and is taken for dead");
                true
            }
            // It has renewed after all.
            Ok(Taken::Others) => false,
            Err(error) => {
                let what = format_args!("cannot take the silent server {server} for dead");
                self.warn(Failing::Kill(server), what, &error);
                false
            }
        }
    }

    /// Follows the map. Returns when this server is no longer in it, or the registry has lost it.
    async fn follow(&self) -> EndCause {
        // A network file system may show an old listing for a moment.
        let mut lost_since = None;
        loop {
            let known = self.map().map_or(0, |map| map.version);
            match self.registry.later_map(known, self.every()).await {
                Ok(Some(map)) if map.members.contains_key(&self.server) => {
                    lost_since = None;
                    self.standing.send_replace(Standing::Member(Arc::new(map)));
                }
                Ok(Some(_)) => return self.cause_of_removal().await,
                Ok(None) => lost_since = None,
                Err(error) => {
                    let now = self.clock.monotonic();
                    match error {
                        RegistryError::Lost { .. } => {
                            let since = *lost_since.get_or_insert(now);
                            if now.since(since) > self.lease_time {
                                return EndCause::RegistryLost(error.to_string());
                            }
                        }
                        _ => lost_since = None,
                    }
                    self.warn(Failing::Map, format_args!("cannot read the cluster's map"), &error);
                    tokio::time::sleep(TRIED_AGAIN_AFTER.min(self.every())).await;
                }
            }
        }
    }

    /// Why the map does not name this server.
    async fn cause_of_removal(&self) -> EndCause {
        match self.registry.pulse(self.server).await {
            Ok(Pulse::Killed(KillReason::Evicted)) => EndCause::Evicted,
            Ok(Pulse::Killed(KillReason::Silent)) => EndCause::TakenForDead,
            _ => EndCause::Removed,
        }
    }
}
