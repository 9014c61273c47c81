//! The owners of shards: processes that can be stopped, killed, and outlive their leases without noticing.

use super::Simulation;
use super::network::{Place, Strike};
use super::time::{FileWork, note_event};
use crate::shards::peers::{SentRequest, ShardTerm};
use crate::shards::{CacheBudget, OpenFiles, PeerCall, PeerRequest, PeerResponse, Peers, Shard};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use varve_schema::{Key, TransactionId};
use varve_store::TableCache;
use varve_types::ShardId;

/// How often an owner looks for shards of its own that have failed.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(300);

/// The times at which a request arrives again if nothing refuses it.
const REPEATED_AFTER: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(5)];

/// One ownership of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub owner: usize,
    /// Unique among all terms of all shards.
    pub number: u64,
}

/// A change of a client: its session and its number there.
pub type CallId = (u64, u64);

/// A process that owns shards. After its end, another owner with another number takes its place.
pub struct Owner {
    pub number: usize,
    /// The tasks of its process. `None`: the process was killed.
    tasks: RefCell<Option<Rc<LocalSet>>>,
    /// Its tasks do not run.
    pub stopped: Cell<bool>,
    /// The lease runs. If it has ended, the owner goes on without knowing, as a zombie.
    pub lease: Cell<bool>,
    shards: RefCell<BTreeMap<ShardId, (u64, Rc<Shard>)>>,
    /// Its map of the volume, which may be old.
    known: RefCell<Vec<Term>>,
    /// Calls of clients under way.
    pub calls: RefCell<HashSet<CallId>>,
    open_files: RefCell<BTreeMap<ShardId, OpenFiles>>,
    pub table_cache: TableCache,
    pub cache: Arc<CacheBudget>,
    pub names: Arc<CacheBudget>,
}

/// Runs an owner's tasks whenever it is polled.
pub struct Runner {
    owner: Rc<Owner>,
    tasks: Pin<Box<dyn Future<Output = ()>>>,
}

impl Runner {
    pub fn of(owner: Rc<Owner>) -> Runner {
        let tasks = owner.tasks.borrow().clone().expect("a new owner lives");
        Runner { owner, tasks: Box::pin(async move { tasks.run_until(pending()).await }) }
    }

    /// `false`: the owner was killed.
    pub fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if !self.owner.lives() {
            return false;
        }
        if !self.owner.stopped.get() {
            assert!(self.tasks.as_mut().poll(context).is_pending());
        }
        true
    }
}

impl Owner {
    pub fn new(number: usize, known: Vec<Term>) -> Rc<Owner> {
        Rc::new(Owner {
            number,
            tasks: RefCell::new(Some(Rc::new(LocalSet::new()))),
            stopped: Cell::new(false),
            lease: Cell::new(true),
            shards: RefCell::default(),
            known: RefCell::new(known),
            calls: RefCell::default(),
            open_files: RefCell::default(),
            table_cache: TableCache::new(4 << 20),
            cache: Arc::new(CacheBudget::new(4 << 20, 1)),
            names: Arc::new(CacheBudget::new(4 << 20, 1)),
        })
    }

    pub fn place(&self) -> Place {
        Place::Owner(self.number)
    }

    pub fn lives(&self) -> bool {
        self.tasks.borrow().is_some()
    }

    /// Runs `task` in the owner's process, unless it was killed.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if let Some(tasks) = &*self.tasks.borrow() {
            note_event();
            tasks.spawn_local(task);
        }
    }

    /// The shard, with the number of its term, if it is open here.
    pub fn shard(&self, id: ShardId) -> Option<(u64, Rc<Shard>)> {
        self.shards.borrow().get(&id).cloned()
    }

    pub fn known(&self, id: ShardId) -> Term {
        self.known.borrow()[usize::from(id.0)]
    }

    /// The open files of a shard, which outlive its openings here.
    pub fn open_files(&self, id: ShardId) -> OpenFiles {
        self.open_files.borrow_mut().entry(id).or_default().clone()
    }

    /// Ends the process: nothing of it runs any more. File work that its threads have begun may still be carried out.
    pub fn kill(&self) {
        self.tasks.take();
        for (_, shard) in std::mem::take(&mut *self.shards.borrow_mut()).into_values() {
            let mut state = shard.state.borrow_mut();
            state.closing = true;
            state.failed = Some("the process is dead".into());
        }
    }
}

impl Simulation {
    /// Starts an owner.
    pub fn start_owner(self: &Rc<Self>) -> Rc<Owner> {
        let owner = Owner::new(self.owners.borrow().len(), self.map.borrow().clone());
        self.owners.borrow_mut().push(Rc::clone(&owner));
        self.runners.borrow_mut().push(Runner::of(Rc::clone(&owner)));
        owner.spawn(Rc::clone(self).reopen_failed(Rc::clone(&owner)));
        owner
    }

