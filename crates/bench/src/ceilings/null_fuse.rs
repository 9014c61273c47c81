//! A FUSE file system that answers everything from memory: what the kernel's FUSE allows at most.
//!
//! This crate measures it as a plain directory and knows nothing of FUSE. The program hands in a [`NullMount`], which
//! should give the kernel the same timeouts and have the same threads as the mount that is compared with it.

use super::NULL_FUSE;
use crate::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Mounts null file systems.
pub trait NullMount: Send + Sync {
    /// Mounts one at `directory`, which is empty. It must be usable when this returns, with create, lookup, getattr,
    /// unlink, mkdir, rmdir and readdir in any directory of it.
    fn mount(&self, directory: &Path) -> io::Result<Box<dyn Mounted>>;
}

/// A null file system that is mounted, by a thread of this process or by another process. Dropping it unmounts too.
pub trait Mounted: Send {
    fn unmount(self: Box<Self>) -> io::Result<()>;
}

/// A mounted null file system and its mount point, which are removed together.
pub struct MountedNull {
    directory: PathBuf,
    mounted: Option<Box<dyn Mounted>>,
}

impl MountedNull {
    /// Mounts at a new directory beneath the system's directory for temporary files.
    pub fn mount(null: &dyn NullMount) -> Result<MountedNull> {
        static MOUNTS: AtomicU64 = AtomicU64::new(0);
        let number = MOUNTS.fetch_add(1, Relaxed);
        let directory = std::env::temp_dir().join(format!("varve-null-fuse.{}.{number}", std::process::id()));
        let fail = |error: io::Error| Error::Ceiling { name: NULL_FUSE, reason: error.to_string() };
        std::fs::create_dir(&directory).map_err(fail)?;
        let mut this = MountedNull { directory, mounted: None };
        this.mounted = Some(null.mount(&this.directory).map_err(fail)?);
        Ok(this)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn unmount(mut self) -> Result<()> {
        let fail = |error: io::Error| Error::Ceiling { name: NULL_FUSE, reason: format!("cannot unmount: {error}") };
        self.mounted.take().map_or(Ok(()), Mounted::unmount).map_err(fail)
    }
}

impl Drop for MountedNull {
    fn drop(&mut self) {
        drop(self.mounted.take());
        // An empty directory; where it is still a mount point this fails, and unmount has said so.
        let _ = std::fs::remove_dir(&self.directory);
    }
}
