//! The client's side of a connection.

use crate::error::{CallError, Cause};
use crate::event_loop::{LoopHandle, Timer};
use crate::limits::Limits;
use crate::link::{Link, LinkError};
use crate::mux::client::ClientHalf;
use crate::port::{Port, Served};
use crate::wire::BODY_BYTES_MAX;
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use varve_env::clock::Instant;
use varve_env::net;

impl Served for ClientHalf {}

/// A connection to a server. Many calls are in flight at a time; replies come in any order. When it is dropped, the
/// connection ends, and with it its calls.
pub struct Connection {
    port: Rc<Port<ClientHalf>>,
}

impl Connection {
    /// A connection over `link`, which the loop runs.
    pub fn new(event_loop: &LoopHandle, link: impl Link + 'static, limits: Limits) -> Connection {
        let port = Port::new(event_loop.clone(), ClientHalf::new(limits), Box::new(link), limits);
        let driven = Rc::clone(&port);
        event_loop.spawn(async move {
            let why = driven.drive().await;
            tracing::debug!("a connection to a server ended: {why}");
        });
        Connection { port }
    }

    /// Sends `request` and returns the reply. The caller waits until `deadline` at most, also for its turn if too many
    /// calls are in flight. Dropping the future cancels the call.
    pub fn call(&self, request: Bytes, deadline: Instant) -> Call {
        let timer = self.port.event_loop().timer(deadline);
        Call { port: Rc::clone(&self.port), stage: Stage::Waiting { ticket: None, request }, timer }
    }

    /// Ends the connection from other threads; `None` within a process.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn severer(&self) -> io::Result<Option<Severer>> {
        Ok(self.port.clone_socket()?.map(Severer))
    }

    /// Ends the connection, and with it its calls.
    pub fn close(&self) {
        self.port.end(LinkError::ClosedHere);
    }

    /// The reason why the connection is lost. All its calls have ended.
    pub fn lost(&self) -> Option<String> {
        self.port.with(|half| half.lost().map(str::to_owned))
    }

    pub fn is_lost(&self) -> bool {
        self.port.with(|half| half.lost().is_some())
    }

    /// Calls that are not answered.
    pub fn in_flight(&self) -> usize {
        self.port.with(|half| half.in_flight())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// The right to end a connection whose loop may not run now.
pub struct Severer(OwnedFd);

impl Severer {
    /// Both sides find the end of the connection: the server at once, this one when its loop runs.
    pub fn sever(&self) {
        // A connection that has ended already has no ends left to close.
        let _ = net::sever(&self.0);
    }
}

enum Stage {
    Waiting { ticket: Option<u64>, request: Bytes },
    Begun(u64),
    Done,
}

/// A call in progress.
pub struct Call {
    port: Rc<Port<ClientHalf>>,
    stage: Stage,
    timer: Timer,
}

impl Call {
    fn poll_stage(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, CallError>> {
        loop {
            match &mut self.stage {
                Stage::Waiting { request, .. } if request.len() > BODY_BYTES_MAX => {
                    return Poll::Ready(Err(CallError::NotSent(Cause::TooLong(request.len()))));
                }
                Stage::Waiting { ticket, request } => {
                    let wait = self.timer.at().since(self.port.event_loop().now());
                    if wait.is_zero() {
                        return Poll::Ready(Err(CallError::NotSent(Cause::Deadline)));
                    }
                    match self.port.with(|half| half.admit(ticket, context.waker())) {
                        Err(cause) => return Poll::Ready(Err(CallError::NotSent(cause))),
                        Ok(false) => return self.poll_deadline(context),
                        Ok(true) => {}
                    }
                    let request = std::mem::take(request);
                    self.stage = Stage::Begun(self.port.with(|half| half.begin(request, wait)));
                    self.port.wake_driver();
                }
                Stage::Begun(number) => {
                    let number = *number;
                    return match self.port.with(|half| half.poll(number, context.waker())) {
                        Some(ended) => Poll::Ready(ended),
                        None => self.poll_deadline(context),
                    };
                }
                Stage::Done => unreachable!("a call is polled after its end"),
            }
        }
    }

    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, CallError>> {
        if Pin::new(&mut self.timer).poll(context).is_pending() {
            return Poll::Pending;
        }
        let sent = self.leave();
        Poll::Ready(Err(if sent { CallError::Unknown(Cause::Deadline) } else { CallError::NotSent(Cause::Deadline) }))
    }

    /// Gives the call up. Returns whether it was sent.
    fn leave(&mut self) -> bool {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Waiting { ticket: Some(ticket), .. } => {
                self.port.with(|half| half.leave(ticket));
                false
            }
            Stage::Begun(number) => {
                let sent = self.port.with(|half| half.abandon(number));
                self.port.wake_driver();
                sent
            }
            Stage::Waiting { ticket: None, .. } | Stage::Done => false,
        }
    }
}

impl Future for Call {
    type Output = Result<Bytes, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_stage(context);
        if polled.is_ready()
            && let Stage::Begun(_) = self.stage
        {
            // It has ended, and is forgotten: nothing to cancel.
            self.stage = Stage::Done;
        }
        polled
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.leave();
    }
}
