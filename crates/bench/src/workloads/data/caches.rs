//! Drops the caches between writing and reading.

use std::fs::File;
use std::path::{Path, PathBuf};

/// 1: page cache only. 3: also names and inodes. All files were synced before, so everything is clean.
#[derive(Clone, Copy)]
pub(super) enum Caches {
    Pages,
    PagesAndInodes,
}

/// Drops the kernel's caches of this host. Without root, only those of the files themselves.
///
/// `false`: reads may be of memory.
pub(super) fn drop_caches(files: &[PathBuf], caches: Caches) -> bool {
    for path in files {
        forget(path);
        // Best effort: a user who may read a file through the mount but not in the store cannot drop the cache of the
        // store's file.
        if let Some(beneath) = crate::workloads::stream::beneath(path) {
            forget(&beneath);
        }
    }
    let word = match caches {
        Caches::Pages => "1",
        Caches::PagesAndInodes => "3",
    };
    std::fs::write("/proc/sys/vm/drop_caches", word).is_ok()
}

fn forget(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}
