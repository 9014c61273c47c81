//! Who looks for answers over sockets that no thread waits for.
//!
//! A frontend's thread that waits for a server in another process is worth nothing to those who ask meanwhile, and the
//! server's worker nothing while it waits for what that thread would have read: where several callers meet, both spend
//! their time being woken, and looking for each other (`docs/internals/performance-findings.md`, "FUSE mount"). So a
//! call is an [asynchronous operation](crate::async_ops) there, and its thread goes on: it reads the next request if
//! there is one, and looks for answers if there is none. One thread at a time does so, the reactor thread; the others
//! stand by, and do not read, for whoever waits in read(2) is woken for each request, which takes longer than most
//! answers.
//!
//! - The reactor thread leaves for the next request only if one waits that no other thread is about to read, so that it
//!   is back at once; and it leaves when no answer is awaited.
//! - Whoever is about to wait longer than an answer is looked for calls one of those who stand by
//!   ([`Reactor::hand_off_reactor`]), the reactor thread too. For less that is not worth it.
//! - Whoever has stood by for [`TURN_WAIT_MAX`] reads again, called or not: no request is left for longer because a
//!   thread that should have come is held up, and when the callers are gone all are where they were.
//! - Where nobody attends, as where a caller was killed whose request the reactor thread left for, a [`watchdog`]
//!   stands in.

mod watchdog;

use self::watchdog::{Watchdog, WatchdogPoll};
use crate::transport::Transport;
use crate::{FileSystem, async_ops};
use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::thread::{self, ThreadId};
use std::time::Duration;
use varve_env::spin::{LastDone, SPIN_TIME, SpinWait};

/// How long a thread stands by before it reads again.
const TURN_WAIT_MAX: Duration = Duration::from_millis(20);

/// How long a request may wait for the thread that was to read it before the reactor thread does so itself.
const UNREAD_MAX: Duration = Duration::from_millis(1);

/// How long the reactor thread sleeps when it has looked in vain: answers that take longer than a look come a nap
/// later.
const NAP: Duration = Duration::from_micros(200);

/// What is read or written in less time than it takes to call another thread, unless its store has to be waited for.
const QUICK_BYTES: usize = 16 * 1024;

/// Waits at most so long for a frontend's next request; whether one waits to be read, or the frontend is closed.
type AwaitsRequest = Box<dyn Fn(Duration) -> bool + Send + Sync>;

#[derive(Default)]
struct ReactorState {
    reactor_thread: Option<ThreadId>,
    /// How often one has become it.
    turns: u64,
    /// One of those who stand by was called and has not come yet.
    called: bool,
}

#[derive(Default)]
pub(crate) struct Reactor {
    /// Set by a frontend whose threads attend.
    awaits_request: OnceLock<AwaitsRequest>,
    /// Threads of the frontend that read, or are about to.
    reading: AtomicUsize,
    stand: Mutex<ReactorState>,
    standing_by: AtomicUsize,
    call: Condvar,
    pub watchdog: Watchdog,
}

/// The reactor thread; the next one may be another when this is dropped.
struct ReactorThread<'a> {
    reactor: &'a Reactor,
    me: ThreadId,
}

impl Reactor {
    /// Whether there is a frontend whose threads attend.
    pub fn is_kept(&self) -> bool {
        self.awaits_request.get().is_some()
    }

    fn keep(&self, threads: usize, awaits_request: AwaitsRequest) {
        self.reading.store(threads, Relaxed);
        let first = self.awaits_request.set(awaits_request).is_ok();
        assert!(first, "a volume has one frontend");
    }

    /// The calling thread is about to wait: another reads and attends meanwhile.
    pub fn hand_off_reactor(&self) {
        if self.standing_by.load(Acquire) == 0 && !async_ops::brings() {
            return;
        }
        let mut stand = self.stand.lock();
        stand.reactor_thread.take_if(|reactor_thread| *reactor_thread == thread::current().id());
        stand.called = self.standing_by.load(Acquire) > 0;
        self.call.notify_one();
    }

    /// Looks for answers until the calling thread is to read, or if another does so and it `may_wait_for_turn`, stands
    /// by.
    fn run_reactor(&self, transport: &dyn Transport, may_wait_for_turn: bool) {
        let Some(awaits_request) = self.awaits_request.get() else { return };
        while transport.awaited() > 0 {
            match self.become_reactor_thread() {
                Some(reactor_thread) if reactor_thread.spin(transport, awaits_request) => return,
                None if !may_wait_for_turn || !self.wait_for_turn() => return,
                Some(_) | None => {}
            }
        }
    }

