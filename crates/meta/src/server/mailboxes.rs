//! The mailboxes of a worker's connections (`varve_world::mailbox`), and those of them that it looks into during a vigil.

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

/// Those that a worker looks into.
#[derive(Default)]
pub struct LookedInto {
    mailboxes: RefCell<Vec<Rc<Mailbox>>>,
    looks: Cell<u32>,
}

impl LookedInto {
    /// From now on until [`LookedInto::sleep`] the worker looks into this one too.
    pub fn add(&self, mailbox: &Rc<Mailbox>) {
        if mailbox.is_looked_into() {
            return;
        }
        let mut mailboxes = self.mailboxes.borrow_mut();
        if mailboxes.len() < LOOKED_INTO_MAX {
            mailbox.asked.look();
            mailboxes.push(Rc::clone(mailbox));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.mailboxes.borrow().is_empty()
    }

    /// Rouses the connections whose clients have posted something; how many waited for it.
    pub fn look(&self) -> usize {
        std::hint::spin_loop();
        let looks = self.looks.get() + 1;
        self.looks.set(looks % LOOKS_WITHOUT_A_REQUEST);
        if looks == LOOKS_WITHOUT_A_REQUEST {
            self.mailboxes.borrow_mut().retain(|mailbox| {
                let used = mailbox.used.take();
                if !used {
                    mailbox.sleep();
                }
                used
            });
        }
        let mailboxes = self.mailboxes.borrow();
        mailboxes.iter().filter(|mailbox| mailbox.asked.is_posted() && mailbox.rouse()).count()
    }

    /// The worker is about to sleep: clients that ask now send what they ask by their sockets.
    pub fn sleep(&self) {
        self.mailboxes.borrow_mut().drain(..).for_each(|mailbox| mailbox.sleep());
    }
}
