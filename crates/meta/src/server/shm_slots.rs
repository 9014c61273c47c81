//! The shared-memory slots of a worker's connections (`varve_env::shm_slot`), and the subset that the worker polls in
//! its busy-poll loop.

use super::request_queue::{PostedOutcome, RequestQueue};
use bytes::{BufMut, BytesMut};
use rustix::fd::OwnedFd;
use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use varve_env::shm_slot::ServerSide;

/// Maximum slots that a worker polls. Polling more takes longer than one kernel call for all; the other clients use
/// their sockets.
const POLLED_SLOTS_MAX: usize = 32;

/// After this many polls, slots without a request since the last check are no longer polled.
const SPINS_WITHOUT_A_REQUEST: u32 = 100_000;

/// A connection that takes this many requests in a row yields to others.
const TAKEN_AT_A_TIME: u32 = 32;

/// The slot of one connection.
pub struct ShmSlot {
    asked: ServerSide,
    /// Waker of the connection that waits for a request.
    taker: RefCell<Option<Waker>>,
    /// A request was taken since the last check.
    used: Cell<bool>,
    /// Requests taken since the connection last waited.
    in_a_row: Cell<u32>,
}

impl ShmSlot {
    /// Creates a slot, and the descriptor to pass to the client.
    pub fn make() -> io::Result<(ShmSlot, OwnedFd)> {
        let (asked, shared) = ServerSide::make()?;
        let shm_slot = ShmSlot { asked, taker: RefCell::default(), used: Cell::new(false), in_a_row: Cell::new(0) };
        Ok((shm_slot, shared))
    }

    /// Whether the client posts its requests in this slot.
    pub fn is_polled(&self) -> bool {
        self.asked.spins()
    }

    /// Whether the connection waits for a posted request.
    pub fn is_waited_at(&self) -> bool {
        self.taker.borrow().is_some()
    }

    /// Appends a posted request to `input`, if there is one, and returns its number of bytes.
    pub fn take(&self, input: &mut BytesMut) -> Option<usize> {
        if !self.asked.is_posted() {
            return None;
        }
        input.reserve(1);
        // SAFETY: uninitialised bytes stay uninitialised, except for those that are written.
        let count = self.taken(unsafe { input.chunk_mut().as_uninit_slice_mut() });
        // SAFETY: `count` bytes were written.
        unsafe { input.advance_mut(count) };
        (count > 0).then_some(count)
    }

    /// Moves the available bytes of a request to `room`, which is not empty. The connection waits until there is a
    /// request.
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

    /// Posts complete replies; `false` if they must be sent through the socket.
    pub fn answer(&self, answers: &[u8]) -> bool {
        self.asked.answer(answers)
    }

    /// Wakes the waiting connection; `false` if no connection waits.
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

/// The request queues whose shared-memory slots a worker polls.
#[derive(Default)]
pub struct LookedInto {
    request_queues: RefCell<Vec<(Rc<RequestQueue>, Rc<ShmSlot>)>>,
    spins: Cell<u32>,
    /// Buffer for one request.
    input: RefCell<BytesMut>,
}

/// Polled slots with a posted request that can be taken: one bit per slot.
#[derive(Clone, Copy)]
pub struct PostedSlots(u32);

const _: () = assert!(POLLED_SLOTS_MAX <= u32::BITS as usize);

impl PostedSlots {
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// How many requests were begun, and how many connections were woken for theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolledRequests {
    pub begun: usize,
    pub woken: usize,
}

impl LookedInto {
    /// Polls the shared-memory slot of this queue, if it has one, until [`LookedInto::sleep`].
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

    /// Polls all slots for posted requests.
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

    /// Begins the `posted` requests. Wakes the connection instead if the request cannot be begun here, or if `own` is
    /// true of its request queue.
    pub fn begin(&self, posted: PostedSlots, own: impl Fn(&Rc<RequestQueue>) -> bool) -> PolledRequests {
        let (mut left, mut came) = (posted.0, PolledRequests::default());
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            // A begun request may have any effect except changing the list of request queues.
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

    /// The worker is about to sleep: from now on clients send their requests through their sockets.
    pub fn sleep(&self) {
        self.request_queues.borrow_mut().drain(..).for_each(|(_, shm_slot)| shm_slot.sleep());
    }
}
