//! Truncates of backing files that rows require, one per file at a time. The caller that decided a truncate gets its
//! reply when the truncate is done or given up. A truncate reported as failed is not made later, when it would
//! overwrite data that others have written and synced since.

use super::execution::{Execution, Makes, RequestAddress};
use super::refusal::ShardRefusal;
use super::replies::SessionChange;
use super::shard::{Shard, WAIT_MAX};
use super::transaction_state::ASK_AGAIN;
use super::truncate_queue::TruncateQueue;
use futures::FutureExt;
use std::rc::Rc;
use varve_env::disk::File;
use varve_env::store_path::StorePath;
use varve_posix::{AbandonTruncate, At, Effect, FindTruncate, FinishTruncate, PendingTruncate, Verb};
use varve_types::{Credentials, InodeId};

/// Limit on repeated truncates of a file because another one was decided in the meantime; above it the caller retries.
const TRUNCATES_MAX: usize = 16;

impl Shard {
    /// Makes the truncate that the row requires. A file has one truncate at a time, and only one that the row still
    /// requires: every request that finds the row `Truncating` comes here, and a late truncate would destroy data
    /// written since. `decided`: the truncate that the change `asked` itself decided.
    pub(super) async fn truncate(
        self: &Rc<Self>,
        at: At,
        decided: Option<PendingTruncate>,
        asked: Option<SessionChange>,
    ) -> Result<(), ShardRefusal> {
        let turns = self.turns_of(at.inode());
        let turn = turns.turn().await;
        let result = self.truncate_in_turn(&turns, &at, decided, asked).await;
        drop(turn);
        self.leave_turns(at.inode(), &turns);
        result
    }

    fn turns_of(&self, inode: InodeId) -> Rc<TruncateQueue> {
        self.state.borrow_mut().truncating.of(inode)
    }

    fn leave_turns(&self, inode: InodeId, turns: &Rc<TruncateQueue>) {
        self.state.borrow_mut().truncating.leave(inode, turns);
    }

    async fn truncate_in_turn(
        self: &Rc<Self>,
        turns: &Rc<TruncateQueue>,
        at: &At,
        decided: Option<PendingTruncate>,
        asked: Option<SessionChange>,
    ) -> Result<(), ShardRefusal> {
        for _ in 0..TRUNCATES_MAX {
            let (begun, tried) = match self.run_on_row(&FindTruncate { at: at.clone() }, at).await {
                Ok(None) => {
                    let ended = turns.ended(decided);
                    if ended.is_err() {
                        self.take_back(asked);
                    }
                    return ended;
                }
                Ok(Some(begun)) => (Some(begun), self.cut(at, begun).await),
                Err(refusal) => (decided, Err(moved(refusal))),
            };
            match tried {
                Ok(true) => {
                    turns.note_done();
                    return Ok(());
                }
                Ok(false) => {}
                // The client retries and continues from the row's state at that time.
                Err(ShardRefusal::Busy) => return Err(ShardRefusal::Busy),
                Err(refusal) => {
                    if let Some(begun) = begun
                        && let Some(on_disk) = self.give_up(turns, at, begun, asked, &refusal)
                    {
                        // Limit the wait, because the store may hang.
                        let _ = tokio::time::timeout(WAIT_MAX, on_disk).await;
                    }
                    return Err(refusal);
                }
            }
        }
        Err(ShardRefusal::Busy)
    }

    /// Truncates the file. The row is `Truncating` and appended; it is fsynced before the truncate, so that a crash
    /// leaves a row with the intended size. `false`: another truncate was decided in the meantime.
    async fn cut(self: &Rc<Self>, at: &At, begun: PendingTruncate) -> Result<bool, ShardRefusal> {
        self.sync().await?;
        let size = begun.size;
        // The length is on disk before the row records it: otherwise a power failure in between would leave a row with
        // an authoritative size and a file of another size.
        let cut = move |file: &File| {
            file.set_len(size)?;
            file.sync_all()
        };
        let cut = self.on_backing_file(at.inode(), |path: &StorePath| File::open_to_write(path), cut).await;
        self.note_size_changed(at.inode()).await?;
        cut?;
        self.run_on_row(&FinishTruncate { at: at.clone(), begun }, at).await.map_err(moved)
    }

    /// Gives up the truncates among these effects that the change itself decided. They are not made.
    pub(super) fn give_up_all(
        self: &Rc<Self>,
        effects: impl IntoIterator<Item = Effect>,
        asked: Option<SessionChange>,
        refusal: &ShardRefusal,
    ) {
        for effect in effects {
            if let Effect::Truncate { at, decided: Some(begun) } = effect {
                let turns = self.turns_of(at.inode());
                drop(self.give_up(&turns, &at, begun, asked, refusal));
                self.leave_turns(at.inode(), &turns);
            }
        }
    }

    /// Makes sure that the truncate `begun` is not made later, because the caller of `asked` gets an error. Its stored
    /// reply is no longer true, so a retry is decided anew. The abandonment is decided immediately if nothing is in the
    /// way. The returned task runs until it is on disk.
    fn give_up(
        self: &Rc<Self>,
        turns: &Rc<TruncateQueue>,
        at: &At,
        begun: PendingTruncate,
        asked: Option<SessionChange>,
        refusal: &ShardRefusal,
    ) -> Option<tokio::task::JoinHandle<()>> {
        turns.note_given_up(refusal);
        // In a batch no later than the one that abandons the truncate.
        self.take_back(asked);
        let (shard, turns, verb) = (Rc::clone(self), Rc::clone(turns), AbandonTruncate { at: at.clone(), begun });
        let mut abandon = Box::pin(async move {
            // An address of this shard, whatever row the verb reads: another shard may hold the row by now.
            let address = RequestAddress::Inode(InodeId::new(shard.id, 0));
            while let Err(refusal) = shard.run_inside(&verb, address).await {
                match refusal {
                    ShardRefusal::Busy if !shard.stopping() => tokio::time::sleep(ASK_AGAIN).await,
                    // It is decided, in the log or not; or the file or the shard no longer exists.
                    _ => break,
                }
            }
            shard.leave_turns(verb.at.inode(), &turns);
        });
        let done = (&mut abandon).now_or_never();
        done.is_none().then(|| tokio::task::spawn_local(abandon))
    }

    async fn run_on_row<V: Verb>(self: &Rc<Self>, verb: &V, at: &At) -> Result<V::Outcome, ShardRefusal> {
        let address = match at {
            At::Entry { parent, name, .. } => RequestAddress::Name(*parent, name.hash()),
            At::Inode(inode) => RequestAddress::Inode(*inode),
        };
        self.run_inside(verb, address).await
    }

    async fn run_inside<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        address: RequestAddress,
    ) -> Result<V::Outcome, ShardRefusal> {
        let run =
            Execution { caller: &Credentials::root(), address, makes: Makes::Nothing, record: None, registrar: None };
        Box::pin(self.run(verb, run)).await
    }
}

/// The row has moved since and still requires the truncate.
fn moved(refusal: ShardRefusal) -> ShardRefusal {
    match refusal {
        ShardRefusal::Rule(_) | ShardRefusal::Moved { .. } => ShardRefusal::Busy,
        other => other,
    }
}
