//! A server in this process and the client beside it: `meta` and `client` know each other by `wire` alone, and are
//! brought together here.

use std::sync::Arc;
use varve_client::transport::neighbour::{Neighbour, Seat};
use varve_meta::server::{Guest, Server};
use varve_types::SessionId;
use varve_wire::handshake::Purpose;
use varve_wire::{Request, Response};

/// The server of an embedded mount, for its client.
pub struct Embedded(pub Arc<Server>);

struct Place(Guest);

impl Neighbour for Embedded {
    fn join(&self, session: SessionId, purpose: Purpose) -> Result<Box<dyn Seat>, String> {
        Ok(Box::new(Place(self.0.admit(session, purpose)?)))
    }
}

impl Seat for Place {
    fn owners(&self) -> Vec<u16> {
        self.0.owners()
    }

    fn workers(&self) -> usize {
        self.0.workers()
    }

    fn embedded(&self) -> bool {
        self.0.embedded()
    }

    fn rouse(&self, worker: usize) {
        self.0.rouse(worker);
    }

    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>) {
        self.0.ask(worker, request, answered);
    }
}
