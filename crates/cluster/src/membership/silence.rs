//! A server that is about to join finds out whether a member that is in its way is alive.

use super::{MembershipError, leave};
use crate::detector::{Detector, Verdict};
use crate::lease::Lease;
use crate::map::{MapRefusal, ServerId};
use crate::registry::{Beat, Pulse, Registry, Taken};
use std::collections::BTreeMap;
use std::time::Duration;
use varve_env::clock::Clock;

/// A server that has a lease and is no member yet.
pub struct Applicant<'m> {
    pub registry: &'m dyn Registry,
    pub clock: &'m dyn Clock,
    pub server: ServerId,
    pub lease: &'m Lease,
    pub lease_time: Duration,
}

impl Applicant<'_> {
    /// Removes the member `blocking` if it is dead, and others that are: they have not renewed for a lease and a tenth while
    /// this server renewed in time, or somebody killed them. `false`: `blocking` has renewed.
    pub async fn remove_silent(&self, blocking: ServerId, beat: &mut Beat) -> Result<bool, MembershipError> {
        let mut detector = Detector::new(self.lease_time);
        let map = self.registry.newest_map().await?.ok_or(MapRefusal::NotAMember(blocking))?;
        let mut first = BTreeMap::new();
        for member in map.members.keys() {
            first.insert(*member, self.registry.pulse(*member).await?);
        }
        let mut dead = Vec::new();
        while !dead.contains(&blocking) {
            for (member, first) in &first {
                let asked = self.clock.monotonic();
                let pulse = self.registry.pulse(*member).await?;
                if *member == blocking && pulse != *first && pulse != Pulse::Killed {
                    return Ok(false);
                }
                match detector.saw(*member, pulse, asked, self.clock.monotonic()) {
                    Verdict::Dead => dead.push(*member),
                    Verdict::Silent(next) if self.lease.is_valid() => {
                        if self.registry.kill(*member, next).await? == Taken::Ours {
                            tracing::warn!("server {member} has not renewed its lease and is taken for dead");
                            dead.push(*member);
                        }
                    }
                    Verdict::Alive | Verdict::Silent(_) => {}
                }
            }
            if !self.renew_after_pause(beat).await? {
                detector.start_again();
            }
        }
        for member in dead {
            leave(self.registry, member).await?;
        }
        Ok(true)
    }

    /// Whether the lease ran all the time.
    async fn renew_after_pause(&self, beat: &mut Beat) -> Result<bool, MembershipError> {
        tokio::time::sleep(self.lease_time / 3).await;
        let begun = self.clock.monotonic();
        match self.registry.renew(self.server, beat.next()).await? {
            Taken::Others => Err(MembershipError::Killed(self.server)),
            Taken::Ours => {
                *beat = beat.next();
                Ok(self.lease.renewed(begun, self.lease_time))
            }
        }
    }
}
