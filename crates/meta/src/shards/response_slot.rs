//! The place for the response of a shard of the same worker, which comes at once or when its log has the change.

use std::cell::RefCell;
use std::rc::Rc;
use varve_schema::peer::PeerResponse;

#[derive(Clone, Default)]
pub struct ResponseSlot(Rc<RefCell<SlotState>>);

#[derive(Default)]
enum SlotState {
    #[default]
    Empty,
    Awaited(Box<dyn FnOnce(PeerResponse)>),
    Filled(PeerResponse),
}

impl ResponseSlot {
    /// Passes the response on. A slot is filled once.
    pub fn fill(&self, response: PeerResponse) {
        let before = self.0.take();
        match before {
            SlotState::Awaited(then) => then(response),
            SlotState::Empty | SlotState::Filled(_) => drop(self.0.replace(SlotState::Filled(response))),
        }
    }

    /// The response, if it has come.
    pub fn take(&self) -> Option<PeerResponse> {
        match self.0.take() {
            SlotState::Filled(response) => Some(response),
            other => {
                self.0.replace(other);
                None
            }
        }
    }

    /// Calls `then` with the response, now or when it comes.
    pub fn then(&self, then: impl FnOnce(PeerResponse) + 'static) {
        match self.take() {
            Some(response) => then(response),
            None => drop(self.0.replace(SlotState::Awaited(Box::new(then)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use varve_schema::peer::PeerReply;
    use varve_schema::samples::peer_response;

    #[test]
    fn response_reaches_a_later_and_an_earlier_receiver() {
        let received = Rc::new(Cell::new(0));
        let count = || {
            let received = Rc::clone(&received);
            move |_| received.set(received.get() + 1)
        };
        let slot = ResponseSlot::default();
        assert!(slot.take().is_none());
        slot.then(count());
        slot.fill(peer_response(PeerReply::Done));
        assert_eq!(received.get(), 1);
        let slot = ResponseSlot::default();
        slot.fill(peer_response(PeerReply::Done));
        slot.then(count());
        assert_eq!(received.get(), 2);
    }
}
