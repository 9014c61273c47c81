//! Sends requests to the workers of the servers of a volume.
//!
//! [`Transport`] is the boundary: [`remote`] has a connection of each calling thread to each worker, [`in_process`]
//! passes requests as they are. The layers above (sessions, retries, routing) do not distinguish them.

pub mod in_process;
pub mod remote;

use futures::future::LocalBoxFuture;
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

/// All threads share a transport. A future that it returns is polled by the loop of the thread that has asked for it.
pub trait Transport: Send + Sync {
    /// Finds a server of the volume, by the records in the store, and performs the handshake.
    fn find(&self) -> LocalBoxFuture<'_, Result<ServerWelcome, FindError>>;

    /// Performs the handshake with the server that listens at the addresses of `server`: another one may have taken its
    /// place.
    fn greet<'a>(&'a self, server: &'a MapServer) -> LocalBoxFuture<'a, Result<ServerWelcome, FindError>>;

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
    ) -> LocalBoxFuture<'a, Result<Response, CallError>>;

    /// Waits for the time `wait`.
    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()>;

    /// Ends all connections; no other method is called afterwards.
    fn close(&self);

    /// Whether a call has waited for a second or longer since this was last asked.
    fn any_waited(&self) -> bool {
        false
    }
}
