//! The server's side of a connection.

use crate::event_loop::LoopHandle;
use crate::limits::Limits;
use crate::link::{Link, LinkError};
use crate::mux::Half;
use crate::mux::server::{CancelToken, ReceivedCall, ServerHalf};
use crate::port::{Port, Served};
use crate::wire::Message;
use bytes::Bytes;
use futures::future::{Either, LocalBoxFuture, select};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;
use varve_env::clock;
use varve_env::stages::{self, Stage};

/// A request of a client.
pub struct IncomingCall {
    pub request: Bytes,
    /// The caller waits until then, on this side's clock.
    pub deadline: clock::Instant,
    /// Tells when the caller does not wait any more. The call may go on: a change of several parts must not be dropped
    /// half way.
    pub cancel: CancelToken,
}

/// The reply to a call, of at most [`crate::BODY_BYTES_MAX`] bytes.
pub enum Answer {
    Now(Bytes),
    /// Runs to its end on the loop, whatever becomes of the connection.
    Later(LocalBoxFuture<'static, Bytes>),
    /// The peer may not send this request: the connection ends, for this reason.
    Violation(String),
}

/// Answers the requests of one connection.
pub trait Handler {
    fn handle(&self, call: IncomingCall) -> Answer;

    /// Whether the process has memory for more calls. Without it, a connection carries one call at a time.
    fn has_room(&self) -> bool {
        true
    }

    /// So many bytes of replies wait to be sent on this connection.
    fn replies_held(&self, _bytes: usize) {}

    /// Whether the server may still reply. It is asked last before a reply leaves; `false` ends the connection, and the
    /// outcome of its calls is unknown to the caller.
    fn may_reply(&self) -> bool {
        true
    }
}

impl<F: Fn(IncomingCall) -> Answer> Handler for F {
    fn handle(&self, call: IncomingCall) -> Answer {
        self(call)
    }
}

/// Serves a connection until it has ended; returns why. Ends it in good order once `stop` is ready: calls that have
/// begun are answered, others are not begun. Dropping the future ends the connection at once.
pub async fn serve(
    event_loop: &LoopHandle,
    link: impl Link + 'static,
    handler: Rc<dyn Handler>,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> LinkError {
    let (link_bytes, read_at, ready_at) = Default::default();
    let half = Serving { mux: ServerHalf::new(limits), handler, link_bytes, read_at, ready_at };
    let port = Port::new(event_loop.clone(), half, Box::new(link), limits);
    let _ends = EndGuard(&port);
    match select(pin!(port.drive()), pin!(stop)).await {
        Either::Left((error, _)) => error,
        Either::Right(((), driving)) => {
            port.with(|half| half.mux.stop());
            port.wake_driver();
            driving.await
        }
    }
}

struct EndGuard<'a>(&'a Rc<Port<Serving>>);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end(LinkError::ClosedHere);
    }
}

struct Serving {
    mux: ServerHalf,
    handler: Rc<dyn Handler>,
    /// Bytes of replies that the link has not sent.
    link_bytes: Cell<usize>,
    /// While stages are measured: when the requests at hand were read, and since when a reply waits to be sent.
    read_at: Option<Instant>,
    ready_at: Cell<Option<Instant>>,
}

impl Serving {
    fn answer(port: &Port<Serving>, number: u64, body: Bytes) {
        let answered = port.with(|half| {
            half.ready_at.set(half.ready_at.get().or_else(stages::begin));
            half.mux.answer(number, body)
        });
        if let Err(error) = answered {
            port.end(error);
        }
    }
}

impl Served for Serving {
    fn handle(port: &Rc<Port<Serving>>) -> bool {
        let (received, read_at, handler) =
            port.with(|half| (half.mux.take_received(), half.read_at.take(), Rc::clone(&half.handler)));
        let any = !received.is_empty();
        for ReceivedCall { number, body, deadline, cancel } in received {
            stages::end(Stage::Queue, read_at);
            match handler.handle(IncomingCall { request: body, deadline, cancel }) {
                Answer::Now(body) => Serving::answer(port, number, body),
                Answer::Violation(why) => {
                    port.end(LinkError::Violation(why));
                    break;
                }
                Answer::Later(reply) => {
                    let port_then = Rc::clone(port);
                    port.event_loop().spawn(async move {
                        let body = reply.await;
                        Serving::answer(&port_then, number, body);
                        port_then.wake_driver();
                    });
                }
            }
        }
        any
    }
}

impl Half for Serving {
    fn next_outgoing(&mut self) -> Option<Message> {
        self.mux.next_outgoing()
    }

    fn capacity(&self) -> usize {
        match self.mux.capacity() {
            capacity if self.handler.has_room() => capacity,
            capacity => capacity.min(usize::from(self.mux.is_idle() && self.link_bytes.get() == 0)),
        }
    }

    fn received(&mut self, message: Message, now: clock::Instant) -> Result<(), LinkError> {
        self.read_at = self.read_at.or_else(stages::begin);
        self.mux.received(message, now)
    }

    fn awaits(&self) -> bool {
        self.mux.awaits()
    }

    fn probe(&mut self) {
        self.mux.probe();
    }

    fn is_done(&self) -> bool {
        self.mux.is_done()
    }

    fn may_send(&self) -> bool {
        self.handler.may_reply()
    }

    fn ended(&mut self, error: &LinkError) {
        self.mux.ended(error);
    }

    fn unsent(&self, link_bytes: usize) {
        self.link_bytes.set(link_bytes);
        let unsent = self.mux.queued_bytes() + link_bytes;
        if unsent == 0 {
            stages::end(Stage::Reply, self.ready_at.take());
        }
        self.handler.replies_held(unsent);
    }

    fn take_woken(&mut self) -> Vec<Waker> {
        self.mux.take_woken()
    }
}
