//! Verbs that need wait for nothing but the log: what they must see is resident, nobody else is changing it, and what they
//! change is this shard's. Most do, and are decided by a plain call; all others are run ([`Shard::run`]).

use super::foreign::Foreign;
use super::refusal::Refusal;
use super::resident::BatchNumber;
use super::shard::{Address, Decided, Makes, Run, Shard, Way};
use crate::namespace::{Effect, Verb};
use varve_types::InodeId;

/// What became of a verb.
pub enum Ran<O> {
    /// It changed nothing, and what it saw is appended.
    Seen(Result<O, Refusal>),
    /// It changed something, which may be shown when `batch` is appended and then `effects` are done.
    Changed { outcome: O, batch: BatchNumber, effects: Vec<Effect> },
}

impl Shard {
    /// Runs a verb without waiting; `None`: that cannot be, and nothing has been done.
    pub fn run_at_once<V: Verb>(&self, verb: &V, run: &Run<'_, V::Outcome>) -> Option<Ran<V::Outcome>> {
        if !self.is_undisturbed(run.address) {
            return None;
        }
        let fresh = match run.makes {
            Makes::Nothing => InodeId::ROOT,
            Makes::File => self.inode_at_hand()?,
            Makes::Directory { .. } => return None,
        };
        let way = Way::of(fresh);
        let (decided, newest) = self.decide(verb, run, &way, &Foreign::default()).ok()?;
        let seen = match decided {
            Decided::Done { outcome, effects, batch } => return Some(Ran::Changed { outcome, batch, effects }),
            Decided::Answered(outcome) => Ok(outcome),
            Decided::Refused(refusal) => Err(refusal.into()),
            Decided::Missing(_) | Decided::FreshElsewhere(_) | Decided::NeedsRenameLock | Decided::Several { .. } => {
                return None;
            }
        };
        (newest <= self.state.borrow().appended).then_some(Ran::Seen(seen))
    }

    /// Whether what is addressed is decided on here, and not in the midst of a change over several shards or of a split,
    /// which would most likely have the decision taken a second time.
    fn is_undisturbed(&self, address: Address) -> bool {
        match address {
            Address::Name(directory, hash) => (self.state.borrow().partitions.get(directory))
                .is_some_and(|p| p.serves(hash) && p.pending_tallies == 0 && p.split.is_none()),
            Address::Inode(inode) => inode.shard() == self.id,
        }
    }
}
