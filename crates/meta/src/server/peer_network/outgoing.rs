//! Connections to the other servers, and calls of them.

use super::members::PeerMember;
use super::{HeldBytes, NO_WORKER, NotAnswered, PeerLimits, PeerNetworkConfig};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{Either, LocalBoxFuture, select};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};
use varve_env::clock::Instant;
use varve_env::rate_limited_log::RateLimitedLog;
use varve_proto::handshake::{KeyId, Purpose, Welcome};
use varve_rpc::{BlockingPool, CallError, Connection, Dial, DialError, Dialer, Identity, LoopHandle, Peer};
use varve_schema::peer::codec::decode_response;
use varve_schema::peer::{PeerReply, PeerResponse, ShardTerm};
use varve_types::ShardId;

/// Threads that look up the names of other hosts, and lookups that wait for one. A name server may hang.
const LOOKUP_THREADS: usize = 2;
const LOOKUPS_MAX: usize = 256;

/// A call on its way to the thread.
pub struct QueuedCall {
    pub server: u64,
    pub shard: ShardId,
    pub body: Bytes,
    pub ends_something: bool,
    pub deadline: Instant,
    pub reply: oneshot::Sender<Result<PeerResponse, NotAnswered>>,
    pub held: HeldBytes,
}

pub struct Outgoing {
    event_loop: LoopHandle,
    pool: BlockingPool,
    number: u64,
    boot_id: String,
    identity: Identity,
    limits: PeerLimits,
    links: RefCell<HashMap<u64, MemberLink>>,
    /// Refusals, by server.
    refusals: Rc<RateLimitedLog<u64>>,
}

/// Another server, and the calls of it that are in progress.
struct MemberLink {
    member: PeerMember,
    peer: Peer,
    calls: Rc<Cell<usize>>,
}

/// Counts a call until it has ended.
struct CallCount(Rc<Cell<usize>>);

impl CallCount {
    fn new(calls: &Rc<Cell<usize>>) -> CallCount {
        calls.set(calls.get() + 1);
        CallCount(Rc::clone(calls))
    }
}

impl Drop for CallCount {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Outgoing {
    pub fn new(event_loop: &LoopHandle, config: &PeerNetworkConfig) -> Outgoing {
        // The purpose is that of each connection.
        let identity = Identity {
            volume: config.volume.0,
            key_id: KeyId::VOLUME,
            key: config.key.clone(),
            session: config.number,
            purpose: Purpose::Peer { server: config.number },
            trusted: config.trusted.clone(),
        };
        Outgoing {
            event_loop: event_loop.clone(),
            pool: BlockingPool::new(LOOKUP_THREADS, LOOKUPS_MAX),
            number: config.number,
            boot_id: config.boot_id.clone(),
            identity,
            limits: config.limits,
            links: RefCell::default(),
            refusals: Rc::default(),
        }
    }

    /// See [`PeerNetworkHandle::set_members`](super::PeerNetworkHandle::set_members).
    pub fn set_members(&self, members: &[PeerMember]) {
        let mut links = self.links.borrow_mut();
        links.retain(|_, link| {
            let stays = members.contains(&link.member);
            if !stays {
                link.peer.close();
            }
            stays
        });
        for member in members.iter().filter(|member| member.number != self.number) {
            links.entry(member.number).or_insert_with(|| MemberLink {
                member: member.clone(),
                peer: Peer::new(&self.event_loop, self.dial(member)),
                calls: Rc::default(),
            });
        }
    }

    /// Makes the calls that come, each after `before`.
    pub async fn take_calls(&self, mut calls: mpsc::Receiver<QueuedCall>, before: impl Fn()) {
        while let Some(call) = calls.recv().await {
            before();
            self.begin(call);
        }
        std::future::pending().await
    }

