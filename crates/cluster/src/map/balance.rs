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

/// The moves that balance the map. Every member computes the same ones and carries out those of its own shards. None if
/// the map is balanced: the members' numbers of shards differ by one at most, and draining members have none.
pub fn handovers(map: &ClusterMap) -> Vec<Handover> {
    let mut planned = map.clone();
    let mut moves = Vec::new();
    while let Some(handover) = planned.next_handover() {
        planned.give(handover.shard, handover.to);
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
                self.give(shard, server);
            }
        }
    }

    fn next_handover(&self) -> Option<Handover> {
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
                if many - few <= 1 {
                    return None;
                }
                *full
            }
        };
        // A shard that is not adjacent to the receiver's; among those, one that is next to another of its own owner.
        let shard = self
            .shards_of(from)
            .min_by_key(|shard| (self.touching(*shard, to), usize::MAX - self.touching(*shard, from), shard.0))?;
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

    /// How many of the two shards adjacent to `shard`, in a circle, `server` owns.
    fn touching(&self, shard: ShardId, server: ServerId) -> usize {
        let (at, count) = (usize::from(shard.0), self.shards.len());
        let adjacent = [(at + 1) % count, (at + count - 1) % count];
        adjacent.iter().filter(|other| **other != at && self.shards[**other].owner == Some(server)).count()
    }
}
