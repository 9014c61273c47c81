//! The connection of one client: from its handshake to its end, and the requests that come on it.
//!
//! Requests of a connection run concurrently, and their replies are sent in the order in which they complete. A request
//! that has begun runs to its end whatever becomes of the connection: a change over several shards must not be dropped
//! half way, and its reply is recorded for a retry. Until then the connection counts as open, and its session as
//! connected.

use super::calls::{self, Begun};
use super::dispatch::DispatchReply;
use super::handshake::{ClientAdmission, Stays};
use super::memory_budget::MemoryCharge;
use super::sessions::{Admitted, Peer};
use super::unauthenticated::PendingGuard;
use super::worker::{ConnectionCount, Worker};
use bytes::Bytes;
use futures::FutureExt;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use varve_env::stop_point::{self, StopPoint};
use varve_proto::frame;
use varve_proto::{CallFailure, Request, Response};
use varve_rpc::{AdmitError, Answer, Handler, IncomingCall, LinkError, UnauthenticatedConnection};

#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Handshake(#[from] AdmitError),
    #[error("too many unauthenticated connections ({0}), of which this is the oldest")]
    Evicted(usize),
    #[error("{0}")]
    Link(LinkError),
    #[error("the lease of this server ended before its replies were sent: another server may own the shard")]
    LeaseEnded,
    #[error("the key of the client was revoked")]
    Revoked,
}

/// Requests in progress of one connection. Each may have a reply of 1 MiB, which no budget knows before it is made.
const IN_FLIGHT_MAX: usize = 64;

/// Serves a connection from its first byte to its last. The error states the peer's violation or the failure.
pub async fn serve(
    accepted: UnauthenticatedConnection,
    peer: Peer,
    worker: Rc<Worker>,
    pending: PendingGuard,
    count: ConnectionCount,
) -> Result<(), ConnectionError> {
    let limits = &worker.shared.limits;
    let admission = ClientAdmission { worker: Rc::clone(&worker), peer };
    let deadline = worker.event_loop.now().after(limits.handshake);
    let (link, (caller, stays)) = tokio::select! {
        admitted = accepted.admit(&admission, deadline) => admitted?,
        () = pending.evicted() => return Err(ConnectionError::Evicted(limits.unauthenticated)),
        () = worker.stopping() => return Ok(()),
    };
    drop(pending);
    let revoked = stays.key.revoked();
    let held = RefCell::new(MemoryCharge::of(&worker.memory_held, 0));
    let connection =
        ClientConnection { worker: Rc::clone(&worker), caller: Arc::new(caller), _stays: stays, _count: count };
    let handler = Rc::new(ConnectionHandler { connection: Rc::new(connection), held });
    let limits = varve_rpc::Limits { silence: limits.stall, in_flight: IN_FLIGHT_MAX, ..varve_rpc::Limits::default() };
    tokio::select! {
        why = varve_rpc::serve(&worker.event_loop, link, handler, limits, worker.stopping()) => match why {
            LinkError::Closed | LinkError::ClosedHere => Ok(()),
            LinkError::MayNotReply => Err(ConnectionError::LeaseEnded),
            why => Err(ConnectionError::Link(why)),
        },
        () = revoked => Err(ConnectionError::Revoked),
    }
}

/// An authenticated connection, with the requests in progress that came on it.
struct ClientConnection {
    worker: Rc<Worker>,
    caller: Arc<Admitted>,
    _stays: Stays,
    _count: ConnectionCount,
}

struct ConnectionHandler {
    connection: Rc<ClientConnection>,
    /// The replies that wait to be sent.
    held: RefCell<MemoryCharge>,
}

impl Handler for ConnectionHandler {
    fn handle(&self, call: IncomingCall) -> Answer {
        let ClientConnection { worker, caller, .. } = &*self.connection;
        let request = match frame::decode_body::<Request>(&call.request) {
            Ok(request) => request,
            Err(error) => return Answer::Violation(error.to_string()),
        };
        if !caller.is_named_by(&request) {
            let (used, own) = (request.id.session, caller.session.0);
            return Answer::Violation(format!("request of session {used:016x} on a connection of session {own:016x}"));
        }
        worker.metrics.received(call.request.len());
        match calls::begin(worker, caller, request, call.request.len()) {
            Begun::Done(reply) => Answer::Now(counted(worker, encoded(reply))),
            Begun::Waits(pending) => {
                let connection = Rc::clone(&self.connection);
                let whole = async move {
                    let reply = counted(&connection.worker, encoded(pending.await));
                    drop(connection);
                    reply
                };
                Answer::Later(whole.boxed_local())
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.connection.worker.memory_held.is_much()
    }

    fn replies_held(&self, bytes: usize) {
        self.held.borrow_mut().set(bytes);
    }

    fn may_reply(&self) -> bool {
        let allowed = self.connection.worker.shared.lease.is_valid();
        if allowed {
            stop_point::reach(StopPoint::ReplyAllowed);
        }
        allowed
    }
}

fn counted(worker: &Worker, reply: Bytes) -> Bytes {
    worker.metrics.sent(reply.len());
    reply
}

/// The bytes of a reply, or the reason why it cannot be sent.
fn encoded(reply: DispatchReply) -> Bytes {
    let (id, body) = match reply {
        DispatchReply::Response(response) => (response.id, frame::body_of(&response)),
        DispatchReply::Recorded { body, .. } if body.len() <= frame::FRAME_BYTES_MAX => return body,
        DispatchReply::Recorded { id, body } => (id, Err(frame::FrameError::TooLong(body.len()))),
    };
    let body = body.or_else(|error| {
        tracing::error!(?id, "cannot send a reply: {error}");
        let failure = CallFailure::Server { errno: libc::EIO, message: format!("cannot send the reply: {error}") };
        frame::body_of(&Response { id, result: Err(failure) })
    });
    body.expect("a short failure is encoded").into()
}
