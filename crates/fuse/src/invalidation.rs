//! Invalidates names and attributes that the kernel caches for a long time and whose current state has become unknown,
//! and pages of open files whose content another mount has replaced without a change of size or mtime, from which the
//! kernel would see it.
//!
//! To invalidate a name, the kernel takes the lock of its directory, which a request on that directory holds until it
//! is answered. So a dedicated thread does this, which serves no requests. It can block as long as such requests do. A
//! thread that blocks in the kernel keeps even a killed mount process from exiting. `/dev/fuse` then stays open, and
//! callers with pending requests get no error. Hence a name is invalidated only when the server answers for it again
//! ([`FileSystem::next_unknown_outcome`]), because then it answers requests as well. To drop pages, the kernel waits for
//! reads of them that are in progress; the server has just answered for their file.

use crate::numbers::NodeNumbers;
use crate::session::{CallsInProgress, has_hung_up};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_client::{FileSystem, UnknownOutcome};
use varve_types::InodeId;

/// Interval of the check for unknown outcomes and replaced pages. A failure that causes an unknown outcome lasts longer,
/// and replaced pages may be cached for a lease of one second.
const TICK: Duration = Duration::from_millis(500);

/// How long the server of a mount that was taken away by force may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// `struct fuse_out_header`.
const HEADER_BYTES: usize = 16;
/// FUSE_NOTIFY_INVAL_INODE and FUSE_NOTIFY_INVAL_ENTRY.
const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
/// FUSE_EXPIRE_ONLY, since Linux 6.2; older kernels drop the name.
const EXPIRE_ONLY: u32 = 1;

/// A file system that is about to be mounted.
pub(crate) struct KernelInvalidator(Weak<FileSystem>, NodeNumbers);

/// A thread that sends the invalidations to the kernel until this handle is dropped. The drop does not wait for the
/// thread.
pub(crate) struct InvalidatorThread(Arc<StopSignal>);

#[derive(Default)]
struct StopSignal {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl KernelInvalidator {
    pub fn of(fs: &Arc<FileSystem>, numbers: NodeNumbers) -> KernelInvalidator {
        if fs.embedded() {
            // Only replies of an embedded server are cached longer than a lease.
            fs.subscribe_unknown_outcomes();
        }
        KernelInvalidator(Arc::downgrade(fs), numbers)
    }

