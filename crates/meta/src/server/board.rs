//! How far the workers are: they post, the server's own thread waits, with a deadline.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};
use varve_wire::handshake::WorkerAddress;

/// The stages of a worker, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Opening,
    /// Shards are open and sockets listen.
    Ready,
    /// Nothing is accepted any more, and what was under way has been answered.
    Drained,
    /// Shards are closed.
    Closed,
}

struct Posts {
    stages: Vec<Stage>,
    addresses: Vec<WorkerAddress>,
    failure: Option<String>,
    stopped: bool,
}

pub struct Board {
    posts: Mutex<Posts>,
    changed: Condvar,
}

/// Why a wait for the workers ended without them.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreached {
    Failed(String),
    Deadline { workers: usize },
}

impl Board {
    pub fn new(workers: usize) -> Board {
        let posts = Posts {
            stages: vec![Stage::Opening; workers],
            addresses: vec![WorkerAddress { unix: None, tcp: None }; workers],
            failure: None,
            stopped: false,
        };
        Board { posts: Mutex::new(posts), changed: Condvar::new() }
    }

    pub fn ready(&self, worker: usize, address: WorkerAddress) {
        self.posts.lock().addresses[worker] = address;
        self.reach(worker, Stage::Ready);
    }

    pub fn reach(&self, worker: usize, stage: Stage) {
        self.posts.lock().stages[worker] = stage;
        self.changed.notify_all();
    }

    /// The first failure is the one that is told.
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

    /// Waits until all workers have come to `stage`.
    pub fn wait_for(&self, stage: Stage, deadline: Option<Instant>) -> Result<(), Unreached> {
        let mut posts = self.posts.lock();
        loop {
            if let Some(reason) = &posts.failure {
                return Err(Unreached::Failed(reason.clone()));
            }
            let behind = posts.stages.iter().filter(|reached| **reached < stage).count();
            if behind == 0 {
                return Ok(());
            }
            match deadline {
                None => self.changed.wait(&mut posts),
                Some(deadline) if self.changed.wait_until(&mut posts, deadline).timed_out() => {
                    return Err(Unreached::Deadline { workers: behind });
                }
                Some(_) => {}
            }
        }
    }

    /// Waits until the server was stopped or has failed; `timeout`: or for so long. `None`: neither yet.
    pub fn wait_for_end(&self, timeout: Option<Duration>) -> Option<Result<(), String>> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut posts = self.posts.lock();
        loop {
            if let Some(reason) = &posts.failure {
                return Some(Err(reason.clone()));
            }
            if posts.stopped {
                return Some(Ok(()));
            }
            match deadline {
                None => self.changed.wait(&mut posts),
                Some(deadline) if self.changed.wait_until(&mut posts, deadline).timed_out() => return None,
                Some(_) => {}
            }
        }
    }
}
