//! The ids of requests that one shard has received from another: each is accepted once.

use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_schema::peer::{PeerReply, ShardTerm};
use varve_types::{Epoch, ShardId};

/// How far an id may be behind the highest one and still be accepted. A channel keeps its order, but requests that wait
/// together for a shard to be opened go on in any order.
const WINDOW: u64 = 256;

#[derive(Default)]
pub(super) struct ReceivedIds {
    highest: u64,
    /// The bit of an id in the window is set if the id was received. A bit belongs to one id of each 256.
    seen: [u64; WINDOW as usize / 64],
}

impl ReceivedIds {
    /// Notes an id. `false`: it was noted before, or is too old to tell.
    pub fn note(&mut self, id: u64) -> bool {
        if id > self.highest {
            if id - self.highest >= WINDOW {
                self.seen = Default::default();
            } else {
                (self.highest + 1..id).for_each(|skipped| *self.word(skipped) &= !bit(skipped));
            }
            self.highest = id;
        } else if self.highest - id >= WINDOW || *self.word(id) & bit(id) != 0 {
            return false;
        }
        *self.word(id) |= bit(id);
        true
    }

    fn word(&mut self, id: u64) -> &mut u64 {
        &mut self.seen[(id % WINDOW / 64) as usize]
    }
}

/// Calling shards, each with its latest term and the ids of its requests in that term.
#[derive(Default)]
pub(super) struct Callers(HashMap<ShardId, (Epoch, ReceivedIds), KeyHashing>);

impl Callers {
    /// Whether a request with this id is to be carried out, else the reply to it.
    pub fn admit(&mut self, from: ShardTerm, id: u64) -> Result<(), PeerReply> {
        let (latest, received) = self.0.entry(from.shard).or_insert_with(|| (from.term, ReceivedIds::default()));
        if from.term < *latest {
            return Err(PeerReply::Superseded(*latest));
        }
        if from.term > *latest {
            (*latest, *received) = (from.term, ReceivedIds::default());
        }
        if received.note(id) { Ok(()) } else { Err(PeerReply::Repeated) }
    }
}

fn bit(id: u64) -> u64 {
    1 << (id % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use varve_env::random::Seeded;

    #[test]
    fn id_is_accepted_once() {
        let mut ids = ReceivedIds::default();
        assert!([1, 2, 5, 3, 4, 300].into_iter().all(|id| ids.note(id)));
        assert!([1, 2, 5, 3, 4, 300, 44].into_iter().all(|id| !ids.note(id)), "noted, or too old");
        assert!(ids.note(45) && ids.note(299) && !ids.note(299));
        assert!(ids.note(u64::MAX) && !ids.note(u64::MAX) && !ids.note(301));
    }

    /// Promise: whatever the order, no id is accepted twice, and each of the last 256 is accepted.
    #[test]
    fn ids_in_any_order_agree_with_a_set() {
        let mut random = Seeded::new(7);
        let (mut ids, mut noted, mut highest) = (ReceivedIds::default(), HashSet::new(), 0);
        for _ in 0..20_000 {
            let (ahead, behind) = (random.below(300) as u64, random.below(400) as u64);
            let id = 1 + (highest + ahead).saturating_sub(behind);
            let expected = highest < id + WINDOW && !noted.contains(&id);
            assert_eq!(ids.note(id), expected, "{id} after {highest}");
            noted.insert(id);
            highest = highest.max(id);
        }
    }
}
