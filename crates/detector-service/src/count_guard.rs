//! Limits on counts of live objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Counts one object until it is dropped, also if its thread panics or cannot be started.
pub struct CountGuard<T> {
    pub of: Arc<T>,
    counter: fn(&T) -> &AtomicUsize,
}

impl<T> CountGuard<T> {
    /// Returns `None` if the count is `most` already.
    pub fn enter(of: &Arc<T>, counter: fn(&T) -> &AtomicUsize, most: usize) -> Option<CountGuard<T>> {
        let before = counter(of).fetch_add(1, SeqCst);
        let counted = CountGuard { of: Arc::clone(of), counter };
        (before < most).then_some(counted)
    }
}

impl<T> Drop for CountGuard<T> {
    fn drop(&mut self) {
        (self.counter)(&self.of).fetch_sub(1, SeqCst);
    }
}
