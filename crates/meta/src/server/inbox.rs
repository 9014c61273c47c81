//! The message inbox of a worker, and the calls between shards of different workers.

use super::local_session::{self, LocalCall};
use super::opening::{NotOpen, NotTakenOver, OpenPurpose, ShardHandover};
use super::shared::ServerShared;
use super::worker::Worker;
use crate::shards::{CallOrigin, Cause, PeerCall, PeerRequest, PeerResponse, Peers, SentRequest};
use std::rc::{Rc, Weak};
use tokio::sync::{mpsc, oneshot, watch};
use varve_types::{SessionId, ShardId};

/// Maximum messages that wait for a worker. The receive loop only spawns tasks, so the queue is short even under load.
/// A sender that finds it full waits.
pub const INBOX_MAX: usize = 1024;

/// How often a call is delivered to the worker that owns its shard at that time.
const DELIVERIES_MAX: usize = 100;

/// A response, or the request if it was not carried out, because its worker does not own the shard.
pub type Delivered = Result<Result<PeerResponse, Cause>, Box<PeerRequest>>;

pub enum WorkerMessage {
    /// A call from another worker's shard to one of this worker's shards.
    Peer { request: PeerRequest, reply: oneshot::Sender<Delivered> },
    /// A shard that another worker has closed for this one.
    TakeOver { shard: ShardId, handover: ShardHandover, reply: oneshot::Sender<Result<(), NotTakenOver>> },
    /// The session has ended: the worker's shards drop what they have registered of it.
    EndSession { session: SessionId, done: oneshot::Sender<()> },
    /// A request of a client in this process.
    LocalCall(LocalCall),
    /// A client in this process is about to send a request.
    Rouse,
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
    async fn deliver(&self, mut request: PeerRequest) -> Result<PeerResponse, Cause> {
        let shard = request.to;
        // A shard moves rarely, and each move takes longer than a delivery.
        for _ in 0..DELIVERIES_MAX {
            match self.deliver_to_owner(request).await {
                Ok(response) => return response,
                Err(not_carried_out) => request = *not_carried_out,
            }
        }
        Err(format!("shard {shard} moves from worker to worker").into())
    }

    async fn deliver_to_owner(&self, request: PeerRequest) -> Delivered {
        let (shard, deadline) = (request.to, request.deadline);
        let Some(own) = self.worker.upgrade() else {
            return Ok(Err("the worker has ended".into()));
        };
        let Some(owner) = own.shared.shard_map.worker(shard) else {
            return Ok(Err(format!("no worker of this server owns shard {shard}").into()));
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

impl Peers for WorkerPeers {
    fn send(&self, request: PeerRequest) -> SentRequest<'_> {
        Box::pin(self.deliver(request))
    }
}

/// Receives the worker's messages for as long as it lives.
pub async fn receive(worker: Rc<Worker>, mut inbox: mpsc::Receiver<WorkerMessage>) {
    let mut next = None;
    loop {
        let Some(message) = (match next.take() {
            Some(message) => Some(message),
            None => inbox.recv().await,
        }) else {
            return;
        };
        match message {
            WorkerMessage::Rouse => next = worker.busy_poll.rouse(|| inbox.try_recv().ok()).await,
            WorkerMessage::EndSession { session, done } => {
                worker.end_session(session);
                // The server may be stopping.
                let _ = done.send(());
            }
            WorkerMessage::LocalCall(local_call) => local_session::receive(&worker, local_call, inbox.is_empty()),
            WorkerMessage::TakeOver { shard, handover, reply } => {
                let taker = Rc::clone(&worker);
                // The worker that the shard leaves waits for the reply as long as it lives.
                worker.spawn(async move { drop(reply.send(taker.take_over(shard, handover).await)) });
            }
            WorkerMessage::Peer { request, reply } => {
                worker.busy_poll.came();
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
            Ok(Ok(response))
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
            let ServerShared { settings, clock, .. } = &*worker.shared;
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
