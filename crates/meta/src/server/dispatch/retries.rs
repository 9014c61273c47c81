//! Changes that are sent more than once: those under way, so that a retry that overtakes its own first try waits for it, and
//! those whose first try nobody knows the outcome of.

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

/// The last change of each slot of a session whose shard failed under it. Its caller was told to send it again, which is done
/// once: a store that takes no write is not to be tried until the caller's deadline.
#[derive(Default)]
pub struct UnknownOutcomeCalls(RefCell<HashMap<(u64, u32), u64>>);

impl UnknownOutcomeCalls {
    /// Notes it.
    pub fn is_first_of(&self, id: CallId) -> bool {
        self.0.borrow_mut().insert((id.session, id.slot), id.number) != Some(id.number)
    }

    /// There is nobody to send anything again.
    pub fn end_session(&self, session: SessionId) {
        self.0.borrow_mut().retain(|(of, _), _| *of != session.0);
    }
}
