//! The progress of the workers: each worker posts its stage, and the server's own thread waits for a stage with a
//! deadline.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_types::WorkerAddress;

/// The stages of a worker, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerStage {
    Opening,
    /// The sockets listen, and the shards are being opened.
    Ready,
    /// The worker accepts nothing more and has answered all requests in progress.
    Drained,
    /// The worker's thread is ending: it has closed its shards, or it has failed.
    Ended,
}

struct Posts {
    stages: Vec<WorkerStage>,
    addresses: Vec<WorkerAddress>,
    failure: Option<String>,
    stopped: bool,
}

pub struct WorkerBoard {
    clock: Arc<dyn Clock>,
    posts: Mutex<Posts>,
    changed: Condvar,
}

/// Why a wait for the workers failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreached {
    Failed(String),
    Deadline { workers: usize },
}

impl WorkerBoard {
    pub fn new(workers: usize, clock: Arc<dyn Clock>) -> WorkerBoard {
        let posts = Posts {
            stages: vec![WorkerStage::Opening; workers],
            addresses: vec![WorkerAddress { unix: None, tcp: None }; workers],
            failure: None,
            stopped: false,
        };
        WorkerBoard { clock, posts: Mutex::new(posts), changed: Condvar::new() }
    }

    pub fn ready(&self, worker: usize, address: WorkerAddress) {
        self.posts.lock().addresses[worker] = address;
        self.reach(worker, WorkerStage::Ready);
    }

    pub fn reach(&self, worker: usize, stage: WorkerStage) {
        let mut posts = self.posts.lock();
        posts.stages[worker] = posts.stages[worker].max(stage);
        drop(posts);
        self.changed.notify_all();
    }

    /// Records a failure; only the first one is reported.
    pub fn fail(&self, reason: String) {
        self.posts.lock().failure.get_or_insert(reason);
        self.changed.notify_all();
    }

    pub fn stop(&self) {
        self.posts.lock().stopped = true;
        self.changed.notify_all();
    }

    pub fn failure(&self) -> Option<String> {
        self.posts.lock().failure.clone()
    }

    pub fn addresses(&self) -> Vec<WorkerAddress> {
        self.posts.lock().addresses.clone()
    }

    /// Waits until all workers have reached `stage`, unless one has failed.
    pub fn wait_for(&self, stage: WorkerStage, deadline: Option<Instant>) -> Result<(), Unreached> {
        self.wait(deadline, |posts| match &posts.failure {
            Some(reason) => Some(Err(Unreached::Failed(reason.clone()))),
            None => (posts.behind(stage) == 0).then_some(Ok(())),
        })
        .unwrap_or_else(|posts| Err(Unreached::Deadline { workers: posts.behind(stage) }))
    }

    /// Waits until all workers have ended, with success or not. Returns how many have not ended by the deadline.
    pub fn wait_for_ends(&self, deadline: Instant) -> usize {
        self.wait(Some(deadline), |posts| (posts.behind(WorkerStage::Ended) == 0).then_some(0))
            .unwrap_or_else(|posts| posts.behind(WorkerStage::Ended))
    }

    /// Waits until the server was stopped or has failed; `None` if neither happened by the deadline.
    pub fn wait_for_stop(&self, deadline: Option<Instant>) -> Option<Result<(), String>> {
        self.wait(deadline, |posts| match &posts.failure {
            Some(reason) => Some(Err(reason.clone())),
            None => posts.stopped.then_some(Ok(())),
        })
        .ok()
    }

    /// Waits until `look` returns something. An error with the current posts after the deadline.
    fn wait<T>(
        &self,
        deadline: Option<Instant>,
        look: impl Fn(&Posts) -> Option<T>,
    ) -> Result<T, MutexGuard<'_, Posts>> {
        let mut posts = self.posts.lock();
        loop {
            if let Some(seen) = look(&posts) {
                return Ok(seen);
            }
            match deadline.map(|deadline| deadline.since(self.clock.monotonic())) {
                None => self.changed.wait(&mut posts),
                Some(Duration::ZERO) => return Err(posts),
                Some(left) => {
                    self.changed.wait_for(&mut posts, left);
                }
            }
        }
    }
}

impl Posts {
    fn behind(&self, stage: WorkerStage) -> usize {
        self.stages.iter().filter(|reached| **reached < stage).count()
    }
}
