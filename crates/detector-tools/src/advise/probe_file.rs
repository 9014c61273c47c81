//! Files of a probe.

use std::io;
use std::path::{Path, PathBuf};
use varve_detector_file::run_files;

/// Removes the files of a probe when dropped, even after a failure.
pub struct RemoveOnDrop(pub PathBuf);

impl RemoveOnDrop {
    fn files(&self) -> [PathBuf; 2] {
        [self.0.clone(), run_files::journal_of(&self.0)]
    }
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        for file in self.files() {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("cannot remove the probe file {}: {error}", file.display());
                }
                _ => {}
            }
        }
    }
}

/// A random name that no other process uses.
pub fn scratch(directory: &Path, what: &str) -> RemoveOnDrop {
    let random: [u8; 8] = varve_env::random::bytes();
    RemoveOnDrop(directory.join(format!(".varve-advise-{:016x}-{what}", u64::from_le_bytes(random))))
}
