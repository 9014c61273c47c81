//! The shared-memory slots of a worker's connections (`varve_env::shm_slot`), and those of them that it looks into
//! during a busy-poll loop.

use super::request_queue::{PostedOutcome, RequestQueue};
use bytes::{BufMut, BytesMut};
use rustix::fd::OwnedFd;
use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use varve_env::shm_slot::ServerSide;

/// Looking into more takes longer than asking the kernel about all; the others are reached by their sockets.
const POLLED_SLOTS_MAX: usize = 32;

/// After so many looks those in which nothing was found meanwhile are not looked into any more.
const SPINS_WITHOUT_A_REQUEST: u32 = 100_000;

/// A connection that takes so many requests one after the other lets others run.
const TAKEN_AT_A_TIME: u32 = 32;

/// One connection's.
pub struct ShmSlot {
    asked: ServerSide,
    /// The connection, which waits for a request.
    taker: RefCell<Option<Waker>>,
    /// A request was taken since this was asked last.
    used: Cell<bool>,
    /// Requests taken since the connection waited.
    in_a_row: Cell<u32>,
}

impl ShmSlot {
    /// With the descriptor to be passed to the client.
    pub fn make() -> io::Result<(ShmSlot, OwnedFd)> {
        let (asked, shared) = ServerSide::make()?;
        let shm_slot = ShmSlot { asked, taker: RefCell::default(), used: Cell::new(false), in_a_row: Cell::new(0) };
        Ok((shm_slot, shared))
    }

    /// Whether the client posts its requests here.
    pub fn is_polled(&self) -> bool {
        self.asked.spins()
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

/// The request queues into whose shared-memory slots a worker looks.
#[derive(Default)]
pub struct LookedInto {
    request_queues: RefCell<Vec<(Rc<RequestQueue>, Rc<ShmSlot>)>>,
    spins: Cell<u32>,
    /// Room for one request.
    input: RefCell<BytesMut>,
}

/// Shared-memory slots in which something is posted that somebody can take: a bit for each of those looked into.
#[derive(Clone, Copy)]
pub struct PostedSlots(u32);

const _: () = assert!(POLLED_SLOTS_MAX <= u32::BITS as usize);

impl PostedSlots {
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// How many requests were begun, and how many connections woken for theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolledRequests {
    pub begun: usize,
    pub woken: usize,
}

impl LookedInto {
    /// From now on until [`LookedInto::sleep`] the worker looks into this one's shared-memory slot too, if there is
    /// one.
    pub fn add(&self, request_queue: &Rc<RequestQueue>) {
        let Some(shm_slot) = request_queue.shm_slot().filter(|shm_slot| !shm_slot.is_polled()) else { return };
        let mut request_queues = self.request_queues.borrow_mut();
        if request_queues.len() < POLLED_SLOTS_MAX {
            shm_slot.asked.spin();
            request_queues.push((Rc::clone(request_queue), Rc::clone(shm_slot)));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.request_queues.borrow().is_empty()
    }

    /// Where clients have posted something.
    pub fn spin(&self) -> PostedSlots {
        std::hint::spin_loop();
        let spins = self.spins.get() + 1;
        self.spins.set(spins % SPINS_WITHOUT_A_REQUEST);
        if spins == SPINS_WITHOUT_A_REQUEST {
            self.request_queues.borrow_mut().retain(|(_, shm_slot)| {
                let used = shm_slot.used.take();
                if !used {
                    shm_slot.sleep();
                }
                used
            });
        }
        let request_queues = self.request_queues.borrow();
        let posted =
            request_queues.iter().map(|(request_queue, shm_slot)| shm_slot.asked.is_posted() && request_queue.takes());
        PostedSlots(posted.enumerate().map(|(at, posted)| u32::from(posted) << at).sum())
    }

    /// Has what is `posted` begun, or wakes the connection to take it where that cannot be or `own` is true of the
    /// request queue.
    pub fn begin(&self, posted: PostedSlots, own: impl Fn(&Rc<RequestQueue>) -> bool) -> PolledRequests {
        let (mut left, mut came) = (posted.0, PolledRequests::default());
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            // What is begun may do anything but change which request queues there are.
            let Some((request_queue, shm_slot)) = self.request_queues.borrow().get(at).cloned() else { break };
            let taken = if own(&request_queue) {
                PostedOutcome::Not
            } else {
                request_queue.take_posted(&mut self.input.borrow_mut())
            };
            match taken {
                PostedOutcome::Begun => came.begun += 1,
                PostedOutcome::Deferred => came.woken += 1,
                PostedOutcome::Not => came.woken += usize::from(shm_slot.rouse()),
            }
        }
        came
    }

    /// The worker is about to sleep: clients that ask now send what they ask by their sockets.
    pub fn sleep(&self) {
        self.request_queues.borrow_mut().drain(..).for_each(|(_, shm_slot)| shm_slot.sleep());
    }
}
