//! Fast path for verbs that wait only for logs: the rows they read are resident and unlocked, and the rows they change
//! are this shard's, or the rows of one directory in a shard of the same worker, which then begins. Most verbs qualify,
//! and plain calls decide them. All others run through [`Shard::run`].

use super::decide::{Decided, DecisionOutcome, TxnContext};
use super::foreign::Foreign;
use super::peers::{AwaitedReply, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::removal::PreparedRemoval;
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
    /// Another shard has done its part, which is on the way to its log. The verb continues when that shard has replied.
    Begun(BegunElsewhere, AwaitedReply),
}

/// The part of a verb that another shard has done first.
pub enum BegunElsewhere {
    /// The home has the rows of a fresh directory.
    Placed(Placed),
    /// The shard that has the rows of a directory has prepared their removal.
    Removal(PreparedRemoval),
}

impl BegunElsewhere {
    pub fn shard(&self) -> ShardId {
        match self {
            BegunElsewhere::Placed(placed) => placed.fresh.shard(),
            BegunElsewhere::Removal(held) => held.shard,
        }
    }
}

/// Rows of a fresh directory at its home, which is not the shard that holds its name.
pub struct Placed {
    fresh: InodeId,
    keys: Vec<Key>,
    /// The time in the rows.
    at: Timestamp,
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
                self.try_place(fresh, rows, at).map(|(begun, reply)| FastPathRun::Begun(begun, reply))
            }
            DecisionOutcome::Missing(keys) if V::REMOVES_DIRECTORY => {
                self.try_begin_removal(keys).map(|(begun, reply)| FastPathRun::Begun(begun, reply))
            }
            decided => self.ran(decided, newest),
        }
    }

    /// Continues a verb after the reply of the shard that has begun it. `None`: the fast path is not possible, and
    /// [`Shard::run_begun`] must continue.
    pub fn try_run_begun<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        begun: &BegunElsewhere,
        reply: &mut PeerReply,
    ) -> Option<FastPathRun<V::Outcome>> {
        if !self.is_undisturbed(run.address) {
            return None;
        }
        match (begun, reply) {
            (BegunElsewhere::Placed(placed), PeerReply::Done) => self.try_run_placed(verb, run, placed),
            (BegunElsewhere::Removal(held), PeerReply::Prepared(rows)) => {
                self.try_decide_removal(verb, run, held, std::mem::take(rows))
            }
            _ => None,
        }
    }

    /// Continues a verb after the reply of the shard that has begun it, as [`Shard::run`] does.
    pub async fn run_begun<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: Execution<'_, V::Outcome>,
        begun: BegunElsewhere,
        reply: PeerReply,
    ) -> Result<V::Outcome, ShardRefusal> {
        match begun {
            BegunElsewhere::Placed(placed) => self.run_placed(verb, run, placed, reply).await,
            BegunElsewhere::Removal(held) => {
                self.let_go(held).await;
                self.run(verb, run).await
            }
        }
    }

    fn try_run_placed<V: Verb>(
        &self,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        placed: &Placed,
    ) -> Option<FastPathRun<V::Outcome>> {
        let txn = TxnContext { placed: Some(Vec::new()), placed_at: Some(placed.at), ..TxnContext::of(placed.fresh) };
        let Decided { outcome, newest, .. } = self.decide(verb, run, &txn, &Foreign::default()).ok()?;
        self.ran(outcome, newest)
    }

    async fn run_placed<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: Execution<'_, V::Outcome>,
        placed: Placed,
        reply: PeerReply,
    ) -> Result<V::Outcome, ShardRefusal> {
        let Placed { fresh, keys, at, .. } = placed;
        match placed_by(fresh.shard(), reply) {
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

    fn try_place(&self, fresh: InodeId, rows: Vec<Change>, at: Timestamp) -> Option<(BegunElsewhere, AwaitedReply)> {
        let keys = rows.iter().filter_map(Change::put_key).cloned().collect();
        let reply = self.peers.call_now(fresh.shard(), PeerCall::Apply(rows))?;
        // A reply that has come already is a refusal.
        match self.peers.reply_now(&reply) {
            None => Some((BegunElsewhere::Placed(Placed { fresh, keys, at }), reply)),
            Some(_) => None,
        }
    }

    /// Calls `then` with the reply of the shard that has begun a verb.
    pub fn when_begun(self: &Rc<Self>, reply: AwaitedReply, then: impl FnOnce(PeerReply) + 'static) {
        let shard = Rc::clone(self);
        let AwaitedReply { asked, slot } = reply;
        slot.then(move |response| then(shard.peers.receive(asked, response)));
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
