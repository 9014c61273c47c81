//! The message inbox of a worker, and the calls between shards of different workers.

use super::local_session::{self, LocalCall};
use super::opening::{NotOpen, NotTakenOver, OpenPurpose, ShardHandover};
use super::peer_network::NotAnswered;
use super::shared::ServerShared;
use super::worker::Worker;
use crate::shards::{
    CallOrigin, Cause, FileCall, LOST, PeerCall, PeerReply, PeerRequest, PeerResponse, Peers, SentRequest,
};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use varve_cluster::map::Term;
use varve_schema::peer::ShardTerm;
use varve_types::{SessionId, ShardId};

/// Maximum messages that wait for a worker. The receive loop only spawns tasks, so the queue is short even under load.
/// A sender that finds it full waits.
pub const INBOX_MAX: usize = 1024;

/// The pauses before a request is delivered again: they double. A move between workers takes no longer than the first; a
/// takeover takes seconds, after which a call should not wait for much longer.
const DELIVERY_PAUSE_MIN: Duration = Duration::from_millis(1);
const DELIVERY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Clients in this process may send the next call as soon as they have a reply, so that the inbox is never empty.
const MESSAGES_IN_A_ROW: usize = 16;

/// A response, or the request if it was not carried out, because its worker does not own the shard.
pub type Delivered = Result<Result<PeerResponse, Cause>, Box<PeerRequest>>;

pub enum WorkerMessage {
    /// A call from another worker's shard to one of this worker's shards.
    Peer { request: PeerRequest, reply: oneshot::Sender<Delivered> },
    /// A shard that another worker has closed for this one.
    TakeOver { shard: ShardId, handover: ShardHandover, reply: oneshot::Sender<Result<(), NotTakenOver>> },
    /// The cluster's map gives the shard to this worker in this term. It serves it no sooner than `after` from now.
    Own { shard: ShardId, term: Term, after: Duration },
    /// The shard is to be closed for another owner in the cluster.
    GiveAway { shard: ShardId, reply: oneshot::Sender<Result<(), String>> },
    /// The cluster's map has another owner for a shard that was closed or released for it.
    Gone { shard: ShardId },
    /// The worker's shards sync what they have appended. The reply says whether all did.
    SyncShards { reply: oneshot::Sender<bool> },
    /// The session has ended: the worker's shards drop what they have registered of it.
    EndSession { session: SessionId, done: oneshot::Sender<()> },
    /// A request of a client in this process.
    LocalCall(LocalCall),
}

/// A command of the server to all its workers. Each may follow any earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCommand {
    /// Listen, open the shards, and wait for the other workers.
    Open,
    Accept,
    /// Accept and read no more; finish the requests in progress.
    Drain,
    /// Close the shards and end.
    Close,
}

/// The other shards of the volume, as seen from one worker.
pub struct WorkerPeers {
    pub inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    /// The worker itself; calls to its own shards do not go through an inbox.
    pub worker: Weak<Worker>,
}

impl WorkerPeers {
    async fn deliver(&self, request: PeerRequest) -> Result<PeerResponse, Cause> {
        match self.deliver_to_owner(request).await {
            Ok(response) => response,
            Err(not_carried_out) => Box::pin(self.deliver_again(*not_carried_out)).await,
        }
    }

    /// Delivers a request that was not carried out, until its deadline: the shard is moving, or its server is gone and the
    /// map names its next owner soon.
    async fn deliver_again(&self, mut request: PeerRequest) -> Result<PeerResponse, Cause> {
        let mut pause = Duration::ZERO;
        while !request.deadline.is_zero() {
            match self.deliver_to_owner(request).await {
                Ok(response) => return response,
                Err(not_carried_out) => request = *not_carried_out,
            }
            pause = (pause * 2).clamp(DELIVERY_PAUSE_MIN, DELIVERY_PAUSE_MAX).min(request.deadline);
            tokio::time::sleep(pause).await;
            request.deadline -= pause;
        }
        Ok(busy(&request))
    }

