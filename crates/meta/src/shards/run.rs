//! Runs a verb to its end: fetch, decide, commit, and again while rows are missing or change under it.

use super::decision::{Decided, DecisionOutcome, TxnContext};
use super::execution::{Execution, Makes};
use super::foreign::Foreign;
use super::opens_elsewhere::Grant;
use super::peers::LOST;
use super::refusal::ShardRefusal;
use super::shard::{Shard, WAIT_MAX};
use std::rc::Rc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::stages::{self, Stage};
use varve_posix::{Refusal, Verb};
use varve_schema::Change;
use varve_types::InodeId;

/// Limit on rounds of fetching before a request fails with `Busy`, if its deadline does not come first. It is above the
/// longest chain of keys that name each other (a directory's ancestors, in a cycle check), so that only a request whose
/// rows are dropped as fast as they are fetched reaches it.
const ROUNDS_MAX: usize = 70_000;

impl Shard {
    /// Runs one verb to its end. Rarely needed futures are boxed to keep the others small, because a request's future
    /// is moved into its slot when it arrives. `Ok` and `Err` are returned once the batches they depend on are
    /// appended.
    pub async fn run<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: Execution<'_, V::Outcome>,
    ) -> Result<V::Outcome, ShardRefusal> {
        let fresh = match run.makes {
            Makes::Nothing => InodeId::ROOT,
            Makes::File => self.fresh_inode().await?,
            Makes::Directory { home } => Box::pin(self.fresh_inode_of(home)).await?,
        };
        self.run_on(verb, &run, TxnContext::of(fresh)).await
    }

    /// Runs a verb to its end, continuing from the state in `txn`.
    pub(super) async fn run_on<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        mut txn: TxnContext,
    ) -> Result<V::Outcome, ShardRefusal> {
        let result = self.run_with(verb, run, &mut txn).await;
        // Once decided, the name may still reach the log, whatever was replied.
        if result.is_err()
            && !txn.named
            && let Some(placed) = txn.placed
        {
            Box::pin(self.withdraw(txn.fresh, placed)).await;
        }
        result
    }

    async fn run_with<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &mut TxnContext,
    ) -> Result<V::Outcome, ShardRefusal> {
        let deadline = self.clock.monotonic().after(WAIT_MAX);
        loop {
            let attempted = self.attempt(verb, run, txn, deadline).await;
            if let Some(held) = txn.held.take() {
                Box::pin(self.let_go(held)).await;
            }
            match attempted {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(ShardRefusal::Busy) if !txn.ends_busy && self.clock.monotonic() < deadline => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Decides on all rows and answers that the decision needs. The caller continues in the same step.
    async fn decide_on_rows<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &mut TxnContext,
        deadline: Instant,
    ) -> Result<(Decided<V::Outcome>, Foreign), ShardRefusal> {
        let mut foreign = Foreign::default();
        let mut rounds = 0;
        loop {
            self.check_address(run.address).await?;
            let decided = self.decide(verb, run, txn, &foreign)?;
            let waits = matches!(decided.outcome, DecisionOutcome::Missing(_) | DecisionOutcome::Unasked(_));
            if waits && (rounds >= ROUNDS_MAX || (rounds > 0 && self.clock.monotonic() >= deadline)) {
                return Err(ShardRefusal::Busy);
            }
            rounds += 1;
            match decided.outcome {
                DecisionOutcome::Missing(keys) => {
                    let _passage = stages::enter(Stage::Fetch);
                    let removal = V::REMOVES_DIRECTORY.then_some(&mut txn.held);
                    Box::pin(self.fetch(keys, &mut foreign, removal)).await?;
                }
                DecisionOutcome::Unasked(inodes) => Box::pin(self.ask_openness(inodes, &mut txn.asked)).await?,
                _ => return Ok((decided, foreign)),
            }
        }
    }

    /// One round of fetch, decide, commit. `None`: decide again, because the rows of a fresh inode were stored at their
    /// home, or because leases of other sessions have ended.
    async fn attempt<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        txn: &mut TxnContext,
        deadline: Instant,
    ) -> Result<Option<V::Outcome>, ShardRefusal> {
        let (decided, foreign) = self.decide_on_rows(verb, run, txn, deadline).await?;
        let Decided { outcome: decided, newest, grant } = decided;
        let (outcome, effects) = match decided {
            DecisionOutcome::Missing(_) | DecisionOutcome::Unasked(_) => return Err(ShardRefusal::Busy),
            DecisionOutcome::Leased { until } => {
                tokio::time::sleep(until.since(self.clock.monotonic())).await;
                return Ok(None);
            }
            // A name may be replaced between two reads. A second read finds another inode, unless the first one is
            // lost.
            DecisionOutcome::Refused(Refusal::Torn(inode)) if !foreign.is_empty() && txn.torn != Some(inode) => {
                txn.torn = Some(inode);
                return Err(ShardRefusal::Busy);
            }
            DecisionOutcome::Refused(refusal) => {
                self.appended(newest).await?;
                self.register_granted(run, grant).await?;
                return Err(refusal.into());
            }
            DecisionOutcome::Answered(outcome) => {
                self.appended(newest).await?;
                self.register_granted(run, grant).await?;
                return Ok(Some(outcome));
            }
            DecisionOutcome::Done { outcome, effects, batch } => {
                (txn.named, txn.ends_busy) = (true, true);
                let done = match self.appended(batch).await {
                    Ok(()) => self.register_granted(run, grant).await,
                    failed => failed,
                };
                if let Err(refusal) = done {
                    // If the store only hangs, the change is still written later; its effects are not carried out.
                    self.give_up_all(effects, run.asked(), &refusal);
                    return Err(refusal);
                }
                (outcome, effects)
            }
            DecisionOutcome::FreshElsewhere { rows, at } => {
                txn.placed = Some(rows.iter().filter_map(Change::put_key).cloned().collect());
                txn.placed_at = Some(at);
                let placed = Box::pin(self.place_fresh(txn.fresh, rows)).await;
                if placed == Err(ShardRefusal::Busy) {
                    txn.placed = None;
                }
                if let Err(ShardRefusal::Failed(cause)) = &placed
                    && cause.errno == LOST
                {
                    // The home may have stored the rows. The client asks again, with another fresh inode.
                    txn.ends_busy = true;
                    return Err(ShardRefusal::Busy);
                }
                return placed.map(|()| None);
            }
            DecisionOutcome::Several { own, elsewhere, effects, outcome, reply, unopened } => {
                let sorted = self.sort((own, elsewhere), &foreign, &unopened, txn.held.as_ref());
                let committed = Box::pin(self.commit_over_shards(sorted, &mut txn.held, reply)).await;
                // A session may have opened the file in the meantime. If the file is taken to be open and is not, it is
                // an orphan for a moment.
                txn.as_if_open |= matches!(committed, Err(ShardRefusal::Busy));
                // After any other error the change may be decided.
                txn.named |= !matches!(committed, Err(ShardRefusal::Busy));
                committed?;
                txn.ends_busy = true;
                self.register_granted(run, grant).await?;
                (outcome, effects)
            }
        };
        if !effects.is_empty() {
            Box::pin(self.perform(effects, run.asked())).await?;
        }
        Ok(Some(outcome))
    }

    /// Registers the use of a file at the shard in its number, if that is another one, before the reply is sent.
    async fn register_granted<O>(
        self: &Rc<Self>,
        run: &Execution<'_, O>,
        grant: Option<Grant>,
    ) -> Result<(), ShardRefusal> {
        let (Some(grant), Some(registrar)) = (grant, &run.registrar) else { return Ok(()) };
        registrar.writer_gone.set(Box::pin(self.register_elsewhere(grant)).await?);
        // A split may have taken the row away meanwhile, and then the file may have been removed as not open.
        self.check_address(run.address).await
    }
}
