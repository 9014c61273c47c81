//! Brings the frontend's null file system to the benchmark, which knows no FUSE.

use super::companion::Companion;
use std::io;
use std::path::Path;
use std::time::Duration;
use varve_bench::ceilings::{NullFuseMount, NullMount};
use varve_bench::target::Via;
use varve_client::Timeouts;

/// Null file systems whose kernel may believe them for as long as it may the mount that they are compared with.
pub struct Null(Timeouts);

impl Null {
    /// `asked`: for everything alike. Else as the first mount among `via` has it, or zero where there is none.
    pub fn new(asked: Option<Duration>, via: &[Via]) -> Null {
        if let Some(all) = asked {
            return Null(Timeouts { directories: all, files: all, absent: all });
        }
        let directories = via.iter().filter_map(|via| match via {
            Via::Mount(directory) => Some(directory),
            _ => None,
        });
        // What is measured may be a directory within the mount.
        let mut roots = directories.flat_map(|directory| directory.ancestors());
        Null(roots.find_map(|root| varve_fuse::timeouts(root).ok()).unwrap_or_default())
    }
}

impl NullMount for Null {
    fn mount(&self, directory: &Path) -> io::Result<Box<dyn NullFuseMount>> {
        let companion = Companion::null(directory, self.0)?;
        // It is usable once it answers.
        std::fs::metadata(directory)?;
        Ok(Box::new(companion))
    }
}
