//! Cuts of backing files that rows ask for: one of a file at a time. Whoever decided one is answered when it is made, or given
//! up: what somebody was told has failed is not made later, over what others have written and synced since.

use super::refusal::ShardRefusal;
use super::replies::SessionChange;
use super::shard::{Execution, Makes, RequestAddress, Shard, WAIT_MAX};
use super::transaction::ASK_AGAIN;
use crate::namespace::{AbandonTruncate, At, Effect, FindTruncate, FinishTruncate, PendingTruncate, Verb};
use futures::FutureExt;
use std::cell::RefCell;
use std::rc::Rc;
use varve_env::disk::File;
use varve_env::store_path::StorePath;
use varve_types::{Credentials, InodeId};

/// Times that a file is cut anew because another truncate of it was decided meanwhile; then the caller asks again.
const TRUNCATES_MAX: usize = 16;

/// Truncates of one file, which take turns.
#[derive(Default)]
pub(super) struct TruncateQueue {
    turn: tokio::sync::Mutex<()>,
    /// Why the last one was given up, if it was: whoever decided it may not be the one who tried it, and it may have taken the
    /// place of another.
    given_up: RefCell<Option<ShardRefusal>>,
}

impl TruncateQueue {
    /// What became of a truncate that the row does not ask for any more.
    fn ended(&self, decided: Option<PendingTruncate>) -> Result<(), ShardRefusal> {
        match &*self.given_up.borrow() {
            Some(refusal) if decided.is_some() => Err(refusal.clone()),
            _ => Ok(()),
        }
    }
}

impl Shard {
    /// Does the truncate that the row asks for. One of a file at a time, and none that is not asked for any more: whoever finds
    /// the row while it is `Truncating` comes here, and a late cut would fall on what a writer wrote since. `decided`: by the
    /// change itself that was `asked` for.
    pub(super) async fn truncate(
        self: &Rc<Self>,
        at: At,
        decided: Option<PendingTruncate>,
        asked: Option<SessionChange>,
    ) -> Result<(), ShardRefusal> {
        let turns = self.turns_of(at.inode());
        let turn = turns.turn.lock().await;
        let result = self.truncate_in_turn(&turns, &at, decided, asked).await;
        drop(turn);
        self.leave_turns(at.inode(), &turns);
        result
    }

    fn turns_of(&self, inode: InodeId) -> Rc<TruncateQueue> {
        self.state.borrow_mut().truncating.entry(inode).or_default().clone()
    }

    fn leave_turns(&self, inode: InodeId, turns: &Rc<TruncateQueue>) {
        // This request, the map and nobody else: no truncate of the file waits, nor is one being given up.
        if Rc::strong_count(turns) == 2 {
            self.state.borrow_mut().truncating.remove(&inode);
        }
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
                    turns.given_up.replace(None);
                    return Ok(());
                }
                Ok(false) => {}
                // It is asked again, and goes on where the row is by then.
                Err(ShardRefusal::Busy) => return Err(ShardRefusal::Busy),
                Err(refusal) => {
                    if let Some(begun) = begun
                        && let Some(on_disk) = self.give_up(turns, at, begun, asked, &refusal)
                    {
                        // Nobody waits for ever for a store that hangs.
                        let _ = tokio::time::timeout(WAIT_MAX, on_disk).await;
                    }
                    return Err(refusal);
                }
            }
        }
        Err(ShardRefusal::Busy)
    }

    /// The row says `Truncating` and is appended; it is fsynced before the file is cut, so that a failure of the machine
    /// leaves a row that says what the file is to be. `false`: another truncate was decided meanwhile.
    async fn cut(self: &Rc<Self>, at: &At, begun: PendingTruncate) -> Result<bool, ShardRefusal> {
        self.sync().await?;
        let size = begun.size;
        // The length is on disk before the row says that it counts: else power lost in between would leave a settled row
        // and a file of another size.
        let cut = move |path: StorePath| {
            let file = File::open_to_write(&path)?;
            file.set_len(size)?;
            file.sync_all()
        };
        let cut = self.on_backing_file(at.inode(), cut).await;
        self.open_files.size_changed(at.inode());
        cut?;
        self.run_on_row(&FinishTruncate { at: at.clone(), begun }, at).await.map_err(moved)
    }

    /// Gives up the truncates that these effects of a change ask for and that the change itself has decided: they are not done.
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

    /// Has it that nobody makes the truncate `begun` later, of which who `asked` is told that it failed. What he was to be
    /// answered is not true then: asked again, it is decided anew. Decided at once, if nothing is in the way; what it returns
    /// goes on until that is on disk.
    fn give_up(
        self: &Rc<Self>,
        turns: &Rc<TruncateQueue>,
        at: &At,
        begun: PendingTruncate,
        asked: Option<SessionChange>,
        refusal: &ShardRefusal,
    ) -> Option<tokio::task::JoinHandle<()>> {
        turns.given_up.replace(Some(refusal.clone()));
        // Not in a later batch than that it is given up.
        self.take_back(asked);
        let (shard, turns, verb) = (Rc::clone(self), Rc::clone(turns), AbandonTruncate { at: at.clone(), begun });
        let mut abandon = Box::pin(async move {
            // Of this shard, whatever the verb looks at: the row may be another's by now.
            let address = RequestAddress::Inode(InodeId::new(shard.id, 0));
            while let Err(refusal) = shard.run_inside(&verb, address).await {
                match refusal {
                    ShardRefusal::Busy if !shard.stopping() => tokio::time::sleep(ASK_AGAIN).await,
                    // In the log or not, it is decided; or there is no such file any more, or no shard.
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
        let run = Execution { caller: &Credentials::root(), address, makes: Makes::Nothing, record: None };
        Box::pin(self.run(verb, run)).await
    }
}

/// The row has moved since, and still says what is to be done.
fn moved(refusal: ShardRefusal) -> ShardRefusal {
    match refusal {
        ShardRefusal::Rule(_) | ShardRefusal::Moved { .. } => ShardRefusal::Busy,
        other => other,
    }
}
