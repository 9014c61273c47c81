//! Backing files that the kernel reads and writes itself while an inode is open.
//!
//! The kernel requires one registration (`fuser::BackingId`) per inode, shared by all its passthrough opens, and keeps
//! using passthrough until the last of them is released. So this module stores registrations by inode and counts their
//! handles.

use fuser::BackingId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_client::Handle;
use varve_types::InodeId;

#[derive(Default)]
pub(crate) struct Registrations {
    open: Mutex<PassthroughTable>,
    granted: AtomicU64,
    refused: AtomicU64,
}

/// Passthrough opens attempted since the mount started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassthroughCount {
    pub granted: u64,
    /// Refused by the kernel, which may require root, or a store that is not itself stacked.
    pub refused: u64,
}

#[derive(Default)]
struct PassthroughTable {
    /// At most one entry per file that the kernel has open.
    inodes: HashMap<InodeId, Registration>,
    handles: HashMap<Handle, InodeId>,
}

struct Registration {
    backing: Arc<BackingId>,
    handles: usize,
}

impl Registrations {
    /// Returns the registration of `inode` for one more handle; `register` creates it for the first handle. The lock is
    /// held during `register`, one ioctl(2) that touches no file, so that two opens cannot register twice.
    pub fn acquire(
        &self,
        inode: InodeId,
        handle: Handle,
        register: impl FnOnce() -> io::Result<BackingId>,
    ) -> io::Result<Arc<BackingId>> {
        let mut open = self.open.lock();
        let backing = match open.inodes.get_mut(&inode) {
            Some(registration) => {
                registration.handles += 1;
                Arc::clone(&registration.backing)
            }
            None => {
                let backing = Arc::new(register().inspect_err(|_| {
                    self.refused.fetch_add(1, Relaxed);
                })?);
                open.inodes.insert(inode, Registration { backing: Arc::clone(&backing), handles: 1 });
                backing
            }
        };
        open.handles.insert(handle, inode);
        self.granted.fetch_add(1, Relaxed);
        Ok(backing)
    }

    pub fn count(&self) -> PassthroughCount {
        PassthroughCount { granted: self.granted.load(Relaxed), refused: self.refused.load(Relaxed) }
    }

    /// Releases a handle, which may or may not have a registration.
    pub fn release(&self, handle: Handle) {
        let mut open = self.open.lock();
        let Some(inode) = open.handles.remove(&handle) else { return };
        let registration = open.inodes.get_mut(&inode).expect("a handle's inode is registered");
        registration.handles -= 1;
        if registration.handles == 0 {
            open.inodes.remove(&inode);
        }
    }
}
