//! A server in this process and the client beside it. `meta` and `client` share only the `proto` crate, and this module
//! connects them.

use std::sync::Arc;
use varve_client::transport::in_process::{InProcessServer, InProcessSession};
use varve_meta::server::{LocalSession, Server};
use varve_proto::handshake::Purpose;
use varve_proto::{Request, Response, WireShardMap};
use varve_types::SessionId;

/// The server of an embedded mount, for its client.
pub struct Embedded(pub Arc<Server>);

struct EmbeddedSession(LocalSession);

impl InProcessServer for Embedded {
    fn join(&self, session: SessionId, purpose: Purpose) -> Result<Box<dyn InProcessSession>, String> {
        Ok(Box::new(EmbeddedSession(self.0.admit(session, purpose)?)))
    }
}

impl InProcessSession for EmbeddedSession {
    fn map(&self) -> WireShardMap {
        self.0.map()
    }

    fn embedded(&self) -> bool {
        self.0.embedded()
    }

    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>) {
        self.0.ask(worker, request, answered);
    }
}
