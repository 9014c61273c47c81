//! The servers of a volume with several servers, for benchmarks, and waiting for their shards.

use crate::{Error, Result, interrupt};
use std::io;
use std::time::{Duration, Instant};

/// More servers than that on one machine measure only its scheduler.
pub const SERVERS_MAX: usize = 64;

/// How long clients may stand still, or servers may take to spread the shards, before a run fails.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(120);
pub(super) const LOOKED_AT_EVERY: Duration = Duration::from_millis(20);

/// The servers of the volume, each a process. They have places with numbers from 0.
pub trait Fleet {
    fn servers(&self) -> usize;

    /// The process numbers of the servers that run.
    fn processes(&self) -> Vec<u32>;

    /// For each shard the place of its owner; `None` while nobody owns it.
    fn owners(&mut self) -> io::Result<Vec<Option<usize>>>;

    /// Ends the process by SIGKILL.
    fn kill(&mut self, place: usize) -> io::Result<()>;

    /// Makes the server give its shards away and leave, and returns when its process has ended.
    fn leave(&mut self, place: usize) -> io::Result<()>;

    /// Starts a new server in a place whose server has ended.
    fn start(&mut self, place: usize) -> io::Result<()>;
}

/// Returns when each server owns its share of the shards.
pub(super) fn wait_until_spread(fleet: &mut dyn Fleet) -> Result<()> {
    let servers = fleet.servers();
    wait_for_owners(fleet, "the shards are spread over the servers", |owners| is_spread(owners, servers))
}

pub(super) fn is_spread(owners: &[Option<usize>], servers: usize) -> bool {
    let mut counts = vec![0; servers];
    for owner in owners {
        match owner {
            Some(owner) => counts[*owner] += 1,
            None => return false,
        }
    }
    let least = owners.len() / servers;
    counts.iter().all(|count| (least..=least + 1).contains(count))
}

pub(super) fn wait_for_owners(
    fleet: &mut dyn Fleet,
    what: &str,
    reached: impl Fn(&[Option<usize>]) -> bool,
) -> Result<()> {
    let end = Instant::now() + WAIT_MAX;
    loop {
        interrupt::check()?;
        let owners = fleet.owners().map_err(Error::io("cannot read the map of the cluster"))?;
        if reached(&owners) {
            return Ok(());
        }
        if Instant::now() > end {
            let source = io::Error::other(format!("not after {} s: {owners:?}", WAIT_MAX.as_secs()));
            return Err(Error::Io { what: format!("waited until {what}"), source });
        }
        std::thread::sleep(LOOKED_AT_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_spread_if_counts_differ_by_one() {
        assert!(is_spread(&[Some(0), Some(1), Some(0)], 2));
        assert!(!is_spread(&[Some(0), Some(0), Some(0)], 2));
        assert!(!is_spread(&[Some(0), Some(1), None], 2));
        assert!(is_spread(&[Some(0), Some(1), Some(2), Some(3)], 4));
    }
}
