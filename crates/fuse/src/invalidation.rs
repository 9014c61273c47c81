//! Takes back what the kernel was told to believe for long and what has come of unknown outcome since.
//!
//! To take a name back the kernel locks its directory, which it holds for whoever uses that, until the request is answered. So
//! this is done by a thread that serves no requests. It waits there as long as they do, and a thread that waits in the kernel
//! keeps even a process that was killed from ending, and with that the others from being told that nobody will answer them.
//! Hence a name is taken back only when the server answers for it again ([`FileSystem::next_unknown_outcome`]), and
//! requests with it.

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_client::{FileSystem, UnknownOutcome};

/// How often unknown outcomes are looked for: trouble that leaves any takes longer to be over.
const TICK: Duration = Duration::from_millis(500);

/// `struct fuse_out_header`.
const HEADER_BYTES: usize = 16;
/// FUSE_NOTIFY_INVAL_INODE and FUSE_NOTIFY_INVAL_ENTRY.
const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
/// FUSE_EXPIRE_ONLY, since Linux 6.2; before that the name is dropped.
const EXPIRE_ONLY: u32 = 1;

/// The unknown outcomes of a file system that is about to be mounted.
pub(crate) struct KernelInvalidator(Weak<FileSystem>);

/// A thread that tells the kernel of them, until this is dropped. Nobody waits for it.
pub(crate) struct InvalidatorThread(Arc<StopSignal>);

#[derive(Default)]
struct StopSignal {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl KernelInvalidator {
    pub fn of(fs: &Arc<FileSystem>) -> KernelInvalidator {
        fs.subscribe_unknown_outcomes();
        KernelInvalidator(Arc::downgrade(fs))
    }

    pub fn start(self, device: OwnedFd) -> io::Result<InvalidatorThread> {
        let stop = Arc::<StopSignal>::default();
        let theirs = Arc::clone(&stop);
        let work = move || {
            while !theirs.is_asked_within(TICK) {
                let Some(fs) = self.0.upgrade() else { return };
                let next_unknown_outcome = fs.next_unknown_outcome();
                drop(fs);
                for unknown_outcome in next_unknown_outcome {
                    if theirs.is_asked_within(Duration::ZERO) {
                        return;
                    }
                    take_back(&device, &unknown_outcome);
                }
            }
        };
        std::thread::Builder::new().name("fuse-doubts".into()).spawn(work)?;
        Ok(InvalidatorThread(stop))
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

/// A notification of the kernel's, as <linux/fuse.h> has it. (`fuser` cannot say that a name is to be looked up again, and not
/// dropped with all that is mounted beneath it.)
fn notification(unknown_outcome: &UnknownOutcome) -> Vec<u8> {
    let (code, body) = match unknown_outcome {
        UnknownOutcome::Name(parent, name) => {
            let name = name.as_bytes();
            let head = [&parent.0.to_ne_bytes()[..], &(name.len() as u32).to_ne_bytes(), &EXPIRE_ONLY.to_ne_bytes()];
            (INVAL_ENTRY, [&head.concat(), name, b"\0"].concat())
        }
        // From before the beginning: no pages, of which some may wait to be written.
        UnknownOutcome::Attributes(inode) => {
            let (offset, length) = ((-1i64).to_ne_bytes(), 0i64.to_ne_bytes());
            (INVAL_INODE, [inode.0.to_ne_bytes(), offset, length].concat())
        }
    };
    let length = (HEADER_BYTES + body.len()) as u32;
    let no_request = 0u64;
    [&length.to_ne_bytes()[..], &code.to_ne_bytes(), &no_request.to_ne_bytes(), &body].concat()
}

fn take_back(kernel: &OwnedFd, unknown_outcome: &UnknownOutcome) {
    match rustix::io::write(kernel, &notification(unknown_outcome)) {
        // The kernel knows nothing of it.
        Ok(_) | Err(Errno::NOENT) => {}
        Err(error) => {
            tracing::warn!(?unknown_outcome, %error, "the kernel may believe for up to an hour what it was told before")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::{InodeId, Name};

    #[test]
    fn notifications_have_the_kernels_layout() {
        let name = notification(&UnknownOutcome::Name(InodeId(7), Name::new(b"name").unwrap()));
        let expected = [37u32.to_ne_bytes(), 3u32.to_ne_bytes(), [0; 4], [0; 4]].concat();
        assert_eq!(name[..16], expected);
        assert_eq!(name[16..], [&7u64.to_ne_bytes()[..], &4u32.to_ne_bytes(), &1u32.to_ne_bytes(), b"name\0"].concat());
        let attributes = notification(&UnknownOutcome::Attributes(InodeId(8)));
        assert_eq!(attributes[..8], [40u32.to_ne_bytes(), 2u32.to_ne_bytes()].concat());
        assert_eq!(attributes[16..], [8i64.to_ne_bytes(), (-1i64).to_ne_bytes(), [0; 8]].concat());
    }
}
