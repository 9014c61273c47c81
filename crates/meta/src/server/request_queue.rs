//! Where a connection's requests are begun and its answers laid down: by the connection itself, or by the worker's
//! busy-poll loop, which takes them from the connection's shared-memory slot while the connection waits for nothing
//! else. To wake a connection and have it take its request takes longer than most requests.

use super::calls;
use super::connection::{BUFFER_BYTES_KEPT, REQUESTS_IN_FLIGHT_MAX};
use super::dispatch::DispatchReply;
use super::sessions::Admitted;
use super::shm_slots::ShmSlot;
use super::worker::Worker;
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use varve_env::shm_slot::PLACE_BYTES;
use varve_env::stages::{self, Stage};
use varve_env::stop_point::{self, StopPoint};
use varve_proto::frame;
use varve_proto::{CallFailure, Request, Response};

/// Requests that busy-poll loops have begun in this process.
#[cfg(test)]
pub static BEGUN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

pub struct RequestQueue {
    /// The request queue hangs in the worker's busy-poll loop, and in its shards as answers do that are still to come.
    worker: Weak<Worker>,
    caller: Arc<Admitted>,
    shm_slot: Option<Rc<ShmSlot>>,
    /// No answer waits to be written, and the connection need not hear of one that goes.
    straight: Cell<bool>,
    /// The connection waits to be called, or for its socket.
    waits: Cell<bool>,
    /// It waits, and has nothing that comes before a request that is posted now.
    free: Cell<bool>,
    frame: RefCell<Vec<u8>>,
    laid: RefCell<Vec<DispatchReply>>,
    /// Bytes that the busy-poll loop took from the shared-memory slot and that are not one request.
    left: RefCell<Option<Bytes>>,
    /// Answers that are still to come, and those laid down.
    expected: Cell<usize>,
    connection: RefCell<Option<Waker>>,
}

/// What the busy-poll loop did about what is posted in a shared-memory slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostedOutcome {
    /// Took it and began it.
    Begun,
    /// Took it, and called the connection to see to it.
    Deferred,
    /// Nothing: it is the connection's to take.
    Not,
}

impl RequestQueue {
    pub fn new(worker: &Rc<Worker>, caller: &Arc<Admitted>, shm_slot: Option<&Rc<ShmSlot>>) -> Rc<RequestQueue> {
        let (worker, caller, shm_slot) = (Rc::downgrade(worker), Arc::clone(caller), shm_slot.cloned());
        let (straight, waits, free, frame, laid, left, expected, connection) = Default::default();
        Rc::new(RequestQueue {
            worker,
            caller,
            shm_slot,
            straight,
            waits,
            free,
            frame,
            laid,
            left,
            expected,
            connection,
        })
    }

    /// Tells the connection from the worker's others.
    pub fn number(self: &Rc<Self>) -> usize {
        Rc::as_ptr(self).addr()
    }

    pub fn shm_slot(&self) -> Option<&Rc<ShmSlot>> {
        self.shm_slot.as_ref()
    }

    /// Whether somebody can take what is posted in the shared-memory slot.
    pub fn takes(&self) -> bool {
        self.free.get() || self.shm_slot.as_ref().is_some_and(|shm_slot| shm_slot.is_waited_at())
    }

    pub fn expected(&self) -> usize {
        self.expected.get()
    }

    /// The connection is about to wait. `straight`, `free`: see the fields of those names.
    pub fn wait(&self, straight: bool, free: bool) {
        self.straight.set(straight);
        self.waits.set(true);
        self.free.set(free);
    }

    /// The connection waits no more, and sees to everything itself.
    pub fn attend(&self) {
        self.waits.set(false);
        self.free.set(false);
    }

    /// Begins a request of the connection, of `bytes` bytes. `straight`: as the field.
    pub fn begin(self: &Rc<Self>, worker: &Rc<Worker>, request: Request, bytes: usize, straight: bool) {
        worker.busy_poll.came_on(self.number());
        worker.busy_poll.poll_slot(self);
        self.straight.set(straight);
        calls::begin(worker, &self.caller, request, bytes, self.place());
    }

