//! Authenticated connections of a worker, counted by principal.

use super::limits::{Counts, Principal};
use super::sessions::NotAdmitted;
use super::worker::Worker;
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Default)]
pub struct Clients(RefCell<Counts>);

/// Counts a connection until dropped, when the connection closes.
pub struct ClientStay {
    worker: Rc<Worker>,
    principals: Vec<Principal>,
}

impl Clients {
    /// Counts one more connection for `principals` at `worker`, if the limits allow it.
    pub fn enter(worker: &Rc<Worker>, principals: impl Iterator<Item = Principal>) -> Result<ClientStay, NotAdmitted> {
        let limits = &worker.shared.limits;
        let principals: Vec<Principal> = principals.collect();
        let mut counts = worker.clients.0.borrow_mut();
        let max = limits.connections_of_one;
        if let Some(full) = principals.iter().find(|principal| counts.of(**principal) >= max) {
            return Err(NotAdmitted::Crowded(format!(
                "{full} has {max} connections to this worker already: end mounts or programs that use the volume, or \
                 serve it with more --workers"
            )));
        }
        if worker.clients() >= limits.connections {
            return Err(NotAdmitted::Crowded(format!(
                "the server has {} client connections already: end mounts or programs that use the volume, or serve it \
                 with more --workers",
                limits.connections
            )));
        }
        principals.iter().for_each(|principal| counts.add(*principal));
        Ok(ClientStay { worker: Rc::clone(worker), principals })
    }
}

impl Drop for ClientStay {
    fn drop(&mut self) {
        let mut counts = self.worker.clients.0.borrow_mut();
        self.principals.iter().for_each(|principal| counts.take(*principal));
    }
}