    async fn deliver_to_owner(&self, request: PeerRequest) -> Delivered {
        let (shard, deadline) = (request.to, request.deadline);
        let Some(own) = self.worker.upgrade() else {
            return Ok(Err("the worker has ended".into()));
        };
        let Some(owner) = own.shared.shard_map.worker(shard) else {
            let shared = Arc::clone(&own.shared);
            drop(own);
            return Box::pin(async move { deliver_elsewhere(&shared, request).await }).await;
        };
        if owner == own.index {
            return answer(&own, request).await;
        }
        let (reply, answer) = oneshot::channel();
        let message = WorkerMessage::Peer { request, reply };
        drop(own);
        if self.inboxes[owner].send_timeout(message, deadline).await.is_err() {
            return Ok(Err(format!("worker {owner}, which owns shard {shard}, accepts no calls").into()));
        }
        let gone = |_| Ok(Err(format!("worker {owner}, which owns shard {shard}, has ended").into()));
        answer.await.unwrap_or_else(gone)
    }
}

/// Delivers a request for a shard that no worker of this server owns.
async fn deliver_elsewhere(shared: &ServerShared, mut request: PeerRequest) -> Delivered {
    let shard = request.to;
    if shard.0 >= shared.settings.shards.get() {
        return Ok(Err(format!("there is no shard {shard}").into()));
    }
    let Some(network) = shared.peer_network.get() else {
        return Ok(Err(format!("no worker of this server owns shard {shard}").into()));
    };
    let Some(owner) = shared.shard_map.current().owner(shard).filter(|owner| owner.server != shared.number) else {
        // Nobody, or a worker of this server again.
        return Err(Box::new(request));
    };
    let begun = shared.clock.monotonic();
    match network.call(owner.server, &request).await {
        Ok(response) => Ok(Ok(response)),
        Err(NotAnswered::NotSent(why) | NotAnswered::NotCarriedOut(why)) => {
            tracing::debug!("a call of shard {shard} was not carried out: {why}");
            request.deadline = request.deadline.saturating_sub(shared.clock.monotonic().since(begun));
            Err(Box::new(request))
        }
        Err(NotAnswered::Overload(why)) => {
            tracing::debug!("a call of shard {shard} was not sent: {why}");
            Ok(Ok(busy(&request)))
        }
        Err(NotAnswered::Unknown(reason)) => Ok(Err(Cause { errno: LOST, reason })),
        Err(NotAnswered::Failed(cause)) => Ok(Err(cause)),
    }
}

/// The response to a request that was not carried out.
fn busy(request: &PeerRequest) -> PeerResponse {
    let from = ShardTerm { shard: request.to, term: ShardTerm::NONE };
    PeerResponse { id: request.id, from, reply: PeerReply::Busy }
}

impl Peers for WorkerPeers {
    fn send(&self, request: PeerRequest) -> SentRequest<'_> {
        Box::pin(self.deliver(request))
    }
}

/// Receives the worker's messages for as long as it lives.
pub async fn receive(worker: Rc<Worker>, mut inbox: mpsc::Receiver<WorkerMessage>) {
    let mut received = 0_usize;
    while let Some(message) = inbox.recv().await {
        received += 1;
        if received.is_multiple_of(MESSAGES_IN_A_ROW) {
            varve_rpc::yield_now().await;
        }
        match message {
            WorkerMessage::EndSession { session, done } => {
                worker.end_session(session);
                // The server may be stopping.
                let _ = done.send(());
            }
            WorkerMessage::LocalCall(local_call) => local_session::receive(&worker, local_call),
            WorkerMessage::TakeOver { shard, handover, reply } => {
                let taker = Rc::clone(&worker);
                // The worker that the shard leaves waits for the reply as long as it lives.
                worker.spawn(async move { drop(reply.send(taker.take_over(shard, handover).await)) });
            }
            WorkerMessage::Own { shard, term, after } => {
                let owner = Rc::clone(&worker);
                worker.spawn(async move { owner.own(shard, term, after).await });
            }
            WorkerMessage::GiveAway { shard, reply } => {
                let owner = Rc::clone(&worker);
                // The thread that asks waits for the reply until the server ends.
                worker.spawn(async move { drop(reply.send(owner.give_away(shard).await)) });
            }
            WorkerMessage::Gone { shard } => worker.gone(shard),
            WorkerMessage::SyncShards { reply } => {
                let owner = Rc::clone(&worker);
                worker.spawn(async move {
                    let mut synced = !owner.slots.owe_syncs();
                    for shard in owner.slots.all_open() {
                        synced &= shard.sync().await.is_ok();
                    }
                    // The server may be stopping.
                    let _ = reply.send(synced);
                });
            }
            WorkerMessage::Peer { request, reply } => {
                let asked = Rc::clone(&worker);
                worker.spawn(async move {
                    // The caller may be gone; then the reply is dropped.
                    let _ = reply.send(answer(&asked, request).await);
                });
            }
        }
    }
}

