//! Who looks for answers over sockets that no thread waits for.
//!
//! A door's thread that waits for a server in another process is worth nothing to those who ask meanwhile, and the server's
//! worker nothing while it waits for what that thread would have read: where several callers meet, both spend their time
//! being woken, and looking for each other (`docs/internals/performance-findings.md`, "FUSE mount"). So a call is an
//! [errand](crate::errand) there, and its thread goes on: it reads the next request if there is one, and looks for answers
//! if there is none. One thread at a time does so, the attendant; the others stand by, and do not read, for whoever waits
//! in read(2) is woken for each request, which takes longer than most answers.
//!
//! - The attendant leaves for the next request only if one waits that no other thread is about to read, so that it is back
//!   at once; and it leaves when no answer is awaited.
//! - Whoever is about to wait longer than an answer is looked for calls one of those who stand by
//!   ([`Attendance::step_back`]), the attendant too. For less that is not worth it.
//! - Whoever has stood by for [`STANDS_BY`] reads again, called or not: no request is left for longer because a thread that
//!   should have come is held up, and when the callers are gone all are where they were.
//! - Where nobody attends, as where a caller was killed whose request the attendant left for, a [`spare`] stands in.

mod spare;

use self::spare::{Spare, SpareLook};
use crate::transport::Transport;
use crate::{FileSystem, errand};
use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::thread::{self, ThreadId};
use std::time::Duration;
use varve_world::patience::{LOOK, Last, Look};

/// How long a thread stands by before it reads again.
const STANDS_BY: Duration = Duration::from_millis(20);

/// How long a request may wait for the thread that was to read it before the attendant does so itself.
const UNREAD_MAX: Duration = Duration::from_millis(1);

/// How long the attendant sleeps when it has looked in vain: answers that take longer than a look come a nap later.
const NAP: Duration = Duration::from_micros(200);

/// What is read or written in less time than it takes to call another thread, unless its store has to be waited for.
const QUICK_BYTES: usize = 16 * 1024;

/// Waits at most so long for a door's next request; whether one waits to be read, or the door is closed.
type Awaits = Box<dyn Fn(Duration) -> bool + Send + Sync>;

#[derive(Default)]
struct Stand {
    attendant: Option<ThreadId>,
    /// How often one has become it.
    turns: u64,
    /// One of those who stand by was called and has not come yet.
    called: bool,
}

#[derive(Default)]
pub(crate) struct Attendance {
    /// Set by a door whose threads attend.
    awaits_request: OnceLock<Awaits>,
    /// Threads of the door that read, or are about to.
    reading: AtomicUsize,
    stand: Mutex<Stand>,
    standing_by: AtomicUsize,
    call: Condvar,
    pub spare: Spare,
}

/// The attendant; the next one may be another when this is dropped.
struct Attendant<'a> {
    attendance: &'a Attendance,
    me: ThreadId,
}

impl Attendance {
    /// Whether there is a door whose threads attend.
    pub fn is_kept(&self) -> bool {
        self.awaits_request.get().is_some()
    }

    fn keep(&self, threads: usize, awaits_request: Awaits) {
        self.reading.store(threads, Relaxed);
        let first = self.awaits_request.set(awaits_request).is_ok();
        assert!(first, "a volume has one door");
    }

    /// The calling thread is about to wait: another reads and attends meanwhile.
    pub fn step_back(&self) {
        if self.standing_by.load(Acquire) == 0 && !errand::brings() {
            return;
        }
        let mut stand = self.stand.lock();
        stand.attendant.take_if(|attendant| *attendant == thread::current().id());
        stand.called = self.standing_by.load(Acquire) > 0;
        self.call.notify_one();
    }

    /// Looks for answers until the calling thread is to read, or if another does so and it `may_stand_by`, stands by.
    fn attend(&self, transport: &dyn Transport, may_stand_by: bool) {
        let Some(awaits_request) = self.awaits_request.get() else { return };
        while transport.awaited() > 0 {
            match self.become_attendant() {
                Some(attendant) if attendant.look(transport, awaits_request) => return,
                None if !may_stand_by || !self.stand_by() => return,
                Some(_) | None => {}
            }
        }
    }

