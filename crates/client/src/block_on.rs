//! Runs a future of this crate to its end on the calling thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One waker a thread: a call of a frontend costs no allocation for it.
    static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}

/// The value of `future`, which is one of this crate's over the blocking transport: ready when first polled, but for
/// the wait for another thread's call on the same file, during which this thread sleeps. Frontends that have no runtime
/// call everything through this.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    })
}
