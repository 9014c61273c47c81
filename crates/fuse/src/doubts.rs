//! Takes back what the kernel was told to believe for long and what has come in doubt since.
//!
//! To take a name back the kernel locks its directory, which it holds for whoever uses that, until the request is answered. So
//! this is done by a thread that serves no requests. It waits there as long as they do, and a thread that waits in the kernel
//! keeps even a process that was killed from ending, and with that the others from being told that nobody will answer them.
//! Hence a name is taken back only when the server answers for it again ([`FileSystem::doubted`]), and requests with it.

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_client::{Doubt, FileSystem};

/// How often doubts are looked for: trouble that leaves any takes longer to be over.
const TICK: Duration = Duration::from_millis(500);

/// The doubts of a file system that is about to be mounted.
pub(crate) struct Doubts(Weak<FileSystem>);

/// A thread that tells the kernel of them, until this is dropped. Nobody waits for it.
pub(crate) struct Telling(Arc<Stop>);

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Doubts {
    pub fn of(fs: &Arc<FileSystem>) -> Doubts {
        fs.hear_doubts();
        Doubts(Arc::downgrade(fs))
    }

    pub fn tell(self, kernel: Notifier) -> io::Result<Telling> {
        let stop = Arc::<Stop>::default();
        let theirs = Arc::clone(&stop);
        let work = move || {
            while !theirs.is_asked_within(TICK) {
                let Some(fs) = self.0.upgrade() else { return };
                let doubted = fs.doubted();
                drop(fs);
                for doubt in doubted {
                    if theirs.is_asked_within(Duration::ZERO) {
                        return;
                    }
                    take_back(&kernel, &doubt);
                }
            }
        };
        std::thread::Builder::new().name("fuse-doubts".into()).spawn(work)?;
        Ok(Telling(stop))
    }
}

impl Stop {
    fn is_asked_within(&self, wait: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked && !wait.is_zero() {
            self.changed.wait_for(&mut asked, wait);
        }
        *asked
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        *self.0.asked.lock() = true;
        self.0.changed.notify_all();
    }
}

fn take_back(kernel: &Notifier, doubt: &Doubt) {
    let told = match doubt {
        Doubt::Name(parent, name) => kernel.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name.as_bytes())),
        // From before the beginning: no pages, of which some may wait to be written.
        Doubt::Attributes(inode) => kernel.inval_inode(INodeNo(inode.0), -1, 0),
    };
    if let Err(error) = told {
        tracing::warn!(?doubt, %error, "the kernel does not take back what it was told, and may believe it for up to an hour");
    }
}
