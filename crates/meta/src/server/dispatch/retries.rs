//! Changes under way, so that a retry that overtakes its own first try waits for it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use varve_wire::CallId;
use varve_world::key_hash::KeyHashing;

type Calls = RefCell<HashSet<CallId, KeyHashing>>;

#[derive(Default)]
pub struct InFlight(Rc<Calls>);

impl InFlight {
    /// Notes that a call is under way, until the answer is dropped; `None`: it already is.
    pub fn enter(&self, id: CallId) -> Option<Entered> {
        self.0.borrow_mut().insert(id).then(|| Entered { calls: Rc::clone(&self.0), id })
    }
}

pub struct Entered {
    calls: Rc<Calls>,
    id: CallId,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.calls.borrow_mut().remove(&self.id);
    }
}