    pub fn owner(&self, number: usize) -> Rc<Owner> {
        Rc::clone(&self.owners.borrow()[number])
    }

    /// The owners with a lease that runs.
    pub fn members(&self) -> Vec<Rc<Owner>> {
        self.owners.borrow().iter().filter(|owner| owner.lives() && owner.lease.get()).cloned().collect()
    }

    /// The owners that live without a lease.
    pub fn zombies(&self) -> Vec<Rc<Owner>> {
        self.owners.borrow().iter().filter(|owner| owner.lives() && !owner.lease.get()).cloned().collect()
    }

    pub fn term(&self, id: ShardId) -> Term {
        self.map.borrow()[usize::from(id.0)]
    }

    /// Gives a shard to an owner, which opens it.
    pub fn give(self: &Rc<Self>, id: ShardId, owner: &Rc<Owner>) {
        let term = Term { owner: owner.number, number: self.next_term() };
        self.map.borrow_mut()[usize::from(id.0)] = term;
        self.trace(format!("shard {id} is given to owner {} in term {}", owner.number, term.number));
        owner.spawn(Rc::clone(self).open(Rc::clone(owner), id, term));
    }

    fn next_term(&self) -> u64 {
        self.terms.set(self.terms.get() + 1);
        self.terms.get()
    }

    async fn open(self: Rc<Self>, owner: Rc<Owner>, id: ShardId, term: Term) {
        loop {
            let peers = Rc::new(SimulatedPeers { simulation: Rc::clone(&self), owner: Rc::clone(&owner) });
            let file_work = FileWork::begin();
            let opened = Shard::open(self.config(&owner, id, peers)).await;
            drop(file_work);
            match opened {
                Ok(shard) => {
                    self.trace(format!("owner {} has opened shard {id}, epoch {}", owner.number, shard.epoch().0));
                    owner.shards.borrow_mut().insert(id, (term.number, shard));
                    owner.known.borrow_mut()[usize::from(id.0)] = term;
                    return;
                }
                Err(error) => self.trace(format!("owner {} cannot open shard {id}: {error}", owner.number)),
            }
            if self.term(id) != term {
                return;
            }
            tokio::time::sleep(LOOKED_AT_EVERY).await;
        }
    }

    /// Opens shards again that have failed and still belong to the owner, and releases the others.
    async fn reopen_failed(self: Rc<Self>, owner: Rc<Owner>) {
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            let failed: Vec<_> = {
                let mut shards = owner.shards.borrow_mut();
                let failed: Vec<_> =
                    shards.iter().filter(|(_, (_, shard))| shard.has_failed()).map(|(id, _)| *id).collect();
                failed.into_iter().filter_map(|id| Some((id, shards.remove(&id)?.0))).collect()
            };
            for (id, number) in failed {
                let own = Term { owner: owner.number, number };
                let is_own = self.term(id) == own;
                self.trace(format!("shard {id} of owner {} has failed; its own: {is_own}", owner.number));
                if is_own {
                    self.give(id, &owner);
                } else if self.planted.fenced_shard_reopens && !owner.lease.get() {
                    owner.spawn(Rc::clone(&self).open(Rc::clone(&owner), id, own));
                }
            }
        }
    }
}

/// The other shards as the shards of an owner see them.
struct SimulatedPeers {
    simulation: Rc<Simulation>,
    owner: Rc<Owner>,
}

/// A request between shards of two owners.
#[derive(Clone)]
struct Envelope {
    from: Rc<Owner>,
    to: Term,
    request: PeerRequest,
}

impl Peers for SimulatedPeers {
    fn send(&self, request: PeerRequest) -> SentRequest<'_> {
        Box::pin(async move {
            note_event();
            let shard = request.to;
            if let Some((_, here)) = self.owner.shard(shard) {
                let response = here.serve(request).await;
                self.simulation.plant_lost_intents(&here).await;
                let may_reply = self.simulation.may_reply(&self.owner);
                return may_reply.then_some(response).ok_or_else(|| "the lease has ended".into());
            }
            let envelope = Envelope { from: Rc::clone(&self.owner), to: self.owner.known(shard), request };
            let (reply, replied) = oneshot::channel();
            let carried = Rc::clone(&self.simulation).carry(envelope, reply);
            self.simulation.spawn(carried);
            replied.await.map_err(|_| {
                self.owner.known.borrow_mut()[usize::from(shard.0)] = self.simulation.term(shard);
                format!("the connection to the owner of shard {shard} is broken").into()
            })
        })
    }
}

