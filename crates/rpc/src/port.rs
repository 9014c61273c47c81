//! A half and its link together: moves messages between them, and notices a peer that is gone.

use crate::event_loop::{Look, LookGuard, LoopHandle, Timer};
use crate::limits::Limits;
use crate::link::{Link, LinkError};
use crate::mux::Half;
use crate::wire::Message;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use varve_env::clock::Instant;

/// Rounds of one connection before others have their turn.
const ROUNDS: usize = 4;

/// Messages that are received before what they ask for is begun, so that its replies leave early.
const BATCH: usize = 32;

/// A half with what the owner does with messages that it has received.
pub trait Served: Half + Sized + 'static {
    /// Handles what was received, if anything was.
    fn handle(_port: &Rc<Port<Self>>) -> bool {
        false
    }
}

pub struct Port<H> {
    event_loop: LoopHandle,
    limits: Limits,
    state: RefCell<State<H>>,
    /// The task that runs [`Port::drive`].
    driver: RefCell<Option<Waker>>,
    look_guard: RefCell<Option<LookGuard>>,
    this: Weak<Port<H>>,
}

struct State<H> {
    half: H,
    link: Option<Box<dyn Link>>,
    ended: Option<LinkError>,
    messages: Vec<Message>,
    /// Since when the peer has owed something and not moved, and whether it was probed.
    silent: Option<(Instant, bool)>,
    moved: bool,
}

impl<H: Served> Port<H> {
    pub fn new(event_loop: LoopHandle, half: H, link: Box<dyn Link>, limits: Limits) -> Rc<Port<H>> {
        let memory = link.has_memory();
        let state = State { half, link: Some(link), ended: None, messages: Vec::new(), silent: None, moved: false };
        let port = Rc::new_cyclic(|this: &Weak<Port<H>>| Port {
            event_loop,
            limits,
            state: RefCell::new(state),
            driver: RefCell::default(),
            look_guard: RefCell::default(),
            this: this.clone(),
        });
        if memory {
            let look: Weak<dyn Look> = port.this.clone();
            *port.look_guard.borrow_mut() = Some(port.event_loop.look_into(look));
        }
        port
    }

    pub fn event_loop(&self) -> &LoopHandle {
        &self.event_loop
    }

    /// Changes the half. Its driver sees to the consequences.
    pub fn with<T>(&self, change: impl FnOnce(&mut H) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let changed = change(&mut state.half);
        let woken = state.half.take_woken();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        changed
    }

    /// Has the driver send what waits to be sent. Calls of one turn of the loop leave in one write.
    pub fn wake_driver(&self) {
        let driver = self.driver.take();
        driver.into_iter().for_each(Waker::wake);
    }

    /// Another descriptor of the socket, if there is one.
    pub fn clone_socket(&self) -> io::Result<Option<OwnedFd>> {
        let state = self.state.borrow();
        let socket = state.link.as_ref().and_then(|link| link.socket());
        socket.map(|socket| socket.try_clone_to_owned()).transpose()
    }

    /// Ends the connection, if it has not ended.
    pub fn end(&self, error: LinkError) {
        let mut state = self.state.borrow_mut();
        if state.ended.is_some() {
            return;
        }
        state.end(error);
        let woken = state.half.take_woken();
        drop(state);
        self.look_guard.take();
        woken.into_iter().for_each(Waker::wake);
        self.wake_driver();
    }

    /// Sends and receives what is there. Returns whether anything moved.
    fn turn(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let moved = match state.exchange(self.event_loop.now()) {
            Ok(moved) => moved,
            Err(error) => {
                drop(state);
                self.end(error);
                return true;
            }
        };
        let woken = state.half.take_woken();
        drop(state);
        if moved && let Some(look) = &*self.look_guard.borrow() {
            look.wanted();
        }
        woken.into_iter().for_each(Waker::wake);
        let handled = self.this.upgrade().is_some_and(|this| H::handle(&this));
        moved || handled
    }

    /// Runs the connection until it has ended. Returns why.
    pub async fn drive(&self) -> LinkError {
        let mut timer = None;
        poll_fn(|context| self.poll_drive(&mut timer, context)).await
    }

