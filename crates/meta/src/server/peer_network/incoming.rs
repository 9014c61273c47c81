//! Calls of other servers: admits them, and passes their requests to the workers.

use super::members::Members;
use super::unauthenticated::Unauthenticated;
use super::{HeldBytes, NO_WORKER, PeerLimits, PeerNetworkConfig, ShardRoute, within};
use crate::server::inbox::WorkerMessage;
use crate::server::listener::ACCEPT_PAUSE;
use crate::shards::LOST;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{Either, LocalBoxFuture, Shared, select};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use varve_cluster::lease::Lease;
use varve_env::clock::Instant;
use varve_env::identity::is_nobody;
use varve_env::rate_limited_log::RateLimitedLog;
use varve_proto::handshake::{Answer as HandshakeAnswer, Hello, KeyId, Offer, Purpose, VolumeKey, Welcome};
use varve_rpc::{
    Admission, AdmitError, Answer, Handler, IncomingCall, Listener, LoopHandle, PeerOrigin, StreamLink,
    UnauthenticatedConnection, serve,
};
use varve_schema::peer::codec::{decode_request, encode_response};
use varve_schema::peer::{PeerReply, PeerRequest, PeerResponse, ShardTerm};
use varve_types::{Cause, Errno, ShardId, VolumeId};

/// A refused peer gets the reason within this time after the deadline of its handshake.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// The subject of a failure in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum About {
    Connections,
    RequestsOf(u64),
}

pub struct Incoming {
    event_loop: LoopHandle,
    volume: VolumeId,
    key: VolumeKey,
    number: u64,
    trusted: Vec<u32>,
    limits: PeerLimits,
    lease: Arc<Lease>,
    route: ShardRoute,
    members: Rc<Members>,
    unauthenticated: Rc<Unauthenticated>,
    /// One connection for each server: a later one replaces it. Dropping the sender ends it.
    connections: RefCell<HashMap<u64, (u64, oneshot::Sender<()>)>>,
    numbered: Cell<u64>,
    running: Cell<usize>,
    ended: Notify,
    bytes: Arc<AtomicUsize>,
    stopping: Shared<LocalBoxFuture<'static, ()>>,
    error_log: RateLimitedLog<About>,
}

impl Incoming {
    pub fn new(
        event_loop: &LoopHandle,
        config: PeerNetworkConfig,
        members: Rc<Members>,
        stopping: Shared<LocalBoxFuture<'static, ()>>,
    ) -> Incoming {
        Incoming {
            event_loop: event_loop.clone(),
            volume: config.volume,
            key: config.key,
            number: config.number,
            trusted: config.trusted,
            limits: config.limits,
            lease: config.lease,
            route: config.route,
            members,
            unauthenticated: Rc::default(),
            connections: RefCell::default(),
            numbered: Cell::default(),
            running: Cell::default(),
            ended: Notify::new(),
            bytes: Arc::default(),
            stopping,
            error_log: RateLimitedLog::default(),
        }
    }

