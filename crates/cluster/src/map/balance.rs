//! Spreads the shards over the members: evenly, adjacent shards at different members, with few moves.
//!
//! The partitions of a split directory are in adjacent shards, so the directory spreads over all members.

use super::{ClusterMap, ServerId};
use std::collections::BTreeMap;
use varve_types::ShardId;

/// A shard that its owner gives to another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    pub shard: ShardId,
    pub from: ServerId,
    pub to: ServerId,
}

/// The moves that balance the map. Every member computes the same ones and carries out those of its own shards. First come
/// those that an administrator asked for. None if the map is balanced: the members' numbers of shards differ by one at most,
/// or an administrator has moved shards since the members changed; and draining members have none.
pub fn handovers(map: &ClusterMap) -> Vec<Handover> {
    let mut planned = map.clone();
    let mut moves = Vec::new();
    while let Some(handover) = planned.next_handover() {
        let worker = planned.worker_for(handover.shard, handover.to);
        planned.give(handover.shard, handover.to, worker);
        moves.push(handover);
    }
    moves
}

impl ClusterMap {
    /// Gives shards without an owner to the active members that have the fewest.
    pub(super) fn assign_free_shards(&mut self) {
        let free: Vec<_> = (0..self.shards.len())
            .filter(|shard| self.shards[*shard].owner.is_none())
            .map(|s| ShardId(s as u16))
            .collect();
        for shard in free {
            let mut counts = self.counts();
            let few = counts.values().copied().min().unwrap_or(0);
            // One above the fewest is balanced too, if that keeps adjacent shards apart.
            counts.retain(|_, count| *count <= few + 1);
            let best = counts.iter().min_by_key(|(server, count)| (self.touching(shard, **server), **count, **server));
            if let Some(server) = best.map(|(server, _)| *server) {
                self.give(shard, server, self.worker_for(shard, server));
            }
        }
    }

    fn next_handover(&self) -> Option<Handover> {
        let wanted = self.pins.iter().find_map(|(shard, to)| {
            let from = self.shards.get(usize::from(*shard))?.owner?;
            (from != *to && self.members.contains_key(to)).then_some(Handover { shard: ShardId(*shard), from, to: *to })
        });
        if wanted.is_some() {
            return wanted;
        }
        let counts = self.counts();
        let (to, few) =
            counts.iter().map(|(server, count)| (*server, *count)).min_by_key(|(server, count)| (*count, *server))?;
        let draining = self
            .members
            .keys()
            .find(|server| !counts.contains_key(server) && self.shards_of(**server).next().is_some());
        let from = match draining {
            Some(server) => *server,
            None => {
                let (full, many) = counts.iter().max_by_key(|(server, count)| (**count, **server))?;
                if many - few <= 1 || !self.pins.is_empty() {
                    return None;
                }
                *full
            }
        };
        // A shard that is not adjacent to the receiver's; among those, one of the worker that has the most, and one that is
        // next to another of its own owner.
        let held = self.counts_of_workers(from);
        let of_worker = |shard: ShardId| held.get(&self.shards[usize::from(shard.0)].worker).copied().unwrap_or(0);
        let shard = self.shards_of(from).min_by_key(|shard| {
            let own = self.touching(*shard, from);
            (self.touching(*shard, to), usize::MAX - of_worker(*shard), usize::MAX - own, shard.0)
        })?;
        Some(Handover { shard, from, to })
    }

    /// Number of shards of each active member.
    fn counts(&self) -> BTreeMap<ServerId, usize> {
        let mut counts: BTreeMap<_, _> = self.active().map(|server| (server, 0)).collect();
        for owner in self.shards.iter().filter_map(|shard| shard.owner) {
            counts.entry(owner).and_modify(|count| *count += 1);
        }
        counts
    }

    /// The worker of `server` that gets a shard: one with the fewest. Among those the bits of the shard's number choose,
    /// so that workers still have about as many each when every other shard has gone to another member.
    pub fn worker_for(&self, shard: ShardId, server: ServerId) -> u16 {
        let workers = self.members.get(&server).map_or(1, |member| member.workers.len()).max(1);
        let held = self.counts_of_workers(server);
        let preferred = shard.0.count_ones() as usize % workers;
        // At most u16::MAX workers: each may be an owner's.
        let workers_in_order = (0..workers).map(|after| ((preferred + after) % workers) as u16);
        workers_in_order.min_by_key(|worker| held.get(worker).copied().unwrap_or(0)).unwrap_or(0)
    }

    /// Number of shards of each worker of `server` that has any.
    fn counts_of_workers(&self, server: ServerId) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for shard in self.shards.iter().filter(|shard| shard.owner == Some(server)) {
            *counts.entry(shard.worker).or_default() += 1;
        }
        counts
    }

    /// How many of the two shards adjacent to `shard`, in a circle, `server` owns.
    fn touching(&self, shard: ShardId, server: ServerId) -> usize {
        let (at, count) = (usize::from(shard.0), self.shards.len());
        let adjacent = [(at + 1) % count, (at + count - 1) % count];
        adjacent.iter().filter(|other| **other != at && self.shards[**other].owner == Some(server)).count()
    }
}
