//! Provides the frontend's null file system to the benchmark, which does not depend on FUSE.

use super::companion::Companion;
use std::io;
use std::path::Path;
use std::time::Duration;
use varve_bench::ceilings::{NullFuseMount, NullMount};
use varve_bench::target::Via;
use varve_client::Timeouts;

/// Null file systems with the same kernel cache timeouts as the mount that they are compared with.
pub struct Null(Timeouts);

impl Null {
    /// `asked` applies to all timeouts. Without it, the timeouts are those of the first mount in `via`, or zero if
    /// there is none.
    pub fn new(asked: Option<Duration>, via: &[Via]) -> Null {
        if let Some(all) = asked {
            return Null(Timeouts { directories: all, files: all, absent: all });
        }
        let directories = via.iter().filter_map(|via| match via {
            Via::Mount(directory) => Some(directory),
            _ => None,
        });
        // The target may be a directory within the mount.
        let mut roots = directories.flat_map(|directory| directory.ancestors());
        Null(roots.find_map(|root| varve_fuse::timeouts(root).ok()).unwrap_or_default())
    }
}

impl NullMount for Null {
    fn mount(&self, directory: &Path) -> io::Result<Box<dyn NullFuseMount>> {
        let companion = Companion::null(directory, self.0)?;
        // The mount is usable once it answers.
        std::fs::metadata(directory)?;
        Ok(Box::new(companion))
    }
}
