//! A server that is about to join finds out whether another one, or the holder of a claim, is alive.

use super::MembershipError;
use crate::claim;
use crate::detector::{Detector, Verdict};
use crate::lease::Lease;
use crate::map::ServerId;
use crate::registry::{Beat, Pulse, Registry, Taken};
use std::time::Duration;
use varve_env::clock::Clock;

/// A server that renews a lease and is no member yet.
pub struct Applicant<'m> {
    pub registry: &'m dyn Registry,
    pub clock: &'m dyn Clock,
    pub server: ServerId,
    pub lease: &'m Lease,
    pub lease_time: Duration,
    /// The last number that it has taken.
    pub beat: Beat,
}

impl Applicant<'_> {
    /// Watches a server or the holder of a claim until it renews, or was silent for long enough while this server renewed
    /// in time. Then ends it. Returns whether it did.
    pub async fn end_if_silent(&mut self, watched: ServerId) -> Result<bool, MembershipError> {
        let mut detector = Detector::new(self.lease_time);
        let first = self.registry.pulse(watched).await?;
        loop {
            let asked = self.clock.monotonic();
            let pulse = self.registry.pulse(watched).await?;
            let ends = match detector.saw(watched, pulse, asked, self.clock.monotonic()) {
                _ if pulse != first && pulse != Pulse::Killed => return Ok(false),
                Verdict::Dead => true,
                Verdict::Silent(beat) if self.lease.is_valid() => match self.registry.kill(watched, beat).await? {
                    Taken::Ours => true,
                    Taken::Others => return Ok(false),
                },
                Verdict::Alive | Verdict::Silent(_) => false,
            };
            if ends {
                tracing::warn!("server {watched} has not renewed its lease and is taken for dead");
                claim::end(self.registry, watched).await?;
                return Ok(true);
            }
            tokio::time::sleep(self.lease_time / 3).await;
            if !self.renew().await? {
                detector.start_again();
            }
        }
    }

    /// Returns whether the lease ran all the time.
    pub async fn renew(&mut self) -> Result<bool, MembershipError> {
        let begun = self.clock.monotonic();
        let next = self.beat.next();
        match self.registry.renew(self.server, next).await? {
            Taken::Others => Err(MembershipError::Killed(self.server)),
            Taken::Ours => {
                self.beat = next;
                Ok(self.lease.renewed(begun, self.lease_time))
            }
        }
    }
}
