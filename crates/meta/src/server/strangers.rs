//! Connections on which nobody has proved yet who comes.
//!
//! A client does that within milliseconds; who does not may be anyone, in any number. So they have room of their own, and
//! cannot take that of clients. When it is full, the oldest stranger goes as soon as it has had the time that a slow machine
//! may need, and those who come meanwhile wait in the kernel's queue. One [`Principal`] may
//! have fewer: at its limit the oldest of its own goes in the same way, and until that one has had its time the next is turned away.

use super::limits::Principal;
use super::worker::Worker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_world::clock::Moment;

/// What a stranger has to say who it is, however many wait. With this, a queue of [`super::listener::BACKLOG`] is worked
/// off in two seconds, and clients wait ten for a greeting.
const STAY_MIN: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct Strangers {
    /// The oldest first.
    here: RefCell<VecDeque<Arrival>>,
    arrivals: Cell<u64>,
    changed: Notify,
}

struct Arrival {
    number: u64,
    principal: Principal,
    at: Moment,
    /// It was told to go.
    leaves: Cell<bool>,
    sent_away: Rc<Notify>,
}

impl Arrival {
    fn send_away(&self) {
        self.leaves.set(true);
        self.sent_away.notify_one();
    }
}

/// A stranger's stay: until it is known, goes or is sent away.
pub struct Stay {
    worker: Rc<Worker>,
    number: u64,
    sent_away: Rc<Notify>,
}

impl Strangers {
    pub fn count(&self) -> usize {
        self.here.borrow().len()
    }

    /// Waits until there is room for one more, and makes it if need be.
    pub async fn room(&self, max: usize, now: impl Fn() -> Moment) {
        loop {
            let changed = self.changed.notified();
            if self.count() < max {
                return;
            }
            let left = self.here.borrow().front().map(|oldest| oldest.at.after(STAY_MIN).since(now()));
            match left {
                Some(left) if !left.is_zero() => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep(left) => {}
                },
                _ => {
                    if let Some(oldest) = self.here.borrow().front() {
                        oldest.send_away();
                    }
                    changed.await;
                }
            }
        }
    }

    /// `Err`: as many of `principal` are here as may be, none of them for long.
    pub fn enter(worker: &Rc<Worker>, principal: Principal) -> Result<Stay, usize> {
        let strangers = &worker.strangers;
        let at = worker.shared.clock.monotonic();
        let max = worker.shared.limits.strangers_of_one;
        {
            let here = strangers.here.borrow();
            let alike = || here.iter().filter(|arrival| arrival.principal == principal && !arrival.leaves.get());
            if alike().count() >= max {
                match alike().next() {
                    Some(oldest) if oldest.at.after(STAY_MIN) <= at => oldest.send_away(),
                    _ => return Err(max),
                }
            }
        }
        let number = strangers.arrivals.get();
        strangers.arrivals.set(number + 1);
        let sent_away = Rc::new(Notify::new());
        let (leaves, away) = (Cell::new(false), Rc::clone(&sent_away));
        strangers.here.borrow_mut().push_back(Arrival { number, principal, at, leaves, sent_away: away });
        Ok(Stay { worker: Rc::clone(worker), number, sent_away })
    }
}

impl Stay {
    /// Ready when others need the room.
    pub async fn sent_away(&self) {
        self.sent_away.notified().await;
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let strangers = &self.worker.strangers;
        // They are in the order of their numbers.
        let mut here = strangers.here.borrow_mut();
        if let Ok(place) = here.binary_search_by_key(&self.number, |arrival| arrival.number) {
            here.remove(place);
        }
        drop(here);
        strangers.changed.notify_waiters();
    }
}
