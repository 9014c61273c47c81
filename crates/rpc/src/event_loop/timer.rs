//! Timers of a loop.

use super::LoopHandle;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use varve_env::clock::Instant;

/// Ready at a time.
pub struct Timer {
    event_loop: LoopHandle,
    at: Instant,
    number: Option<u64>,
}

impl LoopHandle {
    pub fn timer(&self, at: Instant) -> Timer {
        Timer { event_loop: self.clone(), at, number: None }
    }
}

impl Timer {
    pub fn at(&self) -> Instant {
        self.at
    }

    fn remove(&mut self) {
        if let Some(number) = self.number.take() {
            self.event_loop.0.timers.borrow_mut().remove(&(self.at, number));
        }
    }

    pub fn reset(&mut self, at: Instant) {
        self.remove();
        self.at = at;
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.event_loop.now() >= self.at {
            self.remove();
            return Poll::Ready(());
        }
        let inner = self.event_loop.0.clone();
        let number = *self.number.get_or_insert_with(|| inner.number());
        inner.timers.borrow_mut().insert((self.at, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.remove();
    }
}
