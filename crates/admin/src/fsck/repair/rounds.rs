//! Decides whether a repair continues. Rounds that undo each other would otherwise repeat up to the maximum number of
//! rounds, for much longer than a user waits.

use super::super::fix::{Fix, RepairStage};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// How often the same round is carried out, with other rounds in between.
const SAME_ROUND_MAX: u32 = 4;

/// Digests of the rounds that were carried out.
#[derive(Default)]
pub(super) struct Rounds {
    last: Option<u64>,
    times: HashMap<u64, u32>,
}

impl Rounds {
    /// Whether to carry out these fixes next; records that they are. `false` if they were carried out in the previous
    /// round, or too often.
    pub fn goes_on(&mut self, stage: RepairStage, fixes: &[Fix]) -> bool {
        let round = xxh3_64(format!("{stage:?} {fixes:?}").as_bytes());
        let times = self.times.entry(round).or_default();
        *times += 1;
        self.last.replace(round) != Some(round) && *times <= SAME_ROUND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::ShardId;

    fn round(shard: u16) -> [Fix; 1] {
        [Fix::EndLog { shard: ShardId(shard) }]
    }

    /// Promise: distinct rounds continue; a round that repeats immediately stops, and so do two that undo each other.
    #[test]
    fn rounds_that_undo_each_other_end() {
        let mut rounds = Rounds::default();
        assert!((0..1000).all(|shard| rounds.goes_on(RepairStage::Data, &round(shard))));
        assert!(!rounds.goes_on(RepairStage::Data, &round(999)));
        let mut rounds = Rounds::default();
        let carried_out = (0..100).take_while(|turn| rounds.goes_on(RepairStage::Data, &round(turn % 2))).count();
        assert_eq!(carried_out, 2 * SAME_ROUND_MAX as usize);
    }
}
