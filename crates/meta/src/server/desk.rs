//! Where a connection's requests are begun and its answers laid down: by the connection itself, or by the worker's vigil, which
//! takes them from the connection's mailbox while the connection waits for nothing else. To wake a connection and have it take
//! its request takes longer than most requests.

use super::connection::{BUFFER_BYTES_KEPT, REQUESTS_IN_FLIGHT_MAX};
use super::dispatch::{self, Answer, Begun};
use super::mailboxes::Mailbox;
use super::sessions::Admitted;
use super::worker::Worker;
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use varve_wire::frame;
use varve_wire::{Failure, Request, Response};
use varve_world::mailbox::PLACE_BYTES;
use varve_world::stages::{self, Stage};

/// Requests that vigils have begun in this process.
#[cfg(test)]
pub static BEGUN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

pub struct Desk {
    /// The desk hangs in the worker's vigil, and in its shards as answers do that are still to come.
    worker: Weak<Worker>,
    caller: Rc<Admitted>,
    mailbox: Option<Rc<Mailbox>>,
    /// No answer waits to be written, and the connection need not hear of one that goes.
    straight: Cell<bool>,
    /// The connection waits to be called, or for its socket.
    waits: Cell<bool>,
    /// It waits, and has nothing that comes before a request that is posted now.
    free: Cell<bool>,
    frame: RefCell<Vec<u8>>,
    laid: RefCell<Vec<Answer>>,
    left: RefCell<Option<Left>>,
    /// Answers that are still to come, and those laid down.
    expected: Cell<usize>,
    connection: RefCell<Option<Waker>>,
}

/// What the vigil took from the mailbox and the connection has to see to.
pub enum Left {
    /// A request that waits, and its length in bytes.
    Waits(Box<Request>, usize),
    /// What is no request, or more than one.
    Bytes(Bytes),
}

/// What the vigil did about what is posted in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Took it and began it.
    Begun,
    /// Took it, and called the connection to see to it.
    Left,
    /// Nothing: it is the connection's to take.
    Not,
}

impl Desk {
    pub fn new(worker: &Rc<Worker>, caller: &Rc<Admitted>, mailbox: Option<&Rc<Mailbox>>) -> Rc<Desk> {
        let (worker, caller, mailbox) = (Rc::downgrade(worker), Rc::clone(caller), mailbox.cloned());
        let (straight, waits, free, frame, laid, left, expected, connection) = Default::default();
        Rc::new(Desk { worker, caller, mailbox, straight, waits, free, frame, laid, left, expected, connection })
    }

    /// Tells the connection from the worker's others.
    pub fn number(self: &Rc<Self>) -> usize {
        Rc::as_ptr(self).addr()
    }

    pub fn mailbox(&self) -> Option<&Rc<Mailbox>> {
        self.mailbox.as_ref()
    }

    /// Whether somebody can take what is posted in the mailbox.
    pub fn takes(&self) -> bool {
        self.free.get() || self.mailbox.as_ref().is_some_and(|mailbox| mailbox.is_waited_at())
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

    /// Begins a request of the connection's. `straight`: as the field. Given back: it waits.
    pub fn begin(self: &Rc<Self>, worker: &Rc<Worker>, request: Request, straight: bool) -> Option<Request> {
        worker.vigil.came_on(self.number());
        worker.vigil.look_into(self);
        self.straight.set(straight);
        match dispatch::begin(worker, &self.caller, request) {
            Begun::Answered(answer) => self.place()(answer),
            Begun::Changed(underway) => underway.then(worker, self.place()),
            Begun::Waits(request) => return Some(request),
        }
        None
    }

    /// Takes what is posted in the mailbox on the connection's behalf, with `input` as room for it.
    pub fn take_posted(self: &Rc<Self>, input: &mut BytesMut) -> Taken {
        let (Some(worker), Some(mailbox)) = (self.worker.upgrade(), &self.mailbox) else { return Taken::Not };
        let at_most = if worker.held.is_much() { 1 } else { REQUESTS_IN_FLIGHT_MAX };
        if !self.free.get() || self.expected.get() >= at_most {
            return Taken::Not;
        }
        let read_at = stages::begin();
        input.clear();
        input.reserve(PLACE_BYTES);
        mailbox.take(input);
        match frame::take::<Request>(input) {
            Ok(Some((request, length))) if length == input.len() && self.caller.is_named_by(&request) => {
                stages::end(Stage::Queue, read_at);
                match self.begin(&worker, request, self.straight.get()) {
                    Some(request) => self.leave(Left::Waits(Box::new(request), length)),
                    None => {
                        #[cfg(test)]
                        BEGUN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Taken::Begun
                    }
                }
            }
            _ => self.leave(Left::Bytes(input.split().freeze())),
        }
    }

    fn leave(&self, left: Left) -> Taken {
        self.left.replace(Some(left));
        self.call();
        Taken::Left
    }

    pub fn take_left(&self) -> Option<Left> {
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
                worker.vigil.woke();
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

    /// A place for one answer, which goes straight to the mailbox if it can, or else is laid down for the connection to write.
    fn place(self: &Rc<Self>) -> impl FnOnce(Answer) + 'static {
        self.expected.set(self.expected.get() + 1);
        let desk = Rc::clone(self);
        move |answer| {
            if desk.hand_over(&answer) {
                return desk.expected.set(desk.expected.get() - 1);
            }
            desk.laid.borrow_mut().push(answer);
            desk.straight.set(false);
            desk.call();
        }
    }

    /// Lays an answer down in the mailbox; `false`: the connection has to write it.
    fn hand_over(&self, answer: &Answer) -> bool {
        let Some(mailbox) = self.mailbox.as_ref().filter(|_| self.straight.get()) else { return false };
        let since = stages::begin();
        let mut frame = self.frame.borrow_mut();
        frame.clear();
        frame.shrink_to(BUFFER_BYTES_KEPT);
        encode(answer, &mut frame);
        let taken = mailbox.answer(&frame);
        if taken {
            stages::end(Stage::Reply, since);
            if let Some(worker) = self.worker.upgrade() {
                worker.vigil.moved();
            }
        }
        taken
    }

    /// Takes the answers that were laid down.
    pub fn take_laid(&self, take: impl FnMut(Answer)) {
        let mut laid = self.laid.borrow_mut();
        self.expected.set(self.expected.get() - laid.len());
        laid.drain(..).for_each(take);
    }
}

/// Appends `answer` to `frames`, or why it cannot be sent.
pub fn encode(answer: &Answer, frames: &mut Vec<u8>) {
    let encoded = match answer {
        Answer::Response(response) => frame::encode(response, frames).map_err(|error| (response.id, error)),
        Answer::Recorded { id, body } => frame::encode_body(body, frames).map_err(|error| (*id, error)),
    };
    if let Err((id, error)) = encoded {
        tracing::error!(?id, "an answer cannot be sent: {error}");
        let failure = Failure::Server { errno: libc::EIO, message: format!("the answer cannot be sent: {error}") };
        let short = frame::encode(&Response { id, result: Err(failure) }, frames);
        debug_assert!(short.is_ok(), "a short failure always fits a frame");
    }
}
