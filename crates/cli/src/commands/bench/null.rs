//! Brings the door's null file system to the benchmark, which knows no FUSE.

use std::io;
use std::path::Path;
use std::time::Duration;
use varve_bench::ceilings::{Mounted, NullMount};
use varve_fuse::MountOptions;

/// Nothing is believed: every operation is a request, which is what the ceiling is of.
const TTL: Duration = Duration::ZERO;

pub struct Null;

struct MountedNull(varve_fuse::Mounted);

impl NullMount for Null {
    fn mount(&self, directory: &Path) -> io::Result<Box<dyn Mounted>> {
        let options = MountOptions::new("null");
        let mounted = varve_fuse::null::mount(directory, TTL, &options).map_err(io::Error::other)?;
        // It is usable once it answers.
        std::fs::metadata(directory)?;
        Ok(Box::new(MountedNull(mounted)))
    }
}

impl Mounted for MountedNull {
    fn unmount(self: Box<Self>) -> io::Result<()> {
        self.0.unmount().map_err(io::Error::other)
    }
}
