//! A client in the server's own process: its requests go to the workers' inboxes as they are, without a socket, an
//! encoding or a handshake.

use super::Server;
use super::calls::{self, Begun};
use super::dispatch::DispatchReply;
use super::inbox::WorkerMessage;
use super::sessions::{Admitted, NotAdmitted, Peer, SessionGuard};
use super::shared::ServerShared;
use super::worker::Worker;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use varve_env::stages::{self, Stage};
use varve_proto::handshake::{KeyId, Purpose};
use varve_proto::{CallFailure, Request, Response, WireShardMap};
use varve_types::SessionId;

/// Takes the answer to a request, on the thread of the worker that has it. Dropped uncalled, there will be none.
pub type ReplyCallback = Box<dyn FnOnce(Response) + Send>;

/// A request of a guest's on its way to a worker.
pub struct LocalCall {
    caller: Arc<Admitted>,
    request: Request,
    answered: ReplyCallback,
    sent_at: Option<Instant>,
}

/// One session of this process. While it lives the session has a connection.
pub struct LocalSession {
    shared: Arc<ServerShared>,
    inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    caller: Arc<Admitted>,
    _guard: SessionGuard,
}

impl Server {
    /// Admits `session` of this very process; the error is the reason why not.
    pub fn admit(&self, session: SessionId, purpose: Purpose) -> Result<LocalSession, String> {
        if self.inboxes.iter().any(mpsc::Sender::is_closed) {
            return Err("the server in this process has ended; unmount and mount again".into());
        }
        let peer = Peer::Local {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            pid: Some(std::process::id() as i32),
        };
        let admitted = self.shared.sessions.admit(session, purpose, peer, KeyId::VOLUME);
        let (caller, guard) = admitted.map_err(|error| match error {
            NotAdmitted::Refused(reason) | NotAdmitted::Crowded(reason) => reason,
        })?;
        let (shared, inboxes) = (Arc::clone(&self.shared), self.inboxes.clone());
        Ok(LocalSession { shared, inboxes, caller: Arc::new(caller), _guard: guard })
    }
}

impl LocalSession {
    /// The present shard map.
    pub fn map(&self) -> WireShardMap {
        WireShardMap::from(&*self.shared.shard_map.current())
    }

    pub fn embedded(&self) -> bool {
        self.shared.embedded
    }

    /// Has a worker answer a request. Waits while its inbox is full; to be called on no thread of the server's.
    pub fn ask(&self, worker: usize, request: Request, answered: ReplyCallback) {
        let Some(inbox) = self.inboxes.get(worker) else { return };
        debug_assert_eq!(request.id.session, self.caller.session.0, "a local session sends only its own requests");
        let local_call = LocalCall { caller: Arc::clone(&self.caller), request, answered, sent_at: stages::begin() };
        // An inbox that is closed is that of a worker which has ended: the visit is dropped, and with it `answered`.
        if let Err(mpsc::error::TrySendError::Full(local_call)) = inbox.try_send(WorkerMessage::LocalCall(local_call)) {
            let _ = inbox.blocking_send(local_call);
        }
    }
}

/// Answers a guest's request, at once if it need not wait.
pub fn receive(worker: &Rc<Worker>, local_call: LocalCall) {
    let LocalCall { caller, request, answered, sent_at } = local_call;
    stages::end(Stage::Queue, sent_at);
    match calls::begin(worker, &caller, request, 0) {
        Begun::Done(reply) => answered(response(reply)),
        Begun::Waits(pending) => worker.spawn(async move { answered(response(pending.await)) }),
    }
}

fn response(answer: DispatchReply) -> Response {
    match answer {
        DispatchReply::Response(response) => response,
        DispatchReply::Recorded { id, body } => postcard::from_bytes(&body).unwrap_or_else(|error| {
            let message = format!("the recorded reply is damaged: {error}");
            Response { id, result: Err(CallFailure::Server { errno: libc::EIO, message }) }
        }),
    }
}
