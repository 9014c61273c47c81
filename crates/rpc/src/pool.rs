//! Threads for work that blocks: system calls on the store, and lookups of names. The result returns to the loop that
//! asked for it.

use futures::channel::oneshot;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

type Job = Box<dyn FnOnce() + Send>;

/// The work ended without a result: it panicked, or no thread could be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread for blocking work failed or could not be started")]
pub struct PoolError;

/// A bounded number of threads with a bounded queue. Clones are the same pool; its threads end with the last clone.
#[derive(Clone)]
pub struct BlockingPool(Arc<Owner>);

struct Owner(Arc<Shared>);

struct Shared {
    threads_max: usize,
    queue_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Callers that wait for a place in the queue.
    waiting: VecDeque<Waker>,
    closed: bool,
}

impl BlockingPool {
    /// At most `threads` threads, which are started when they are needed, and `queue` jobs that wait for one.
    pub fn new(threads: usize, queue: usize) -> BlockingPool {
        assert!(threads > 0 && queue > 0, "a pool without threads or queue does no work");
        let (state, changed) = Default::default();
        BlockingPool(Arc::new(Owner(Arc::new(Shared { threads_max: threads, queue_max: queue, state, changed }))))
    }

    /// Runs `work` on a thread of the pool. Waits for a place in the queue. Work that has a place runs to its end, whether
    /// or not somebody waits for it.
    ///
    /// # Errors
    /// If the work panics, or no thread can be started.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, PoolError> {
        let (sender, receiver) = oneshot::channel();
        let mut job: Option<Job> = Some(Box::new(move || {
            // Nobody may wait any more.
            let _ = sender.send(work());
        }));
        let shared = &self.0.0;
        poll_fn(|context| shared.poll_enqueue(&mut job, context)).await?;
        receiver.await.map_err(|_| PoolError)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn poll_enqueue(self: &Arc<Self>, job: &mut Option<Job>, context: &mut Context<'_>) -> Poll<Result<(), PoolError>> {
        let mut state = self.state.lock();
        if state.queue.len() >= self.queue_max {
            if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiting.push_back(context.waker().clone());
            }
            return Poll::Pending;
        }
        state.queue.extend(job.take());
        if state.idle >= state.queue.len() || state.threads >= self.threads_max {
            self.changed.notify_one();
            return Poll::Ready(Ok(()));
        }
        let shared = Arc::clone(self);
        state.threads += 1;
        let started = std::thread::Builder::new().name("varve-blocking".into()).spawn(move || {
            while let Some(job) = shared.next() {
                // The caller learns of a panic: its result does not come. The thread goes on with other jobs.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        });
        if started.is_err() {
            state.threads -= 1;
            // Another thread will do it, if there is one.
            if state.threads == 0 {
                state.queue.pop_back();
                return Poll::Ready(Err(PoolError));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next job; waits for it.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            self.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
