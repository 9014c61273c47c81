//! Where the answer to one call is laid down, by another thread than the one that has asked.

use super::CallError;
use parking_lot::{Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use varve_proto::Response;

/// What a call has come to.
type Ended = Result<Box<Response>, CallError>;

pub(super) struct ReplySlot {
    answer: Mutex<Answer>,
    changed: Condvar,
}

enum Answer {
    /// For whom, if no thread waits.
    Awaited(Option<Waker>),
    Laid(Ended),
    Taken,
}

impl Answer {
    fn take(&mut self) -> Option<Result<Response, CallError>> {
        if let Answer::Awaited(_) = self {
            return None;
        }
        match std::mem::replace(self, Answer::Taken) {
            Answer::Laid(ended) => Some(ended.map(|response| *response)),
            Answer::Awaited(_) | Answer::Taken => unreachable!("an answer is taken once"),
        }
    }
}

impl ReplySlot {
    /// `waker`: of the asynchronous operation that the answer is for; `None`: a thread waits.
    pub fn new(waker: Option<Waker>) -> ReplySlot {
        ReplySlot { answer: Mutex::new(Answer::Awaited(waker)), changed: Condvar::new() }
    }

    pub fn is_laid(&self) -> bool {
        !matches!(*self.answer.lock(), Answer::Awaited(_))
    }

    /// Only the first that is laid down counts. `take_up`: how the asynchronous operation is woken that waits for it,
    /// if one does.
    pub fn lay(&self, ended: Ended, take_up: fn(Waker)) {
        let waker = {
            let mut answer = self.answer.lock();
            let Answer::Awaited(waker) = &mut *answer else { return };
            let waker = waker.take();
            *answer = Answer::Laid(ended);
            self.changed.notify_one();
            waker
        };
        waker.into_iter().for_each(take_up);
    }

    /// For a thread, which waits at most so long.
    pub fn wait_for(&self, wait: Duration) -> Option<Result<Response, CallError>> {
        let mut answer = self.answer.lock();
        if let Answer::Awaited(_) = *answer {
            self.changed.wait_for(&mut answer, wait);
        }
        answer.take()
    }

    /// For an asynchronous operation.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Response, CallError>> {
        let mut answer = self.answer.lock();
        match answer.take() {
            Some(ended) => Poll::Ready(ended),
            None => {
                *answer = Answer::Awaited(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}