impl Simulation {
    /// Carries a call to its owner, and the reply back.
    async fn carry(self: Rc<Self>, envelope: Envelope, reply: oneshot::Sender<PeerResponse>) {
        let (sender, receiver) = (Rc::clone(&envelope.from), self.owner(envelope.to.owner));
        let (from, to) = (sender.place(), receiver.place());
        let passage = self.network.passage(from, to);
        let label = label(&envelope);
        tokio::time::sleep(passage.delay).await;
        if passage.lost || self.network.is_cut(from, to) {
            self.trace(format!("{label}: lost; late: {:?}", passage.late));
            tokio::time::sleep(super::network::BROKEN_AFTER).await;
            drop(reply);
            if let Some(late) = passage.late {
                Rc::clone(&self).deliver_later(envelope, late, label).await;
            }
            return;
        }
        // A fault that few messages show is found sooner if each of them is repeated.
        let repeated = self.planted.requests_not_checked.then_some(REPEATED_AFTER);
        for after in passage.again_after.into_iter().chain(repeated.into_iter().flatten()) {
            self.spawn(Rc::clone(&self).deliver_later(envelope.clone(), after, label.clone()));
        }
        // The same holds for the end of an owner that has voted.
        let strikes = self.planted.locks_in_memory && matches!(envelope.request.call, PeerCall::Prepare(..));
        let strike = strikes.then(|| Strike { hits_sender: false, draw: self.draw.branch(3) }).or(passage.strike);
        let answer = tokio::time::timeout(super::CALL_MAX, self.deliver(envelope)).await.ok().flatten();
        self.trace(format!("{label}: {answer:?}, reply lost: {}", passage.reply_lost));
        if let Some(Strike { hits_sender, draw }) = strike.filter(|_| self.network.may_strike()) {
            let hit = if hits_sender { sender } else { receiver };
            self.spawn(Rc::clone(&self).strike(hit, draw));
        }
        tokio::time::sleep(passage.reply_delay).await;
        match answer {
            // The caller may have ended.
            Some(answer) if !passage.reply_lost && !self.network.is_cut(from, to) => drop(reply.send(answer)),
            _ => tokio::time::sleep(super::network::BROKEN_AFTER).await,
        }
    }

    /// Delivers a call after its sender has given it up, or once more.
    async fn deliver_later(self: Rc<Self>, envelope: Envelope, after: Duration, label: String) {
        tokio::time::sleep(after).await;
        let answer = self.deliver(envelope).await;
        self.trace(format!("{label}: delivered later: {answer:?}"));
    }

    /// Has a call carried out by its owner. `None`: there was no reply.
    async fn deliver(self: &Rc<Self>, envelope: Envelope) -> Option<PeerResponse> {
        let owner = self.owner(envelope.to.owner);
        let (simulation, process) = (Rc::clone(self), Rc::clone(&owner));
        let (reply, replied) = oneshot::channel();
        owner.spawn(async move {
            let request = envelope.request;
            let Some((_, shard)) = process.shard(request.to) else { return };
            let answer = match simulation.planted.requests_not_checked {
                false => shard.serve(request).await,
                true => serve_unchecked(&shard, request).await,
            };
            simulation.plant_lost_intents(&shard).await;
            if simulation.may_reply(&process) {
                // The network may have given up.
                drop(reply.send(answer));
            }
        });
        replied.await.ok()
    }

    /// Deletes the intents of other shards' transactions, if that fault is planted.
    async fn plant_lost_intents(&self, shard: &Shard) {
        if !self.planted.locks_in_memory {
            return;
        }
        let batch = {
            let mut state = shard.state.borrow_mut();
            let of_others = |transaction: &&TransactionId| transaction.coordinator != shard.id();
            let intents: Vec<_> = state.transactions.prepared.keys().filter(of_others).copied().collect();
            intents.into_iter().for_each(|transaction| state.open.write(&Key::Intent(transaction), None));
            state.open.number
        };
        // A shard that has failed writes nothing more.
        let _ = shard.appended_with_work(batch).await;
    }

    /// The last look at the lease before a reply leaves its shard.
    pub fn may_reply(&self, owner: &Owner) -> bool {
        owner.lease.get() || self.planted.lease_not_checked
    }
}

/// Carries out a request of any term, also if it was carried out before.
async fn serve_unchecked(shard: &Rc<Shard>, request: PeerRequest) -> PeerResponse {
    let PeerRequest { to, term, id, call, .. } = request;
    let reply = shard.peer_call(call).await;
    PeerResponse { id, from: ShardTerm { shard: to, term: term.unwrap_or(shard.epoch()) }, reply }
}

fn label(envelope: &Envelope) -> String {
    let Envelope { from, to, request } = envelope;
    let PeerRequest { from: sender, to: target, id, call, .. } = request;
    format!("owner {} shard {} to owner {} shard {target}, request {id}: {call:?}", from.number, sender.shard, to.owner)
}
