//! A process that is not in the map, and renews a lease meanwhile, finds out which members and holders of claims are alive.

use super::{EndCause, MembershipError};
use crate::claim;
use crate::detector::{Detector, Verdict};
use crate::lease::Lease;
use crate::map::ServerId;
use crate::registry::{Beat, KillReason, Registry, Taken};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use varve_env::clock::Clock;

/// A server that is about to join, or a command that is about to claim the volume.
pub struct Applicant<'m> {
    pub registry: &'m dyn Registry,
    pub clock: &'m dyn Clock,
    pub server: ServerId,
    pub lease: &'m Lease,
    pub lease_time: Duration,
    /// The last number that it has taken.
    pub beat: &'m AtomicU64,
}

impl Applicant<'_> {
    /// [`Applicant::end_silent`] for one. Returns whether it was dead.
    pub async fn end_if_silent(&self, watched: ServerId, lease: Duration) -> Result<bool, MembershipError> {
        Ok(self.end_silent(&[watched].into(), lease).await?.is_empty())
    }

    /// Watches servers and holders of claims until each has renewed, or was silent for long enough while this process
    /// renewed in time; kills and removes the silent ones. Returns the living ones. A late renewal of this process restarts
    /// the watch, as for a server: the registry may be at fault. `lease`: of the map that names them.
    pub async fn end_silent(
        &self,
        watched: &BTreeSet<ServerId>,
        lease: Duration,
    ) -> Result<BTreeSet<ServerId>, MembershipError> {
        let mut detector = Detector::new(lease);
        let (mut first, mut living, mut open) = (BTreeMap::new(), BTreeSet::new(), watched.clone());
        loop {
            for server in open.clone() {
                let asked = self.clock.monotonic();
                let pulse = self.registry.pulse(server).await?;
                if *first.entry(server).or_insert(pulse) != pulse && !pulse.is_killed() {
                    living.insert(server);
                    open.remove(&server);
                    continue;
                }
                match detector.saw(server, pulse, asked, self.clock.monotonic()) {
                    Verdict::Dead => {}
                    Verdict::Silent(beat) if self.lease.is_valid() => {
                        if self.registry.kill(server, beat, KillReason::Silent).await? == Taken::Others {
                            continue;
                        }
                        tracing::warn!("server {server} has not renewed its lease and is taken for dead");
                    }
                    Verdict::Alive | Verdict::Silent(_) => continue,
                }
                claim::end(self.registry, server).await?;
                open.remove(&server);
            }
            if open.is_empty() {
                return Ok(living);
            }
            tokio::time::sleep(self.lease_time / 6).await;
            if !self.renew().await? {
                detector.start_again();
            }
        }
    }

    /// Returns whether the lease ran all the time.
    pub async fn renew(&self) -> Result<bool, MembershipError> {
        let begun = self.clock.monotonic();
        let next = Beat(self.beat.load(SeqCst)).next();
        if self.registry.renew(self.server, next).await? == Taken::Others {
            self.lease.end();
            return Err(MembershipError::Ended(self.server, EndCause::TakenForDead));
        }
        self.beat.store(next.0, SeqCst);
        Ok(self.lease.renewed(begun, self.lease_time))
    }
}
