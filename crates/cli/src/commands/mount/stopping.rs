//! What a mount does when it is asked to stop: it unmounts, and while it is busy waits until it is not.
//!
//! Other file systems in user space go out of sight at the first signal, which pulls the rug from under whoever works
//! there. Here that takes a second signal: who sends it has read, or knows without, that something is still open.

use crate::signals::Asked;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;
use varve_client::FileSystem;
use varve_fuse::{Error, Unmounter};

/// How often a busy mount is tried again: the kernel tells nobody when it is free. So long people wait gladly.
const PAUSE: Duration = Duration::from_millis(500);

pub struct Stopping {
    unmounter: Unmounter,
    file_system: Arc<FileSystem>,
    syncs: Syncs,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has asked, or the kernel refused at first for another reason than that it is busy.
    Mounted,
    /// It is unmounted when it is free.
    Waiting,
    /// It is taken out of sight when no other mount would be, or is in the way.
    Covered,
    /// There is nothing left to be done.
    Gone,
}

impl Stopping {
    pub fn new(unmounter: Unmounter, file_system: Arc<FileSystem>) -> Stopping {
        Stopping { unmounter, file_system, syncs: Syncs::default(), state: State::Mounted }
    }

    /// Answers when to be asked again.
    pub fn heed(&mut self, asked: Asked) -> Option<Duration> {
        let before = self.state;
        let done = match (before, asked) {
            (State::Gone, _) => Ok(()),
            (State::Waiting, Asked::Now) | (State::Covered, _) => self.unmounter.detach(),
            (State::Waiting, Asked::Later) => self.unmounter.unmount_if_free(),
            (State::Mounted, _) => self.unmounter.unmount(),
        };
        self.state = match &done {
            Ok(()) => State::Gone,
            Err(Error::Busy { .. }) if before == State::Covered || (before, asked) == (State::Waiting, Asked::Now) => {
                State::Covered
            }
            Err(Error::Busy { .. }) => State::Waiting,
            Err(_) => before,
        };
        self.tell(before, asked, done.err());
        if asked == Asked::Now && (self.state != State::Gone || before != State::Mounted) {
            // Whoever ends a busy mount's process will do so for good next: let nothing be lost by it.
            self.syncs.begin(&self.file_system);
        }
        matches!(self.state, State::Waiting | State::Covered).then_some(PAUSE)
    }

    fn tell(&self, before: State, asked: Asked, error: Option<Error>) {
        let target = self.unmounter.target().display();
        match (asked, before, error) {
            (Asked::Now, State::Waiting, None) | (_, State::Covered, None) => tracing::warn!(
                "asked to stop again: {target} is out of sight, and this process ends when the last file that is open there is \
                 closed"
            ),
            (Asked::Now, State::Waiting | State::Covered, Some(error @ Error::Busy { .. })) => tracing::warn!(
                "asked to stop again: {error}\n  It is taken out of sight when that mount is gone, which would go with it, or in its \
                 stead."
            ),
            (Asked::Now, _, Some(error @ Error::Busy { .. })) => tracing::warn!(
                "asked to stop: {error}\n  It is unmounted when it is free. To take it out of sight even while it is in use, send \
                 SIGTERM or SIGINT again."
            ),
            (Asked::Now, _, Some(error)) => tracing::warn!("asked to stop: {error}"),
            // It was told already.
            _ => {}
        }
    }
}

/// Syncs in a thread of their own, one after the other: with a server that is away each takes as long as the mount waits for
/// it, and the next signal is to be seen meanwhile.
#[derive(Default)]
struct Syncs {
    /// Asked for since the thread began the first of these.
    asked: Arc<AtomicU32>,
}

impl Syncs {
    /// Has what was acknowledged until now synced soon.
    fn begin(&self, file_system: &Arc<FileSystem>) {
        if self.asked.fetch_add(1, AcqRel) > 0 {
            return;
        }
        let (asked, file_system) = (Arc::clone(&self.asked), Arc::clone(file_system));
        let sync = move || {
            loop {
                let before = asked.load(Acquire);
                if let Err(error) = varve_client::now(file_system.sync())
                    // Which syncs, and tells what fails.
                    && !file_system.is_shut_down()
                {
                    tracing::error!("asked to stop, but cannot sync: {error}");
                }
                if asked.compare_exchange(before, 0, AcqRel, Acquire).is_ok() {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("sync".into()).spawn(sync) {
            self.asked.store(0, Release);
            tracing::error!("asked to stop, but cannot start a thread that syncs: {error}");
        }
    }
}
