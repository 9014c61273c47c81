//! Connections whose peer is not authenticated yet. A server authenticates within milliseconds; a peer that does not may
//! be anyone, in any number. At the limit, the oldest one is closed once it has had the time that a slow host may need, and
//! new ones wait in the kernel's queue until then.

use super::within;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use varve_env::clock::Instant;
use varve_rpc::LoopHandle;

/// More than a volume has servers, which may all connect at once.
const UNAUTHENTICATED_MAX: usize = 256;

/// As for clients: a full queue of the kernel is processed in some seconds, while servers wait ten for a greeting.
const STAY_MIN: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct Unauthenticated {
    /// The oldest first.
    here: RefCell<VecDeque<Entry>>,
    numbered: Cell<u64>,
}

struct Entry {
    number: u64,
    at: Instant,
    /// Dropped to close the connection.
    _stays: oneshot::Sender<()>,
}

/// Counts a connection until it is authenticated or closed.
pub struct UnauthenticatedGuard {
    unauthenticated: Rc<Unauthenticated>,
    number: u64,
    evicted: oneshot::Receiver<()>,
}

impl Unauthenticated {
    pub async fn room(&self, event_loop: &LoopHandle) {
        loop {
            let oldest = match self.here.borrow().front() {
                Some(oldest) if self.here.borrow().len() >= UNAUTHENTICATED_MAX => oldest.at,
                _ => return,
            };
            event_loop.timer(oldest.after(STAY_MIN)).await;
            let mut here = self.here.borrow_mut();
            if here.len() >= UNAUTHENTICATED_MAX && here.front().is_some_and(|entry| entry.at == oldest) {
                here.pop_front();
            }
        }
    }

    pub fn enter(self: &Rc<Self>, at: Instant) -> UnauthenticatedGuard {
        self.numbered.set(self.numbered.get() + 1);
        let (number, (stays, evicted)) = (self.numbered.get(), oneshot::channel());
        self.here.borrow_mut().push_back(Entry { number, at, _stays: stays });
        UnauthenticatedGuard { unauthenticated: Rc::clone(self), number, evicted }
    }
}

impl UnauthenticatedGuard {
    /// The result of `work`, unless the connection is evicted or `deadline` passes before.
    pub async fn run<T>(
        mut self,
        event_loop: &LoopHandle,
        deadline: Instant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let evicted = &mut self.evicted;
        let stays = async {
            match futures::future::select(std::pin::pin!(work), evicted).await {
                futures::future::Either::Left((done, _)) => Some(done),
                futures::future::Either::Right(_) => None,
            }
        };
        within(event_loop, deadline, stays).await.flatten()
    }
}

impl Drop for UnauthenticatedGuard {
    fn drop(&mut self) {
        let mut here = self.unauthenticated.here.borrow_mut();
        // Sorted by number.
        if let Ok(place) = here.binary_search_by_key(&self.number, |entry| entry.number) {
            here.remove(place);
        }
    }
}
