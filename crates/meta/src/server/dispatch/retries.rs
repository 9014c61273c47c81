//! Changes under way, so that a retry that overtakes its own first try waits for it.

use std::cell::RefCell;
use std::collections::HashSet;
use varve_wire::CallId;
use varve_world::key_hash::KeyHashing;

#[derive(Default)]
pub struct InFlight(RefCell<HashSet<CallId, KeyHashing>>);

impl InFlight {
    /// Notes that a call is under way, until the answer is dropped; `None`: it already is.
    pub fn enter(&self, id: CallId) -> Option<Entered<'_>> {
        self.0.borrow_mut().insert(id).then_some(Entered { in_flight: self, id })
    }
}

pub struct Entered<'a> {
    in_flight: &'a InFlight,
    id: CallId,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.in_flight.0.borrow_mut().remove(&self.id);
    }
}
