//! Stops a mount on request: unmounts it, and while the mount is busy waits until it is free.
//!
//! Other user-space file systems detach at the first signal, which breaks the programs that work there. Here detaching
//! takes a second signal: its sender has read, or knows, that something is still open.

use crate::signals::StopReason;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;
use varve_client::FileSystem;
use varve_fuse::{Error, Unmounter};

/// How often to retry a busy mount, because the kernel sends no notification when it becomes free. Users accept a delay
/// of this length.
const PAUSE: Duration = Duration::from_millis(500);

pub struct Stopping {
    unmounter: Unmounter,
    file_system: Arc<FileSystem>,
    syncs: Syncs,
    state: StopState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopState {
    /// No request yet, or the kernel refused the first unmount for a reason other than busy.
    Mounted,
    /// It will be unmounted when it is free.
    Waiting,
    /// It will be detached when no other mount is in the way or would be detached with it.
    Covered,
    /// Nothing is left to do.
    Gone,
}

impl Stopping {
    pub fn new(unmounter: Unmounter, file_system: Arc<FileSystem>) -> Stopping {
        Stopping { unmounter, file_system, syncs: Syncs::default(), state: StopState::Mounted }
    }

    /// Handles a request. Returns the time after which it must run again.
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
            // SIGKILL may follow for a busy mount's process, so sync first: nothing may be lost by it.
            self.syncs.begin(&self.file_system);
        }
        matches!(self.state, StopState::Waiting | StopState::Covered).then_some(PAUSE)
    }

    fn tell(&self, before: StopState, asked: StopReason, error: Option<Error>) {
        let target = self.unmounter.target().display();
        match (asked, before, error) {
            (StopReason::Now, StopState::Waiting, None) | (_, StopState::Covered, None) => tracing::warn!(
                "asked to stop again: {target} is detached, and this process ends when the last file that is open \
                 there is closed"
            ),
            (StopReason::Now, StopState::Waiting | StopState::Covered, Some(error @ Error::Busy { .. })) => {
                tracing::warn!(
                    "asked to stop again: {error}\n  It is detached when that mount is gone, because detaching it now \
                     would take that mount along."
                )
            }
            (StopReason::Now, _, Some(error @ Error::Busy { .. })) => tracing::warn!(
                "asked to stop: {error}\n  It is unmounted when it is no longer in use. To detach it even while it is \
                 in use, send SIGTERM or SIGINT again."
            ),
            (StopReason::Now, _, Some(error)) => tracing::warn!("asked to stop: {error}"),
            // Already logged.
            _ => {}
        }
    }
}

/// Runs syncs on a thread of their own, one after the other. With an unreachable server each sync takes as long as the
/// mount's timeout, and the next signal must be handled in the meantime.
#[derive(Default)]
struct Syncs {
    /// Number of requests since the thread began the first of these.
    asked: Arc<AtomicU32>,
}

impl Syncs {
    /// Starts a sync of everything acknowledged so far.
    fn begin(&self, file_system: &Arc<FileSystem>) {
        if self.asked.fetch_add(1, AcqRel) > 0 {
            return;
        }
        let (asked, file_system) = (Arc::clone(&self.asked), Arc::clone(file_system));
        let sync = move || {
            loop {
                let before = asked.load(Acquire);
                if let Err(error) = varve_client::block_on(file_system.sync())
                    // Shutdown syncs by itself and reports errors.
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
            tracing::error!("asked to stop, but cannot start a thread for the sync: {error}");
        }
    }
}