    /// Accepts connections at `listener`, if there is one.
    pub async fn accept(self: Rc<Self>, listener: Option<Listener>) {
        let Some(listener) = listener else { return std::future::pending().await };
        loop {
            self.unauthenticated.room(&self.event_loop).await;
            match listener.accept().await {
                Ok(accepted) => {
                    let incoming = Rc::clone(&self);
                    let guard = self.unauthenticated.enter(self.event_loop.now());
                    self.event_loop.spawn(async move {
                        let until = incoming.event_loop.now().after(incoming.limits.handshake + FAREWELL_TIME);
                        let admitted = guard.run(&incoming.event_loop, until, incoming.admit(accepted)).await;
                        if let Some(Some((link, server))) = admitted {
                            incoming.serve(link, server).await;
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    self.event_loop.timer(self.event_loop.now().after(ACCEPT_PAUSE)).await;
                }
            }
        }
    }

    /// The link to another server, and its number.
    async fn admit(&self, accepted: UnauthenticatedConnection) -> Option<(StreamLink, u64)> {
        let origin = accepted.origin;
        let ended = match self.check_process(origin) {
            Ok(()) => {
                let deadline = self.event_loop.now().after(self.limits.handshake);
                accepted.admit(self, deadline).await
            }
            Err(reason) => {
                accepted.refuse(&HandshakeAnswer::Refused { reason: reason.clone() }).await;
                Err(AdmitError::Refused(reason))
            }
        };
        match ended {
            Ok(admitted) => Some(admitted),
            Err(error @ (AdmitError::Io(_) | AdmitError::Ended(0))) => {
                tracing::debug!(?origin, "{error}");
                None
            }
            Err(error) => {
                if let Some(suppressed) = self.error_log.due(About::Connections, self.event_loop.now()) {
                    tracing::warn!(peer = ?origin, "connection closed{suppressed}: {error}");
                }
                None
            }
        }
    }

    fn check_process(&self, origin: PeerOrigin) -> Result<(), String> {
        match origin {
            PeerOrigin::Process(process) if is_nobody(process.uid) || !self.trusted.contains(&process.uid) => {
                Err(format!("user {} may not serve this volume", process.uid))
            }
            PeerOrigin::Process(_) | PeerOrigin::Host(_) => Ok(()),
        }
    }

    async fn serve(self: Rc<Self>, link: StreamLink, server: u64) {
        self.numbered.set(self.numbered.get() + 1);
        let (number, (stays, replaced)) = (self.numbered.get(), oneshot::channel());
        self.connections.borrow_mut().insert(server, (number, stays));
        self.running.set(self.running.get() + 1);
        let handler = Rc::new(PeerHandler { incoming: Rc::clone(&self), server });
        let serving = serve(&self.event_loop, link, handler, self.limits.of_connection(), self.stopping.clone());
        match select(pin!(serving), replaced).await {
            Either::Left((why, _)) => tracing::debug!("a connection of server {server:016x} ended: {why}"),
            Either::Right(_) => tracing::debug!("a connection of server {server:016x} was ended"),
        }
        let mut connections = self.connections.borrow_mut();
        if connections.get(&server).is_some_and(|(last, _)| *last == number) {
            connections.remove(&server);
        }
        self.running.set(self.running.get() - 1);
        self.ended.notify_waiters();
    }

    /// Ends the connections of servers that are no members any more.
    pub fn end_strangers(&self) {
        self.connections.borrow_mut().retain(|server, _| self.members.contains(*server));
    }

    /// Ready when no connection is left.
    pub async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.running.get() == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Admission for Incoming {
    /// The number of the calling server.
    type Admitted = u64;

    fn volume(&self) -> [u8; 16] {
        self.volume.0
    }

    fn volume_name(&self) -> String {
        format!("volume {}", self.volume)
    }

    fn worker(&self) -> u16 {
        NO_WORKER
    }

    /// A host's key is none here: its holder is a client.
    async fn key(&self, id: KeyId) -> Result<Option<VolumeKey>, String> {
        Ok((id == KeyId::VOLUME).then(|| self.key.clone()))
    }

    fn admit(&self, hello: &Hello, offer: &Offer, _: VolumeKey, _: PeerOrigin) -> Result<(u64, Welcome), Welcome> {
        let refused = |reason: String| Err(Welcome::Refused { reason });
        let caller = hello.session;
        match hello.purpose {
            Purpose::Peer { server } if server == self.number && caller != self.number => {}
            Purpose::Peer { server } if server == self.number => {
                return refused("a server does not call itself".into());
            }
            Purpose::Peer { server } => {
                return refused(format!("this is server {:016x}, not {server:016x}", self.number));
            }
            Purpose::Work | Purpose::Observe | Purpose::Administer => {
                return refused("this address is for servers of the volume; clients connect to its workers".into());
            }
        }
        if !offer.credential.is_empty() {
            return refused("a server sends no user credential".into());
        }
        if !self.members.contains(caller) {
            // Its map may be newer than this server's: it tries again.
            let reason = format!("server {:016x} does not know server {caller:016x}", self.number);
            return Err(Welcome::Crowded { reason });
        }
        Ok((caller, Welcome::Peer))
    }
}

/// Serves one connection.
struct PeerHandler {
    incoming: Rc<Incoming>,
    server: u64,
}

impl Handler for PeerHandler {
    fn handle(&self, call: IncomingCall) -> Answer {
        let incoming = Rc::clone(&self.incoming);
        let request = match decode_request(&call.request) {
            Ok(request) => request,
            Err(error) => return Answer::Now(self.unreadable(&error.to_string())),
        };
        let held = HeldBytes::new(&incoming.bytes, call.request.len());
        Answer::Later(
            async move {
                let _held = held;
                encoded(incoming.pass_on(request, call.deadline).await)
            }
            .boxed_local(),
        )
    }

    fn has_room(&self) -> bool {
        self.incoming.bytes.load(SeqCst) < self.incoming.limits.bytes
    }

    fn may_reply(&self) -> bool {
        self.incoming.lease.is_valid()
    }
}

impl PeerHandler {
    fn unreadable(&self, error: &str) -> Bytes {
        let (log, now) = (&self.incoming.error_log, self.incoming.event_loop.now());
        if let Some(suppressed) = log.due(About::RequestsOf(self.server), now) {
            tracing::warn!("a request of server {:016x} cannot be read{suppressed}: {error}", self.server);
        }
        let reason = format!("server {:016x} cannot read the request: {error}", self.incoming.number);
        encoded(by_server(0, ShardId(0), PeerReply::Failed(reason.into())))
    }
}

impl Incoming {
    /// Passes a request to the worker that owns the shard, and returns its response. Waits until the earlier of the
    /// deadlines of the request and of its message.
    async fn pass_on(&self, mut request: PeerRequest, deadline: Instant) -> PeerResponse {
        let (id, shard) = (request.id, request.to);
        let by_server = |reply| by_server(id, shard, reply);
        let now = self.event_loop.now();
        request.deadline = request.deadline.min(deadline.since(now));
        let deadline = now.after(request.deadline);
        let Some(inbox) = (self.route)(shard) else { return by_server(PeerReply::Elsewhere) };
        let (reply, answer) = oneshot::channel();
        let sent = within(&self.event_loop, deadline, inbox.send(WorkerMessage::Peer { request, reply })).await;
        match sent {
            Some(Ok(())) => {}
            Some(Err(_)) => return by_server(PeerReply::Elsewhere),
            None => return by_server(PeerReply::Busy),
        }
        match within(&self.event_loop, deadline, answer).await {
            Some(Ok(Ok(Ok(response)))) => response,
            Some(Ok(Ok(Err(cause)))) => by_server(PeerReply::Failed(cause)),
            Some(Ok(Err(_not_carried_out))) => by_server(PeerReply::Elsewhere),
            Some(Err(_)) => {
                let reason = format!("the worker of shard {shard} has ended");
                by_server(PeerReply::Failed(Cause { errno: LOST, reason }))
            }
            None => {
                let reason = format!("the worker of shard {shard} has not replied in time");
                by_server(PeerReply::Failed(Cause { errno: Errno::ETIMEDOUT, reason }))
            }
        }
    }
}

/// A response that is not the shard's.
fn by_server(id: u64, shard: ShardId, reply: PeerReply) -> PeerResponse {
    PeerResponse { id, from: ShardTerm { shard, term: ShardTerm::NONE }, reply }
}

fn encoded(response: PeerResponse) -> Bytes {
    let bytes = encode_response(&response).or_else(|error| {
        let failed = PeerReply::Failed(format!("the response cannot be sent: {error}").into());
        encode_response(&PeerResponse { reply: failed, ..response })
    });
    bytes.expect("a response with a short reason is short").into()
}
