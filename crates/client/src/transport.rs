//! Sends requests to the workers of the servers of a volume.
//!
//! [`Transport`] is the boundary: over sockets it blocks ([`blocking`]); in a simulated cluster it will wait on the
//! simulated network. The layers above (sessions, retries, routing) do not distinguish them.

pub mod blocking;
mod connection;
pub mod in_process;
mod reply_slot;

use futures::future::BoxFuture;
use std::task::Waker;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::{Request, Response};
use varve_types::{MapServer, ShardMap, WorkerPlace};

/// The welcome of a server that has accepted this session.
#[derive(Debug)]
pub struct ServerWelcome {
    /// The number by which the server identifies itself.
    pub server: u64,
    pub map: ShardMap,
    /// The server runs inside this mount and serves only this mount.
    pub embedded: bool,
}

/// The reason why no server was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// The volume has no server, or the server does not answer: it may come back.
    #[error("{0}")]
    Absent(String),
    /// A server lives and takes no client now: it is at a limit, its lease is late, or it is stopping.
    #[error("{0}")]
    Unready(String),
    /// The server refuses this client, or is not the expected one: a retry is of no use.
    #[error("{0}")]
    Refused(String),
}

/// The reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection to the server of this number broke; it may or may not have executed the request.
    #[error("the connection to the server is lost: {why}")]
    Lost { server: u64, why: String },
    /// The deadline passed without a response.
    #[error("the server has not answered in time")]
    Deadline,
    /// The request cannot be sent at all.
    #[error("{0}")]
    Unsendable(String),
}

pub trait Transport: Send + Sync {
    /// Finds a server of the volume, by the records in the store, and performs the handshake.
    fn find(&self) -> BoxFuture<'_, Result<ServerWelcome, FindError>>;

    /// Performs the handshake with the server that listens at the addresses of `server`: another one may have taken its
    /// place.
    fn greet<'a>(&'a self, server: &'a MapServer) -> BoxFuture<'a, Result<ServerWelcome, FindError>>;

    /// From now on calls go to the servers of `map`. Connections to other servers are given up.
    fn follow(&self, map: &ShardMap);

    /// Closes the connections to a server that have no call in progress, because one of them broke.
    fn lose(&self, server: u64);

    /// Sends `request` to a worker and waits for its response, at most until `deadline`.
    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Response, CallError>>;

    /// Waits for the time `wait`.
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()>;

    /// Announces a request that will follow soon, probably to the last used worker. Does not block.
    fn rouse(&self) {}

    /// Ends all connections; no other method is called afterwards.
    fn close(&self);

    /// Number of calls in progress without a waiting thread, whose replies must be [polled
    /// for](Transport::bring_answers).
    fn awaited(&self) -> usize {
        0
    }

    /// Resumes the asynchronous operations whose replies have arrived; returns their number. Does not block.
    fn bring_answers(&self, _take_up: fn(Waker)) -> usize {
        0
    }

    /// Ends the calls without a waiting thread whose deadline has passed, or whose server has left the map. Does not
    /// block.
    fn end_late(&self) {}

    /// Whether a call has waited for a second or longer since this was last asked.
    fn any_waited(&self) -> bool {
        false
    }

    /// Closes connections that were not needed for a while, if the transport has any.
    fn close_surplus(&self) {}
}