/// Executes the server's commands for as long as the worker lives.
pub async fn obey(worker: Rc<Worker>, mut command: watch::Receiver<ServerCommand>) {
    loop {
        let reported = *command.borrow_and_update();
        match reported {
            ServerCommand::Open => {}
            ServerCommand::Accept => worker.accept(),
            ServerCommand::Drain => worker.drain(),
            ServerCommand::Close => worker.close(),
        }
        // The server outlives its workers, so a closed channel is a stop.
        if command.changed().await.is_err() {
            return worker.close();
        }
    }
}

/// Executes a request of another shard at one of this worker's shards. It is not begun after its deadline.
async fn answer(worker: &Rc<Worker>, request: PeerRequest) -> Delivered {
    let shard = request.to;
    let to = if request.call.only_reads() { OpenPurpose::Read } else { OpenPurpose::Change };
    reopen_if_failed(worker, shard);
    if let PeerCall::Files(_) = request.call {
        return answer_about_files(worker, request).await;
    }
    let opened = match worker.slots.open_to_peer(shard, &request.call) {
        Some(open) => Ok(Ok(open)),
        None => tokio::time::timeout(request.deadline, worker.opened(shard, to)).await,
    };
    match opened {
        Ok(Ok(opened)) => {
            let _call = opened.begin_call(CallOrigin::Peer);
            let response = opened.serve(request).await;
            reopen_if_failed(worker, shard);
            match worker.shared.lease.is_valid() {
                true => Ok(Ok(response)),
                // The shard may have another owner by now, which does not know of this answer.
                false => {
                    let reason = format!("the lease of the server ended before shard {shard} had answered");
                    Ok(Err(Cause { errno: LOST, reason }))
                }
            }
        }
        Ok(Err(NotOpen::Elsewhere)) => Err(Box::new(request)),
        Ok(Err(NotOpen::Failed(cause))) => Ok(Err(cause)),
        Err(_) => Ok(Err(format!("shard {shard} is not open").into())),
    }
}

/// Executes a request about open files of a shard, which need not be open: other shards depend on the answer.
async fn answer_about_files(worker: &Rc<Worker>, request: PeerRequest) -> Delivered {
    let shard = request.to;
    match tokio::time::timeout(request.deadline, worker.open_files(shard)).await {
        Ok(Ok(open_files)) => {
            let ServerShared { settings, clock, sessions, peer_network, .. } = &*worker.shared;
            if let (PeerCall::Files(FileCall::Register(used)), Some(_)) = (&request.call, peer_network.get())
                && !sessions.enter_registered(used.session)
            {
                let reason = format!("session {:016x} is being ended", used.session.0);
                return Ok(Err(Cause { errno: LOST, reason }));
            }
            Ok(Ok(open_files.serve(request, settings.shards, clock.monotonic())))
        }
        Ok(Err(NotOpen::Elsewhere)) => Err(Box::new(request)),
        Ok(Err(NotOpen::Failed(cause))) => Ok(Err(cause)),
        Err(_) => Ok(Err(format!("shard {shard} is being moved").into())),
    }
}

/// Only other shards may be calling this shard, so a failure must be noticed here too.
fn reopen_if_failed(worker: &Rc<Worker>, shard: ShardId) {
    if let Some(failed) = worker.shard(shard).filter(|shard| shard.has_failed()) {
        worker.reopen(&failed);
    }
}
