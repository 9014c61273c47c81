//! How requests reach the workers of a server.
//!
//! [`Transport`] is the seam: over sockets it blocks ([`blocking`]), in a simulated cluster it will wait on the simulated
//! network. What is above it (sessions, retries, routing) does not know the difference.

pub mod blocking;
mod connection;
pub mod in_process;
mod reply_slot;

use futures::future::BoxFuture;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::{Request, Response};
use varve_types::ShardId;

/// A server that has been found and has welcomed this session.
#[derive(Debug)]
pub struct FoundServer {
    /// Counts the servers (or the same one, found again) that this client has had; from 1.
    pub found: u64,
    /// The worker that owns each shard, by shard.
    pub owners: Vec<u16>,
    pub workers: usize,
    pub embedded: bool,
}

impl FoundServer {
    /// The worker to ask about `shard`.
    pub fn worker_of(&self, shard: ShardId) -> usize {
        self.owners.get(usize::from(shard.0)).map_or(0, |worker| usize::from(*worker))
    }
}

/// Why no server was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// Nobody serves the volume, or the one who should does not answer: it may come back.
    #[error("{0}")]
    Absent(String),
    /// The server does not want this client, or is not what it should be: asking again is of no use.
    #[error("{0}")]
    Refused(String),
}

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection broke; the server may or may not have done what was asked.
    #[error("the connection to the server is lost: {0}")]
    Lost(String),
    /// The deadline passed without an answer.
    #[error("the server has not answered in time")]
    Deadline,
    /// The request cannot be sent at all.
    #[error("{0}")]
    Unsendable(String),
}

pub trait Transport: Send + Sync {
    /// Looks up who serves the volume now and shakes hands; `found` numbers the answer. All connections to an earlier
    /// server are given up.
    fn find(&self, found: u64) -> BoxFuture<'_, Result<Arc<FoundServer>, FindError>>;

    /// Sends `request` to a worker of `server` and waits for its response, at most until `deadline`.
    fn call<'a>(
        &'a self,
        server: &'a FoundServer,
        worker: usize,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Response, CallError>>;

    /// Lets `wait` pass.
    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()>;

    /// A request will follow soon, probably to the worker that was asked last. Waits for nothing.
    fn rouse(&self) {}

    /// Ends all connections; nothing is called afterwards.
    fn close(&self);

    /// How many calls are under way that no thread waits for and whose answers have to be [looked for](Transport::bring_answers).
    fn awaited(&self) -> usize {
        0
    }

    /// Has the asynchronous operations taken up whose answers have come; how many those were. Waits for nothing.
    fn bring_answers(&self, _take_up: fn(Waker)) -> usize {
        0
    }

    /// Ends the calls whose deadline has passed and that no thread waits for, if there can be any. Waits for nothing.
    fn end_late(&self) {}

    /// Closes connections that were not needed for a while, if there can be any.
    fn close_surplus(&self) {}
}