    fn begin(&self, call: QueuedCall) {
        let QueuedCall { server, shard, body, ends_something, deadline, mut reply, held } = call;
        let links = self.links.borrow();
        let not_sent = match links.get(&server) {
            None => NotAnswered::NotSent(format!("server {server:016x} is not known here")),
            Some(link) if link.calls.get() >= self.calls_max(ends_something) => {
                NotAnswered::Overload(format!("{} calls of server {server:016x} are in progress", link.calls.get()))
            }
            Some(link) => {
                let (peer, count) = (link.peer.clone(), CallCount::new(&link.calls));
                self.event_loop.spawn(async move {
                    let counted = (count, held);
                    let ended = match select(pin!(peer.call(body, deadline)), pin!(reply.closed())).await {
                        Either::Left((ended, _)) => ended,
                        // The caller has left. Dropping the call cancels it.
                        Either::Right(_) => return,
                    };
                    // Before the caller can make its next call.
                    drop(counted);
                    let _ = reply.send(result_of(ended, server, shard));
                });
                return;
            }
        };
        // The caller may have left.
        let _ = reply.send(Err(not_sent));
    }

    fn calls_max(&self, ends_something: bool) -> usize {
        self.limits.calls + if ends_something { self.limits.ending_calls } else { 0 }
    }

    fn dial(&self, member: &PeerMember) -> Rc<dyn Dial> {
        let server = member.number;
        let identity = Identity { purpose: Purpose::Peer { server }, ..self.identity.clone() };
        let dialer = member.reached_from(&self.boot_id).map(|address| Dialer {
            event_loop: self.event_loop.clone(),
            pool: self.pool.clone(),
            address,
            worker: NO_WORKER,
            identity,
            limits: self.limits.of_connection(),
        });
        let (refusals, event_loop) = (Rc::clone(&self.refusals), self.event_loop.clone());
        Rc::new(move || -> LocalBoxFuture<'static, Result<Connection, DialError>> {
            let (dialer, refusals, event_loop) = (dialer.clone(), Rc::clone(&refusals), event_loop.clone());
            async move {
                let dialled = connect(dialer).await;
                if let Err(DialError::Refused(why) | DialError::Untrusted(why)) = &dialled
                    && let Some(suppressed) = refusals.due(server, event_loop.now())
                {
                    tracing::warn!("no connection to server {server:016x}{suppressed}: {why}");
                }
                dialled
            }
            .boxed_local()
        })
    }
}

async fn connect(dialer: Option<Dialer>) -> Result<Connection, DialError> {
    let no_address = || DialError::Unreachable("the server has no address that this host reaches".into());
    match dialer.ok_or_else(no_address)?.dial().await? {
        (connection, Welcome::Peer) => Ok(connection),
        _ => Err(DialError::Refused("the process there takes this server for a client".into())),
    }
}

/// The end of a call, in the terms of its caller.
fn result_of(ended: Result<Bytes, CallError>, server: u64, shard: ShardId) -> Result<PeerResponse, NotAnswered> {
    let of_server = |why: &dyn std::fmt::Display| format!("server {server:016x}: {why}");
    let body = ended.map_err(|error| match error {
        CallError::NotSent(cause @ varve_rpc::Cause::Overload(_)) => NotAnswered::Overload(of_server(&cause)),
        CallError::NotSent(cause) => NotAnswered::NotSent(of_server(&cause)),
        CallError::NotBegun(reason) => NotAnswered::NotCarriedOut(of_server(&reason)),
        CallError::Unknown(cause) => NotAnswered::Unknown(of_server(&cause)),
    })?;
    let response = decode_response(&body).map_err(|error| NotAnswered::Unknown(of_server(&error)))?;
    match response.reply {
        PeerReply::Elsewhere => {
            Err(NotAnswered::NotCarriedOut(format!("server {server:016x} does not own shard {shard}")))
        }
        // A response of no term is the server's: the worker failed before the shard had the request, or with it.
        PeerReply::Failed(cause) if response.from.term == ShardTerm::NONE => Err(NotAnswered::Failed(cause)),
        _ => Ok(response),
    }
}
