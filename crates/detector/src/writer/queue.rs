//! The queue between those who bring frames and those who write them, bounded by bytes: when it is full, who brings waits.

use crate::frame::{Frame, Nanoseconds};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub struct Job {
    pub frame: Frame,
    pub received: Nanoseconds,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Full,
    Closed,
}

/// What a thread that asks gets.
pub enum Next {
    Job(Job),
    /// Nothing waits at this moment.
    Idle,
    /// Nothing will come any more.
    Closed,
}

pub struct Queue {
    bytes_max: usize,
    state: Mutex<State>,
    room: Condvar,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    bytes: usize,
    closed: bool,
}

impl Queue {
    pub fn new(bytes_max: usize) -> Queue {
        Queue { bytes_max, state: Mutex::default(), room: Condvar::new(), work: Condvar::new() }
    }

    pub fn push(&self, job: Job, bytes: usize, wait: Duration) -> Result<(), Refused> {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        // A frame larger than the whole queue is taken when nothing else waits.
        while !state.closed && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            if self.room.wait_until(&mut state, deadline).timed_out() {
                return Err(Refused::Full);
            }
        }
        if state.closed {
            return Err(Refused::Closed);
        }
        state.bytes += bytes;
        state.jobs.push_back(job);
        self.work.notify_one();
        Ok(())
    }

    /// `wait`: whether to wait for work rather than to answer [`Next::Idle`].
    pub fn pop(&self, wait: bool) -> Next {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.bytes -= job.frame.payload.bytes();
                self.room.notify_one();
                return Next::Job(job);
            }
            if state.closed {
                return Next::Closed;
            }
            if !wait {
                return Next::Idle;
            }
            self.work.wait(&mut state);
        }
    }

    /// Takes nothing more; what waits is still given out.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.room.notify_all();
        self.work.notify_all();
    }
}
