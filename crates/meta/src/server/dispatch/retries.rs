//! Changes that clients send more than once: calls in progress, so that a retry that overtakes its first attempt waits
//! for it, and calls whose first attempt has an unknown outcome.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use varve_env::key_hash::KeyHashing;
use varve_proto::CallId;
use varve_types::SessionId;

type Calls = RefCell<HashSet<CallId, KeyHashing>>;

#[derive(Default)]
pub struct InFlight(Rc<Calls>);

impl InFlight {
    /// Marks a call as in progress until the returned value is dropped; `None` if it already is in progress.
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

/// The last change of each slot of a session whose shard failed during it. The client was asked to send that change
/// again, which happens once: the server does not retry until the client's deadline at a store that takes no writes.
#[derive(Default)]
pub struct UnknownOutcomeCalls(RefCell<HashMap<(u64, u32), u64>>);

impl UnknownOutcomeCalls {
    /// Records the call. `true` if it was not recorded before.
    pub fn is_first_of(&self, id: CallId) -> bool {
        self.0.borrow_mut().insert((id.session, id.slot), id.number) != Some(id.number)
    }

    /// The session has ended and sends no retries.
    pub fn end_session(&self, session: SessionId) {
        self.0.borrow_mut().retain(|(of, _), _| *of != session.0);
    }
}