    fn become_reactor_thread(&self) -> Option<ReactorThread<'_>> {
        let (mut stand, me) = (self.stand.lock(), thread::current().id());
        stand.reactor_thread.is_none().then(|| {
            stand.reactor_thread = Some(me);
            stand.turns += 1;
            ReactorThread { reactor: self, me }
        })
    }

    /// What there is to be done for the thread that stands in, while so many answers are `awaited`.
    pub fn watchdog_polls(&self, awaited: usize) -> WatchdogPoll {
        let free_since_turn = {
            let stand = self.stand.lock();
            stand.reactor_thread.is_none().then_some(stand.turns)
        };
        self.watchdog.spin(awaited, free_since_turn)
    }

    /// Waits until this thread is called; `false`: it was not, and is to read all the same.
    fn wait_for_turn(&self) -> bool {
        let mut stand = self.stand.lock();
        self.standing_by.fetch_add(1, AcqRel);
        if stand.reactor_thread.is_some() && !stand.called {
            self.call.wait_for(&mut stand, TURN_WAIT_MAX);
        }
        self.standing_by.fetch_sub(1, AcqRel);
        std::mem::take(&mut stand.called) || stand.reactor_thread.is_none()
    }
}

impl ReactorThread<'_> {
    /// Brings answers until this thread is to read; `false`: it is the reactor thread no more, and is not to read yet.
    fn spin(&self, transport: &dyn Transport, awaits_request: &AwaitsRequest) -> bool {
        let (mut spin, mut unread) = (SpinWait::begin(SPIN_TIME), None);
        loop {
            if transport.bring_answers(async_ops::bring) > 0 {
                if !self.is_active() {
                    return false;
                }
                spin = SpinWait::begin(SPIN_TIME);
            }
            if transport.awaited() == 0 {
                return true;
            }
            if !awaits_request(Duration::ZERO) {
                unread = None;
            } else if self.reactor.reading.load(Acquire) == 0
                || unread.get_or_insert_with(LastDone::now).is_past(UNREAD_MAX)
            {
                return true;
            }
            if !spin.again() {
                awaits_request(NAP);
            }
        }
    }

    /// Until it has stepped back.
    fn is_active(&self) -> bool {
        self.reactor.stand.lock().reactor_thread == Some(self.me)
    }
}

impl Drop for ReactorThread<'_> {
    fn drop(&mut self) {
        self.reactor.stand.lock().reactor_thread.take_if(|reactor_thread| *reactor_thread == self.me);
    }
}

/// What a frontend's thread does between two requests that it reads. When this is dropped it is ready for the next.
pub struct ReactorTurn<'a> {
    file_system: &'a FileSystem,
    may_wait_for_turn: bool,
}

impl FileSystem {
    /// As many `threads` read the requests of a frontend, and attend at the end of their
    /// [shifts](FileSystem::reactor_turn). `awaits_request`: waits at most so long for the next; whether one waits to
    /// be read, or the frontend is closed.
    pub fn run_reactor_on(&self, threads: usize, awaits_request: impl Fn(Duration) -> bool + Send + Sync + 'static) {
        self.core.reactor.keep(threads, Box::new(awaits_request));
    }

    /// The calling thread has read a request.
    pub fn reactor_turn(&self) -> ReactorTurn<'_> {
        self.begin_reactor_turn(true)
    }

    /// [`FileSystem::reactor_turn`], of a part of a request that the next part follows without being read.
    pub fn reactor_turn_of_part(&self) -> ReactorTurn<'_> {
        self.begin_reactor_turn(false)
    }

    fn begin_reactor_turn(&self, may_wait_for_turn: bool) -> ReactorTurn<'_> {
        if self.core.reactor.is_kept() {
            self.core.reactor.reading.fetch_sub(1, AcqRel);
        }
        ReactorTurn { file_system: self, may_wait_for_turn }
    }

    /// [`FileSystem::reactor_turn`], of a request that moves so many `bytes`, or may take as long as if it did.
    pub fn reactor_turn_for(&self, bytes: usize) -> ReactorTurn<'_> {
        if bytes > QUICK_BYTES {
            self.core.reactor.hand_off_reactor();
        }
        self.reactor_turn()
    }
}

impl Drop for ReactorTurn<'_> {
    fn drop(&mut self) {
        let core = &self.file_system.core;
        if core.reactor.is_kept() {
            core.reactor.run_reactor(&*core.transport, self.may_wait_for_turn);
            core.reactor.reading.fetch_add(1, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests;