    pub fn start(self, device: OwnedFd, calls: CallsInProgress) -> io::Result<InvalidatorThread> {
        let stop = Arc::<StopSignal>::default();
        let theirs = Arc::clone(&stop);
        let work = move || {
            while !theirs.is_asked_within(TICK) {
                let Some(fs) = self.0.upgrade() else { return };
                if has_hung_up(&device) {
                    return end_if_forced(&fs, &calls);
                }
                let replaced = fs.next_replaced().into_iter().map(Invalidation::Pages);
                let unknown = fs.next_unknown_outcome().into_iter().map(Invalidation::Unknown);
                drop(fs);
                for invalidation in replaced.chain(unknown) {
                    if theirs.is_asked_within(Duration::ZERO) {
                        return;
                    }
                    take_back(&device, self.1, &invalidation);
                }
            }
        };
        std::thread::Builder::new().name("fuse-invalidate".into()).spawn(work)?;
        Ok(InvalidatorThread(stop))
    }
}

/// Called when the connection to the kernel has ended. An unmount in good order leaves no call in progress, because its
/// caller keeps the mount busy. If there is one, the mount was taken away by force (`varve umount --force`): then the
/// process does not wait for a server that is gone, as long as each of its calls would.
fn end_if_forced(fs: &Arc<FileSystem>, calls: &CallsInProgress) {
    if calls.any() && !fs.embedded() && fs.give_up_unless_answered(ANSWER_MAX) {
        tracing::warn!("the mount was taken away by force and its server does not answer: calls in progress fail");
    }
}

impl StopSignal {
    fn is_asked_within(&self, wait: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked && !wait.is_zero() {
            self.changed.wait_for(&mut asked, wait);
        }
        *asked
    }
}

impl Drop for InvalidatorThread {
    fn drop(&mut self) {
        *self.0.asked.lock() = true;
        self.0.changed.notify_all();
    }
}

/// Kernel state that is no longer valid.
#[derive(Debug)]
enum Invalidation {
    Unknown(UnknownOutcome),
    /// The cached pages of an inode.
    Pages(InodeId),
}

/// Encodes a notification to the kernel, as <linux/fuse.h> defines it. (`fuser` cannot express that a name expires and
/// is looked up again; it can only drop the name, with everything mounted beneath it.)
fn notification(numbers: NodeNumbers, invalidation: &Invalidation) -> Vec<u8> {
    let inode = |inode: InodeId, offset: i64| {
        // A length of 0 means to the end.
        (INVAL_INODE, [numbers.number(inode).0.to_ne_bytes(), offset.to_ne_bytes(), 0i64.to_ne_bytes()].concat())
    };
    let (code, body) = match invalidation {
        Invalidation::Unknown(UnknownOutcome::Name(parent, name)) => {
            let name = name.as_bytes();
            let head = [
                &numbers.number(*parent).0.to_ne_bytes()[..],
                &(name.len() as u32).to_ne_bytes(),
                &EXPIRE_ONLY.to_ne_bytes(),
            ];
            (INVAL_ENTRY, [&head.concat(), name, b"\0"].concat())
        }
        // A negative offset invalidates the attributes but no pages, some of which may be dirty.
        Invalidation::Unknown(UnknownOutcome::Attributes(of)) => inode(*of, -1),
        Invalidation::Pages(of) => inode(*of, 0),
    };
    let length = (HEADER_BYTES + body.len()) as u32;
    let no_request = 0u64;
    [&length.to_ne_bytes()[..], &code.to_ne_bytes(), &no_request.to_ne_bytes(), &body].concat()
}

fn take_back(kernel: &OwnedFd, numbers: NodeNumbers, invalidation: &Invalidation) {
    match (rustix::io::write(kernel, &notification(numbers, invalidation)), invalidation) {
        // ENOENT: the kernel has no such entry cached.
        (Ok(_) | Err(Errno::NOENT), _) => {}
        (Err(error), Invalidation::Unknown(unknown_outcome)) => {
            tracing::warn!(?unknown_outcome, %error, "the kernel may show outdated names for up to an hour")
        }
        (Err(error), Invalidation::Pages(inode)) => {
            tracing::warn!(%inode, %error, "the kernel may show an outdated page of a file until it is opened again")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::{InodeId, Name};

    #[test]
    fn notifications_have_the_kernels_layout() {
        let name = UnknownOutcome::Name(InodeId(7), Name::new(b"name").unwrap());
        let name = notification(NodeNumbers::Ids, &Invalidation::Unknown(name));
        let expected = [37u32.to_ne_bytes(), 3u32.to_ne_bytes(), [0; 4], [0; 4]].concat();
        assert_eq!(name[..16], expected);
        assert_eq!(name[16..], [&7u64.to_ne_bytes()[..], &4u32.to_ne_bytes(), &1u32.to_ne_bytes(), b"name\0"].concat());
        let attributes = notification(NodeNumbers::Ids, &Invalidation::Unknown(UnknownOutcome::Attributes(InodeId(8))));
        assert_eq!(attributes[..8], [40u32.to_ne_bytes(), 2u32.to_ne_bytes()].concat());
        assert_eq!(attributes[16..], [8i64.to_ne_bytes(), (-1i64).to_ne_bytes(), [0; 8]].concat());
        let pages = notification(NodeNumbers::Ids, &Invalidation::Pages(InodeId(9)));
        assert_eq!(pages[..16], attributes[..16]);
        assert_eq!(pages[16..], [9i64.to_ne_bytes(), [0; 8], [0; 8]].concat());
    }
}
