//! Sends requests to the workers of a server.
//!
//! [`Transport`] is the boundary: over sockets it blocks ([`blocking`]); in a simulated cluster it will wait on the
//! simulated network. The layers above (sessions, retries, routing) do not distinguish them.

pub mod blocking;
mod connection;
pub mod in_process;
mod reply_slot;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::{Request, Response, WireShardMap};
use varve_types::{InvalidShardMap, ShardCount, ShardId, ShardMap};

/// A server that was found and has accepted this session.
#[derive(Debug)]
pub struct FoundServer {
    /// Number of the server among those that this client has found; the same server found again counts anew. Starts at
    /// 1.
    pub found: u64,
    /// The number by which the server identifies itself.
    pub number: u64,
    pub shards: ShardCount,
    /// Replaced when the server reports a newer version.
    pub map: RwLock<Arc<ShardMap>>,
    pub embedded: bool,
}

impl FoundServer {
    /// The worker for requests about `shard`. The first one answers for shards that do not exist.
    pub fn worker_of(&self, shard: ShardId) -> usize {
        let owner = self.map.read().owner(shard).filter(|owner| owner.server == self.number);
        owner.map_or(0, |owner| owner.worker)
    }

    /// Takes the map over with which `asked`, a worker of this server, has refused a request about `shard`. Returns
    /// whether another worker is to be asked now.
    pub fn learn(&self, map: &WireShardMap, shard: ShardId, asked: usize) -> Result<bool, InvalidShardMap> {
        if map.version > self.map.read().version() {
            *self.map.write() = Arc::new(map.to_map(self.shards)?);
        }
        // Another thread may have learned the map first.
        Ok(self.worker_of(shard) != asked)
    }
}

/// The reason why no server was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// The volume has no server, or the server does not answer: it may come back.
    #[error("{0}")]
    Absent(String),
    /// The server refuses this client, or is not the expected one: a retry is of no use.
    #[error("{0}")]
    Refused(String),
}

/// The reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection broke; the server may or may not have executed the request.
    #[error("the connection to the server is lost: {0}")]
    Lost(String),
    /// The deadline passed without a response.
    #[error("the server has not answered in time")]
    Deadline,
    /// The request cannot be sent at all.
    #[error("{0}")]
    Unsendable(String),
}

pub trait Transport: Send + Sync {
    /// Finds the present server of the volume and performs the handshake; `found` becomes its number. All connections
    /// to an earlier server are given up.
    fn find(&self, found: u64) -> BoxFuture<'_, Result<Arc<FoundServer>, FindError>>;

    /// Sends `request` to a worker of `server` and waits for its response, at most until `deadline`.
    fn call<'a>(
        &'a self,
        server: &'a FoundServer,
        worker: usize,
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

    /// Ends the calls without a waiting thread whose deadline has passed, if the transport has any. Does not block.
    fn end_late(&self) {}

    /// Closes connections that were not needed for a while, if the transport has any.
    fn close_surplus(&self) {}
}