    /// Takes what is posted in the shared-memory slot on the connection's behalf, with `input` as room for it.
    pub fn take_posted(self: &Rc<Self>, input: &mut BytesMut) -> PostedOutcome {
        let (Some(worker), Some(shm_slot)) = (self.worker.upgrade(), &self.shm_slot) else { return PostedOutcome::Not };
        let at_most = if worker.memory_held.is_much() { 1 } else { REQUESTS_IN_FLIGHT_MAX };
        if !self.free.get() || self.expected.get() >= at_most {
            return PostedOutcome::Not;
        }
        let read_at = stages::begin();
        input.clear();
        input.reserve(PLACE_BYTES);
        shm_slot.take(input);
        match frame::take::<Request>(input) {
            Ok(Some((request, length))) if length == input.len() && self.caller.is_named_by(&request) => {
                stages::end(Stage::Queue, read_at);
                self.begin(&worker, request, length, self.straight.get());
                #[cfg(test)]
                BEGUN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                PostedOutcome::Begun
            }
            _ => {
                self.left.replace(Some(input.split().freeze()));
                self.call();
                PostedOutcome::Deferred
            }
        }
    }

    pub fn take_left(&self) -> Option<Bytes> {
        self.left.take()
    }

    /// Calls the connection, if it waits.
    fn call(&self) {
        self.free.set(false);
        if self.waits.replace(false)
            && let Some(connection) = self.connection.borrow().as_ref()
        {
            connection.wake_by_ref();
            if let Some(worker) = self.worker.upgrade() {
                worker.busy_poll.woke();
            }
        }
    }

    /// Ready when the connection is called.
    pub fn poll_called(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.laid.borrow().is_empty() || self.left.borrow().is_some() {
            return Poll::Ready(());
        }
        let mut connection = self.connection.borrow_mut();
        if !connection.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *connection = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// A place for one answer, which goes straight to the shared-memory slot if it can, or else is laid down for the
    /// connection to write.
    fn place(self: &Rc<Self>) -> impl FnOnce(DispatchReply) + 'static {
        self.expected.set(self.expected.get() + 1);
        let request_queue = Rc::clone(self);
        move |answer| {
            if request_queue.hand_over(&answer) {
                return request_queue.expected.set(request_queue.expected.get() - 1);
            }
            request_queue.laid.borrow_mut().push(answer);
            request_queue.straight.set(false);
            request_queue.call();
        }
    }

    /// Lays an answer down in the shared-memory slot; `false`: the connection has to write it.
    fn hand_over(&self, answer: &DispatchReply) -> bool {
        let Some(shm_slot) = self.shm_slot.as_ref().filter(|_| self.straight.get()) else { return false };
        // Last before bytes can leave. The connection ends when it finds the same.
        if !self.worker.upgrade().is_some_and(|worker| worker.shared.lease.is_valid()) {
            return false;
        }
        stop_point::reach(StopPoint::ReplyAllowed);
        let since = stages::begin();
        let mut frame = self.frame.borrow_mut();
        frame.clear();
        frame.shrink_to(BUFFER_BYTES_KEPT);
        encode(answer, &mut frame);
        let taken = shm_slot.answer(&frame);
        if taken {
            stages::end(Stage::Reply, since);
            if let Some(worker) = self.worker.upgrade() {
                worker.busy_poll.moved();
            }
        }
        taken
    }

    /// Takes the answers that were laid down.
    pub fn take_laid(&self, take: impl FnMut(DispatchReply)) {
        let mut laid = self.laid.borrow_mut();
        self.expected.set(self.expected.get() - laid.len());
        laid.drain(..).for_each(take);
    }
}

/// Appends `answer` to `frames`, or why it cannot be sent.
pub fn encode(answer: &DispatchReply, frames: &mut Vec<u8>) {
    let encoded = match answer {
        DispatchReply::Response(response) => frame::encode(response, frames).map_err(|error| (response.id, error)),
        DispatchReply::Recorded { id, body } => frame::encode_body(body, frames).map_err(|error| (*id, error)),
    };
    if let Err((id, error)) = encoded {
        tracing::error!(?id, "cannot send a reply: {error}");
        let failure = CallFailure::Server { errno: libc::EIO, message: format!("cannot send the reply: {error}") };
        let short = frame::encode(&Response { id, result: Err(failure) }, frames);
        debug_assert!(short.is_ok(), "a short failure always fits a frame");
    }
}