    fn poll_drive(&self, timer: &mut Option<Timer>, context: &mut Context<'_>) -> Poll<LinkError> {
        *self.driver.borrow_mut() = Some(context.waker().clone());
        let busy = (0..ROUNDS).all(|_| self.turn());
        self.check_silence();
        let mut state = self.state.borrow_mut();
        if let Some(error) = &mut state.ended {
            return Poll::Ready(std::mem::replace(error, LinkError::Closed));
        }
        let receives = state.half.capacity() > 0;
        let ready = state.link.as_mut().is_some_and(|link| link.poll(receives, context).is_ready());
        let silent = state.silent;
        drop(state);
        if busy || ready {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.set_timer(silent, timer, context);
        Poll::Pending
    }

    /// Has the driver woken when the peer has been silent for half of the limit, and for all of it.
    fn set_timer(&self, silent: Option<(Instant, bool)>, timer: &mut Option<Timer>, context: &mut Context<'_>) {
        let Some((since, probed)) = silent else {
            *timer = None;
            return;
        };
        let at = since.after(if probed { self.limits.silence } else { self.limits.silence / 2 });
        let timer = timer.get_or_insert_with(|| self.event_loop.timer(at));
        if timer.at() != at {
            timer.reset(at);
        }
        if Pin::new(timer).poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }

    fn check_silence(&self) {
        let now = self.event_loop.now();
        let mut state = self.state.borrow_mut();
        let owes = state.peer_owes();
        state.silent = match state.silent {
            _ if !owes => None,
            Some(silent) if !state.moved => Some(silent),
            _ => Some((now, false)),
        };
        state.moved = false;
        let Some((since, probed)) = state.silent else { return };
        if now.since(since) >= self.limits.silence {
            drop(state);
            self.end(LinkError::Silent(self.limits.silence));
        } else if !probed && now.since(since) >= self.limits.silence / 2 {
            state.silent = Some((since, true));
            state.half.probe();
            drop(state);
            self.wake_driver();
        }
    }
}

impl<H: Half> State<H> {
    fn end(&mut self, error: LinkError) {
        self.link = None;
        self.half.ended(&error);
        self.half.unsent(0);
        self.ended = Some(error);
    }

    fn exchange(&mut self, now: Instant) -> Result<bool, LinkError> {
        let State { half, link: Some(link), messages, moved, .. } = self else { return Ok(false) };
        let mut any = false;
        let was_blocked = link.is_blocked();
        while link.has_room()
            && let Some(message) = half.next_outgoing()
        {
            link.push(message);
            any = true;
        }
        if (any || was_blocked) && !half.may_send() {
            return Err(LinkError::MayNotReply);
        }
        let flushed = link.flush()?;
        // Before the capacity is asked for, which may depend on it.
        half.unsent(link.unsent_bytes());
        let most = half.capacity().min(BATCH);
        let received = most > 0 && link.receive(most, messages)?;
        for message in messages.drain(..) {
            half.received(message, now)?;
        }
        // The kernel takes some bytes for a peer that is gone. Room that it has made is another matter.
        if received || (flushed && was_blocked) {
            *moved = true;
        }
        if half.is_done() && !link.is_blocked() {
            return Err(LinkError::ClosedHere);
        }
        Ok(any || flushed || received)
    }

    /// A server's peer owes the rest of a message, and the reading of its replies.
    fn peer_owes(&self) -> bool {
        let reads = self.half.capacity() > 0;
        self.half.awaits() || self.link.as_ref().is_some_and(|link| link.is_blocked() || (reads && link.is_midway()))
    }
}

impl<H: Served> Look for Port<H> {
    fn look(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let State { half, link: Some(link), .. } = &mut *state else { return false };
        let there = half.capacity() > 0 && link.look();
        drop(state);
        if !there || !self.turn() {
            return false;
        }
        // Sends the replies. The driver waits for room for the rest.
        let busy = (0..ROUNDS).all(|_| self.turn());
        if busy || self.state.borrow().link.as_ref().is_some_and(|link| link.is_blocked()) {
            self.wake_driver();
        }
        true
    }

    fn sleep(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let State { half, link: Some(link), .. } = &mut *state else { return true };
        // A message that cannot be received now stays where it is.
        link.sleep() || half.capacity() == 0
    }
}
