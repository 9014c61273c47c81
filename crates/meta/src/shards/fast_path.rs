//! Fast path for verbs that wait only for the log: the rows they read are resident and unlocked, and the rows they
//! change are this shard's, or the rows of one directory in a shard of the same worker. Most verbs qualify, and a plain
//! call decides them. All others run through [`Shard::run`].

use super::decide::{Decided, DecisionOutcome, TxnContext};
use super::foreign::Foreign;
use super::peers::{AwaitedReply, PeerCall};
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::serve_peer::placed_by;
use super::shard::{Execution, Makes, RequestAddress, Shard};
use std::rc::Rc;
use varve_posix::{Effect, Verb};
use varve_schema::{Change, Key};
use varve_types::{InodeId, ShardId, Timestamp};

/// The result of a verb on the fast path.
pub enum FastPathRun<O> {
    /// It changed nothing, and everything it saw is appended.
    Seen(Result<O, ShardRefusal>),
    /// It changed something. The outcome may be sent once `batch` is appended and then `effects` are done.
    Changed { outcome: O, batch: BatchNumber, effects: Vec<Effect> },
    /// The rows of its fresh directory are on their way to the log of their home. The verb continues when the home has
    /// replied.
    Placed(Placed, AwaitedReply),
}

/// Rows of a fresh directory at its home, which is not the shard that holds its name.
pub struct Placed {
    fresh: InodeId,
    keys: Vec<Key>,
    /// The time in the rows.
    at: Timestamp,
}

impl Placed {
    pub fn home(&self) -> ShardId {
        self.fresh.shard()
    }
}

impl Shard {
    /// Runs a verb without waiting. `None`: the fast path is not possible, and nothing has been done.
    pub fn try_run<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
    ) -> Option<FastPathRun<V::Outcome>> {
        // Only the number of a new file is known to be of this shard, which then registers the open itself.
        let registers_here = run.registrar.is_none() || run.makes == Makes::File;
        if !registers_here || !self.is_undisturbed(run.address) {
            return None;
        }
        let fresh = match run.makes {
            Makes::Nothing => InodeId::ROOT,
            Makes::File => self.inode_at_hand()?,
            Makes::Directory { home } => self.inode_of_at_hand(home)?,
        };
        let Decided { outcome, newest, .. } =
            self.decide(verb, run, &TxnContext::of(fresh), &Foreign::default()).ok()?;
        match outcome {
            DecisionOutcome::FreshElsewhere { rows, at } => {
                self.try_place(fresh, rows, at).map(|(placed, reply)| FastPathRun::Placed(placed, reply))
            }
            DecisionOutcome::Missing(keys) if V::REMOVES_DIRECTORY => self.try_remove(verb, run, keys),
            decided => self.ran(decided, newest),
        }
    }

    /// Continues a verb whose rows are placed and appended. `None`: the fast path is not possible, and nothing has been
    /// done.
    pub fn try_run_placed<V: Verb>(
        &self,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        placed: &Placed,
    ) -> Option<FastPathRun<V::Outcome>> {
        if !self.is_undisturbed(run.address) {
            return None;
        }
        let txn = TxnContext { placed: Some(Vec::new()), placed_at: Some(placed.at), ..TxnContext::of(placed.fresh) };
        let Decided { outcome, newest, .. } = self.decide(verb, run, &txn, &Foreign::default()).ok()?;
        self.ran(outcome, newest)
    }

    /// Continues a verb with placed rows as [`Shard::run`] does. `appended` says whether the rows could be appended.
    pub async fn run_placed<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: Execution<'_, V::Outcome>,
        placed: Placed,
        appended: Result<(), ShardRefusal>,
    ) -> Result<V::Outcome, ShardRefusal> {
        let Placed { fresh, keys, at, .. } = placed;
        match appended {
            Ok(()) => {
                let txn = TxnContext { placed: Some(keys), placed_at: Some(at), ..TxnContext::of(fresh) };
                self.run_on(verb, &run, txn).await
            }
            Err(refusal) => {
                self.withdraw(fresh, keys).await;
                Err(refusal)
            }
        }
    }

    fn try_place(&self, fresh: InodeId, rows: Vec<Change>, at: Timestamp) -> Option<(Placed, AwaitedReply)> {
        let keys = rows.iter().filter_map(Change::put_key).cloned().collect();
        let reply = self.peers.call_now(fresh.shard(), PeerCall::Apply(rows))?;
        // A reply that has come already is a refusal.
        match self.peers.reply_now(&reply) {
            None => Some((Placed { fresh, keys, at }, reply)),
            Some(_) => None,
        }
    }

    /// Calls `then` when the home of placed rows has replied, and says whether they are appended there.
    pub fn when_placed(self: &Rc<Self>, reply: AwaitedReply, then: impl FnOnce(Result<(), ShardRefusal>) + 'static) {
        let shard = Rc::clone(self);
        let AwaitedReply { asked, slot } = reply;
        slot.then(move |response| then(placed_by(asked.to, shard.peers.receive(asked, response))));
    }

    fn ran<O>(&self, decided: DecisionOutcome<O>, newest: BatchNumber) -> Option<FastPathRun<O>> {
        let seen = match decided {
            DecisionOutcome::Done { outcome, effects, batch } => {
                return Some(FastPathRun::Changed { outcome, batch, effects });
            }
            DecisionOutcome::Answered(outcome) => Ok(outcome),
            DecisionOutcome::Refused(refusal) => Err(refusal.into()),
            DecisionOutcome::Missing(_)
            | DecisionOutcome::Unasked(_)
            | DecisionOutcome::FreshElsewhere { .. }
            | DecisionOutcome::Several { .. } => return None,
        };
        (newest <= self.state.borrow().appended).then_some(FastPathRun::Seen(seen))
    }

    /// Whether this shard decides on the address, with no cross-shard change or split in progress, which would most
    /// likely force a second decision.
    fn is_undisturbed(&self, address: RequestAddress) -> bool {
        match address {
            RequestAddress::Name(directory, hash) => (self.state.borrow().partitions.get(directory))
                .is_some_and(|p| p.serves(hash) && p.pending_tallies == 0 && p.split.is_none()),
            RequestAddress::Inode(inode) => inode.shard() == self.id,
        }
    }
}
