//! Waiting for many descriptors at once (epoll(7)), and an eventfd(2) by which other threads end the wait.

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Events that one call of the kernel returns. The next call returns the rest.
const EVENTS_MAX: usize = 64;

/// Kernels refuse very long waits. One that ends early is harmless.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The token of the eventfd.
const ALARM: u64 = u64::MAX;

/// The events of a descriptor that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Input. Reported when bytes arrive (edge-triggered): the reader reads until nothing is left.
    Input,
    /// Input and room for output, edge-triggered.
    InputAndRoom,
    /// Input, reported to one of the threads that watch the same file, as long as there is input (level-triggered).
    /// Such a watch cannot be changed.
    Exclusive,
}

impl Watch {
    fn flags(self) -> EventFlags {
        match self {
            Watch::Input => EventFlags::IN | EventFlags::RDHUP | EventFlags::ET,
            Watch::InputAndRoom => EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT | EventFlags::ET,
            Watch::Exclusive => EventFlags::IN | EventFlags::EXCLUSIVE,
        }
    }
}

/// A descriptor is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub token: u64,
    pub input: bool,
    pub room: bool,
    /// The peer sends nothing more: the end comes after the bytes that are there, and is not reported again.
    pub ends: bool,
}

/// Ends the wait of one thread, from any thread.
#[derive(Debug)]
pub struct Alarm {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Alarm {
    /// Ends the wait if the thread waits or is about to. Call it after the thread's work was made visible with `SeqCst`.
    pub fn ring(&self) {
        if self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst) {
            // It fails only if the counter is full, and then the thread wakes too.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

/// The descriptors that one thread waits for.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    alarm: Arc<Alarm>,
}

impl Poller {
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Poller> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &event, EventData::new_u64(ALARM), EventFlags::IN | EventFlags::ET)?;
        Ok(Poller { epoll, alarm: Arc::new(Alarm { event, asleep: AtomicBool::new(false) }) })
    }

    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// # Errors
    /// If the kernel cannot watch `descriptor`, or watches too many.
    pub fn watch(&self, descriptor: impl AsFd, token: u64, watch: Watch) -> io::Result<()> {
        assert!(token != ALARM, "the largest token is the alarm's");
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(token), watch.flags())?)
    }

    /// Changes the watch of a descriptor. If it is ready for the new one already, that is reported.
    ///
    /// # Errors
    /// If `descriptor` is not watched, or exclusively.
    pub fn change(&self, descriptor: impl AsFd, token: u64, watch: Watch) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, descriptor, EventData::new_u64(token), watch.flags())?)
    }

    pub fn forget(&self, descriptor: impl AsFd) {
        // A descriptor that is not watched need not be forgotten.
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Calls `ready` for descriptors that are ready now. Does not wait.
    ///
    /// # Errors
    /// None that a correct caller can cause.
    pub fn look(&self, ready: impl FnMut(Ready)) -> io::Result<()> {
        self.wait_at_most(Some(Duration::ZERO), ready)
    }

    /// Waits until a descriptor is ready, the alarm rings, or `wait` has passed; `None` waits for ever. Does not wait
    /// if `woken` says that there is work: another thread makes its work visible first, and then rings.
    ///
    /// # Errors
    /// None that a correct caller can cause.
    pub fn wait(&self, wait: Option<Duration>, woken: impl Fn() -> bool, ready: impl FnMut(Ready)) -> io::Result<()> {
        self.alarm.asleep.store(true, SeqCst);
        let waited = if woken() { Ok(()) } else { self.wait_at_most(wait, ready) };
        self.alarm.asleep.store(false, SeqCst);
        waited
    }

    fn wait_at_most(&self, wait: Option<Duration>, mut ready: impl FnMut(Ready)) -> io::Result<()> {
        let timeout = wait.map(|wait| Timespec::try_from(wait.min(WAIT_MAX)).expect("an hour is a time"));
        let mut space = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        let (events, _) = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok(found) => found,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == ALARM {
                let _ = rustix::io::read(&self.alarm.event, &mut [0_u8; 8]);
                continue;
            }
            // A descriptor that has failed is ready for both: the next call on it reports the error.
            let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let input = failed || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
            let ends = failed || flags.contains(EventFlags::RDHUP);
            ready(Ready { token, input, ends, room: failed || flags.contains(EventFlags::OUT) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
