//! Proves that a registry gives each number to one writer, seen from two sides: two hosts' mounts of a store, or two
//! connections. And measures how long that takes, because a registry that needs longer than a sixth of the lease would
//! let leases run out.

use crate::map::ServerId;
use crate::registry::{Beat, KillReason, Registry, RegistryError, Taken};
use std::time::Duration;
use varve_env::clock::Clock;

/// Number of creates that two writers race in a full proof.
pub const RACES: u64 = 1000;

/// Number of renewals whose time is measured.
const MEASURED: u64 = 20;

/// How often they are measured before the registry counts as slow. A store that is busy for a moment, for example because it
/// writes back, delays one of them, and a single late renewal ends no lease.
const MEASURED_TIMES: u64 = 3;

#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    #[error(
        "two writers both got number {number} of a chain: creates in this store have more than one winner, so servers \
         would take each other's shards. Use etcd (`--registry etcd://HOST:2379`), or another store"
    )]
    TwoWinners { number: u64 },
    #[error("two writers raced for number {number} of a chain, and none of them got it")]
    NoWinner { number: u64 },
    #[error(
        "a renewal took {slowest:?}, and servers with a lease of {lease:?} need it within {limit:?}: give a longer \
         lease (`--lease`), or use etcd (`--registry etcd://HOST:2379`)"
    )]
    Slow { slowest: Duration, lease: Duration, limit: Duration },
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Lets two writers race for `races` numbers. `one` and `other`: the same registry from two sides.
pub async fn race(one: &dyn Registry, other: &dyn Registry, races: u64) -> Result<(), ProbeFailure> {
    let raced = ServerId(varve_env::random::number());
    let result = race_for(one, other, raced, races).await;
    let forgotten = one.forget(raced).await;
    result?;
    Ok(forgotten?)
}

async fn race_for(one: &dyn Registry, other: &dyn Registry, raced: ServerId, races: u64) -> Result<(), ProbeFailure> {
    for number in 1..=races {
        // A renewal and a kill of the same number exclude each other.
        let (renewed, killed) = match number % 2 {
            0 => futures::join!(one.renew(raced, Beat(number)), other.kill(raced, Beat(number), KillReason::Silent)),
            _ => {
                let (killed, renewed) =
                    futures::join!(one.kill(raced, Beat(number), KillReason::Silent), other.renew(raced, Beat(number)));
                (renewed, killed)
            }
        };
        match (renewed?, killed?) {
            (Taken::Ours, Taken::Ours) => return Err(ProbeFailure::TwoWinners { number }),
            (Taken::Others, Taken::Others) => return Err(ProbeFailure::NoWinner { number }),
            _ => {}
        }
    }
    Ok(())
}

/// The longest of some renewals, or an error if it is above a sixth of `lease`, and is so again.
pub async fn measure(registry: &dyn Registry, clock: &dyn Clock, lease: Duration) -> Result<Duration, ProbeFailure> {
    let server = ServerId(varve_env::random::number());
    let measured = measure_for(registry, clock, lease, server).await;
    let forgotten = registry.forget(server).await;
    let slowest = measured?;
    forgotten?;
    Ok(slowest)
}

async fn measure_for(
    registry: &dyn Registry,
    clock: &dyn Clock,
    lease: Duration,
    server: ServerId,
) -> Result<Duration, ProbeFailure> {
    let limit = lease / 6;
    let mut slowest = Duration::ZERO;
    for time in 0..MEASURED_TIMES {
        slowest = Duration::ZERO;
        for number in 1..=MEASURED {
            let begun = clock.monotonic();
            registry.renew(server, Beat(time * MEASURED + number)).await?;
            slowest = slowest.max(clock.monotonic().since(begun));
        }
        if slowest <= limit {
            break;
        }
    }
    if slowest > limit { Err(ProbeFailure::Slow { slowest, lease, limit }) } else { Ok(slowest) }
}
