//! The mailboxes of a worker's connections (`varve_world::mailbox`), and those of them that it looks into during a vigil.

use super::desk::{Desk, Taken};
use bytes::{BufMut, BytesMut};
use rustix::fd::OwnedFd;
use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use varve_world::mailbox::Asked;

/// Looking into more takes longer than asking the kernel about all; the others are reached by their sockets.
const LOOKED_INTO_MAX: usize = 32;

/// After so many looks those in which nothing was found meanwhile are not looked into any more.
const LOOKS_WITHOUT_A_REQUEST: u32 = 100_000;

/// A connection that takes so many requests one after the other lets others run.
const TAKEN_AT_A_TIME: u32 = 32;

/// One connection's.
pub struct Mailbox {
    asked: Asked,
    /// The connection, which waits for a request.
    taker: RefCell<Option<Waker>>,
    /// A request was taken since this was asked last.
    used: Cell<bool>,
    /// Requests taken since the connection waited.
    in_a_row: Cell<u32>,
}

impl Mailbox {
    /// With the descriptor to be passed to the client.
    pub fn make() -> io::Result<(Mailbox, OwnedFd)> {
        let (asked, shared) = Asked::make()?;
        let mailbox = Mailbox { asked, taker: RefCell::default(), used: Cell::new(false), in_a_row: Cell::new(0) };
        Ok((mailbox, shared))
    }

    /// Whether the client posts its requests here.
    pub fn is_looked_into(&self) -> bool {
        self.asked.looks()
    }

    /// The connection waits for what is posted.
    pub fn is_waited_at(&self) -> bool {
        self.taker.borrow().is_some()
    }

    /// How many bytes of a request came to `input`, if there is one.
    pub fn take(&self, input: &mut BytesMut) -> Option<usize> {
        if !self.asked.is_posted() {
            return None;
        }
        input.reserve(1);
        // SAFETY: what is uninitialised stays so, but for the bytes that are written.
        let count = self.taken(unsafe { input.chunk_mut().as_uninit_slice_mut() });
        // SAFETY: so many were written.
        unsafe { input.advance_mut(count) };
        (count > 0).then_some(count)
    }

    /// Moves what there is of a request to `room`, which is not empty; until there is one, the connection waits.
    pub fn poll_take(&self, context: &mut Context<'_>, room: &mut [MaybeUninit<u8>]) -> Poll<usize> {
        if self.asked.is_posted() {
            let in_a_row = self.in_a_row.get() + 1;
            self.in_a_row.set(in_a_row % TAKEN_AT_A_TIME);
            if in_a_row < TAKEN_AT_A_TIME {
                return Poll::Ready(self.taken(room));
            }
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.in_a_row.set(0);
        let mut taker = self.taker.borrow_mut();
        if !taker.as_ref().is_some_and(|taker| taker.will_wake(context.waker())) {
            *taker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn taken(&self, room: &mut [MaybeUninit<u8>]) -> usize {
        self.used.set(true);
        self.asked.take(room)
    }

    /// Lays down whole answers; `false`: they have to go by the socket.
    pub fn answer(&self, answers: &[u8]) -> bool {
        self.asked.answer(answers)
    }

    /// `false`: nobody waits for what is here.
    fn rouse(&self) -> bool {
        let taker = self.taker.take();
        let waits = taker.is_some();
        taker.into_iter().for_each(Waker::wake);
        waits
    }

    fn sleep(&self) {
        if !self.asked.sleep() {
            self.rouse();
        }
    }
}

/// The desks into whose mailboxes a worker looks.
#[derive(Default)]
pub struct LookedInto {
    desks: RefCell<Vec<(Rc<Desk>, Rc<Mailbox>)>>,
    looks: Cell<u32>,
    /// Room for one request.
    input: RefCell<BytesMut>,
}

/// Mailboxes in which something is posted that somebody can take: a bit for each of those looked into.
#[derive(Clone, Copy)]
pub struct Posted(u32);

const _: () = assert!(LOOKED_INTO_MAX <= u32::BITS as usize);

impl Posted {
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// How many requests were begun, and how many connections woken for theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    pub begun: usize,
    pub woken: usize,
}

impl LookedInto {
    /// From now on until [`LookedInto::sleep`] the worker looks into this one's mailbox too, if there is one.
    pub fn add(&self, desk: &Rc<Desk>) {
        let Some(mailbox) = desk.mailbox().filter(|mailbox| !mailbox.is_looked_into()) else { return };
        let mut desks = self.desks.borrow_mut();
        if desks.len() < LOOKED_INTO_MAX {
            mailbox.asked.look();
            desks.push((Rc::clone(desk), Rc::clone(mailbox)));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.desks.borrow().is_empty()
    }

    /// Where clients have posted something.
    pub fn look(&self) -> Posted {
        std::hint::spin_loop();
        let looks = self.looks.get() + 1;
        self.looks.set(looks % LOOKS_WITHOUT_A_REQUEST);
        if looks == LOOKS_WITHOUT_A_REQUEST {
            self.desks.borrow_mut().retain(|(_, mailbox)| {
                let used = mailbox.used.take();
                if !used {
                    mailbox.sleep();
                }
                used
            });
        }
        let desks = self.desks.borrow();
        let posted = desks.iter().map(|(desk, mailbox)| mailbox.asked.is_posted() && desk.takes());
        Posted(posted.enumerate().map(|(at, posted)| u32::from(posted) << at).sum())
    }

    /// Has what is `posted` begun, or wakes the connection to take it where that cannot be or `own` is true of the desk.
    pub fn begin(&self, posted: Posted, own: impl Fn(&Rc<Desk>) -> bool) -> Came {
        let (mut left, mut came) = (posted.0, Came::default());
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            // What is begun may do anything but change which desks there are.
            let Some((desk, mailbox)) = self.desks.borrow().get(at).cloned() else { break };
            let taken = if own(&desk) { Taken::Not } else { desk.take_posted(&mut self.input.borrow_mut()) };
            match taken {
                Taken::Begun => came.begun += 1,
                Taken::Left => came.woken += 1,
                Taken::Not => came.woken += usize::from(mailbox.rouse()),
            }
        }
        came
    }

    /// The worker is about to sleep: clients that ask now send what they ask by their sockets.
    pub fn sleep(&self) {
        self.desks.borrow_mut().drain(..).for_each(|(_, mailbox)| mailbox.sleep());
    }
}
