//! A barrier that can be abandoned: an error (or panic) of one client must not leave the others waiting.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};

pub struct Gate {
    clients: usize,
    state: Mutex<GateState>,
    opened: Condvar,
    broken: AtomicBool,
}

#[derive(Default)]
struct GateState {
    waiting: usize,
    round: u64,
}

impl Gate {
    pub fn new(clients: usize) -> Gate {
        Gate { clients, state: Mutex::default(), opened: Condvar::new(), broken: AtomicBool::new(false) }
    }

    /// Returns when all clients have arrived. After [`Gate::give_up`] it returns `false` at once, for all later calls
    /// too.
    pub fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let round = state.round;
        state.waiting += 1;
        if state.waiting == self.clients {
            state.waiting = 0;
            state.round += 1;
            self.opened.notify_all();
        }
        while state.round == round && !self.given_up() {
            state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !self.given_up()
    }

    pub fn give_up(&self) {
        // Under the lock, so that no client can check the flag and then miss the wake-up.
        let _state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.broken.store(true, Relaxed);
        self.opened.notify_all();
    }

    /// One relaxed load: cheap enough for every operation.
    pub fn given_up(&self) -> bool {
        self.broken.load(Relaxed)
    }
}
