//! What a mount does when it is asked to stop: it unmounts, and while it is busy waits until it is not.
//!
//! Other file systems in user space go out of sight at the first signal, which pulls the rug from under whoever works
//! there. Here that takes a second signal: who sends it has read, or knows without, that something is still open.

use crate::signals::StopReason;
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
    state: StopState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopState {
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
        Stopping { unmounter, file_system, syncs: Syncs::default(), state: StopState::Mounted }
    }

    /// Answers when to be asked again.
    pub fn heed(&mut self, asked: StopReason) -> Option<Duration> {
        let before = self.state;
        let done = match (before, asked) {
            (StopState::Gone, _) => Ok(()),
            (StopState::Waiting, StopReason::Now) | (StopState::Covered, _) => self.unmounter.detach(),
            (StopState::Waiting, StopReason::Later) => self.unmounter.unmount_if_free(),
            (StopState::Mounted, _) => self.unmounter.unmount(),
        };
        self.state = match &done {
            Ok(()) => StopState::Gone,
            Err(Error::Busy { .. })
                if before == StopState::Covered || (before, asked) == (StopState::Waiting, StopReason::Now) =>
            {
                StopState::Covered
            }
            Err(Error::Busy { .. }) => StopState::Waiting,
            Err(_) => before,
        };
        self.tell(before, asked, done.err());
        if asked == StopReason::Now && (self.state != StopState::Gone || before != StopState::Mounted) {
            // Whoever ends a busy mount's process will do so for good next: let nothing be lost by it.
            self.syncs.begin(&self.file_system);
        }
        matches!(self.state, StopState::Waiting | StopState::Covered).then_some(PAUSE)
    }

    fn tell(&self, before: StopState, asked: StopReason, error: Option<Error>) {
        let target = self.unmounter.target().display();
        match (asked, before, error) {
            (StopReason::Now, StopState::Waiting, None) | (_, StopState::Covered, None) => tracing::warn!(
                "asked to stop again: {target} is out of sight, and this process ends when the last file that is open there is \
                 closed"
            ),
            (StopReason::Now, StopState::Waiting | StopState::Covered, Some(error @ Error::Busy { .. })) => {
                tracing::warn!(
                    "asked to stop again: {error}\n  It is taken out of sight when that mount is gone, which would go with it, or in its \
                 stead."
                )
            }
            (StopReason::Now, _, Some(error @ Error::Busy { .. })) => tracing::warn!(
                "asked to stop: {error}\n  It is unmounted when it is free. To take it out of sight even while it is in use, send \
                 SIGTERM or SIGINT again."
            ),
            (StopReason::Now, _, Some(error)) => tracing::warn!("asked to stop: {error}"),
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
                if let Err(error) = varve_client::block_on(file_system.sync())
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
