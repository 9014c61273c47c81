//! The event loop of the calling thread. Each thread that calls this crate has one: it runs while the thread is within
//! [`block_on`], with the connections that the thread has made.

use futures::future::{Either, select};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::RealClock;
use varve_rpc::{EventLoop, LoopHandle, default_spin};

/// How often a waiting call checks whether it is of use to wait on. A broken connection is noticed at once.
pub(crate) const WAIT_SLICE: Duration = Duration::from_secs(1);

/// The wait for a descriptor, if the process has none left.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(10);

thread_local! {
    static EVENT_LOOP: EventLoop = new_loop();
}

#[expect(clippy::disallowed_methods, reason = "there is no loop yet that could wait")]
fn new_loop() -> EventLoop {
    let mut logged = false;
    loop {
        match EventLoop::new(Arc::new(RealClock::new()), default_spin()) {
            Ok(event_loop) => return event_loop,
            Err(error) => {
                if !std::mem::replace(&mut logged, true) {
                    tracing::warn!(%error, "cannot make a thread's event loop; retrying");
                }
                std::thread::sleep(DESCRIPTOR_WAIT);
            }
        }
    }
}

/// Runs a future of this crate to its end on the calling thread, with the thread's event loop. A callback that such a
/// future calls may do so again.
pub fn block_on<F: Future>(future: F) -> F::Output {
    EVENT_LOOP.with(|event_loop| event_loop.block_on(future))
}

/// The loop that polls the caller.
pub(crate) fn current() -> LoopHandle {
    EVENT_LOOP.with(|event_loop| event_loop.handle().clone())
}

/// Waits for the time `wait`.
pub(crate) async fn pause(wait: Duration) {
    let event_loop = current();
    event_loop.timer(event_loop.now().after(wait)).await;
}

/// The result of `work`, unless `given_up` says at one of its looks why nobody waits for it any more. It looks after each
/// [`WAIT_SLICE`], and after the time `wait`.
pub(crate) async fn unless_given_up<T, E>(
    work: impl Future<Output = T>,
    wait: Duration,
    given_up: impl Fn() -> Option<E>,
) -> Result<T, E> {
    let mut work = pin!(work);
    let (event_loop, mut wait) = (current(), wait);
    loop {
        let slice = wait.min(WAIT_SLICE);
        let timer = event_loop.timer(event_loop.now().after(slice));
        match select(work.as_mut(), timer).await {
            Either::Left((done, _)) => return Ok(done),
            Either::Right(_) => {}
        }
        if let Some(why) = given_up() {
            return Err(why);
        }
        wait = if wait > slice { wait - slice } else { WAIT_SLICE };
    }
}

#[cfg(test)]
mod tests;