    fn become_attendant(&self) -> Option<Attendant<'_>> {
        let (mut stand, me) = (self.stand.lock(), thread::current().id());
        stand.attendant.is_none().then(|| {
            stand.attendant = Some(me);
            stand.turns += 1;
            Attendant { attendance: self, me }
        })
    }

    /// What there is to be done for the thread that stands in, while so many answers are `awaited`.
    pub fn spare_looks(&self, awaited: usize) -> SpareLook {
        let free_since_turn = {
            let stand = self.stand.lock();
            stand.attendant.is_none().then_some(stand.turns)
        };
        self.spare.look(awaited, free_since_turn)
    }

    /// Waits until this thread is called; `false`: it was not, and is to read all the same.
    fn stand_by(&self) -> bool {
        let mut stand = self.stand.lock();
        self.standing_by.fetch_add(1, AcqRel);
        if stand.attendant.is_some() && !stand.called {
            self.call.wait_for(&mut stand, STANDS_BY);
        }
        self.standing_by.fetch_sub(1, AcqRel);
        std::mem::take(&mut stand.called) || stand.attendant.is_none()
    }
}

impl Attendant<'_> {
    /// Brings answers until this thread is to read; `false`: it is the attendant no more, and is not to read yet.
    fn look(&self, transport: &dyn Transport, awaits_request: &Awaits) -> bool {
        let (mut look, mut unread) = (Look::begin(LOOK), None);
        loop {
            if transport.bring_answers(errand::bring) > 0 {
                if !self.attends() {
                    return false;
                }
                look = Look::begin(LOOK);
            }
            if transport.awaited() == 0 {
                return true;
            }
            if !awaits_request(Duration::ZERO) {
                unread = None;
            } else if self.attendance.reading.load(Acquire) == 0
                || unread.get_or_insert_with(Last::now).is_past(UNREAD_MAX)
            {
                return true;
            }
            if !look.again() {
                awaits_request(NAP);
            }
        }
    }

    /// Until it has stepped back.
    fn attends(&self) -> bool {
        self.attendance.stand.lock().attendant == Some(self.me)
    }
}

impl Drop for Attendant<'_> {
    fn drop(&mut self) {
        self.attendance.stand.lock().attendant.take_if(|attendant| *attendant == self.me);
    }
}

/// What a door's thread does between two requests that it reads. When this is dropped it is ready for the next.
pub struct Shift<'a> {
    file_system: &'a FileSystem,
    may_stand_by: bool,
}

impl FileSystem {
    /// As many `threads` read the requests of a door, and attend at the end of their [shifts](FileSystem::shift).
    /// `awaits_request`: waits at most so long for the next; whether one waits to be read, or the door is closed.
    pub fn attended_by(&self, threads: usize, awaits_request: impl Fn(Duration) -> bool + Send + Sync + 'static) {
        self.core.attendance.keep(threads, Box::new(awaits_request));
    }

    /// The calling thread has read a request.
    pub fn shift(&self) -> Shift<'_> {
        self.begin_shift(true)
    }

    /// [`FileSystem::shift`], of a part of a request that the next part follows without being read.
    pub fn shift_of_one_of_many(&self) -> Shift<'_> {
        self.begin_shift(false)
    }

    fn begin_shift(&self, may_stand_by: bool) -> Shift<'_> {
        if self.core.attendance.is_kept() {
            self.core.attendance.reading.fetch_sub(1, AcqRel);
        }
        Shift { file_system: self, may_stand_by }
    }

    /// [`FileSystem::shift`], of a request that moves so many `bytes`, or may take as long as if it did.
    pub fn shift_of(&self, bytes: usize) -> Shift<'_> {
        if bytes > QUICK_BYTES {
            self.core.attendance.step_back();
        }
        self.shift()
    }
}

impl Drop for Shift<'_> {
    fn drop(&mut self) {
        let core = &self.file_system.core;
        if core.attendance.is_kept() {
            core.attendance.attend(&*core.transport, self.may_stand_by);
            core.attendance.reading.fetch_add(1, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests;
