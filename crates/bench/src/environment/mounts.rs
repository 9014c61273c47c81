//! The file system beneath a directory, from the mount table.

use std::io;
use std::path::Path;
use varve_env::mount_table::{self, MountEntry};

/// One mount, as the kernel shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct MountInfo {
    pub mount_point: String,
    pub filesystem: String,
    pub source: String,
    /// Options of the mount and of the file system, comma-separated.
    pub options: String,
}

impl MountInfo {
    /// For an ext3 or ext4 on a block device: whether the kernel keeps a journal for it.
    pub fn journal(&self) -> Option<bool> {
        let device = self.source.strip_prefix("/dev/")?.replace('/', "!");
        let known = Path::new("/proc/fs/ext4").join(&device).exists();
        (matches!(self.filesystem.as_str(), "ext3" | "ext4") && known)
            .then(|| Path::new("/proc/fs/jbd2").join(format!("{device}-8")).exists())
    }
}

/// The mount that `path` lies on.
pub fn mount_of(path: &Path) -> io::Result<MountInfo> {
    let path = std::fs::canonicalize(path)?;
    find(&mount_table::read()?, &path)
        .ok_or_else(|| io::Error::other(format!("no mount in /proc/self/mountinfo holds {}", path.display())))
}

/// The last of the mounts with the longest mount point above `path`: a later mount covers an earlier one.
pub(super) fn find(table: &[MountEntry], path: &Path) -> Option<MountInfo> {
    // Of equals, `max_by_key` takes the last.
    let above = table.iter().filter(|mount| path.starts_with(&mount.target));
    let mount = above.max_by_key(|mount| mount.target.as_os_str().len())?;
    Some(MountInfo {
        mount_point: mount.target.to_string_lossy().into_owned(),
        filesystem: mount.kind.clone(),
        source: mount.source.to_string_lossy().into_owned(),
        options: mount.options.clone(),
    })
}
