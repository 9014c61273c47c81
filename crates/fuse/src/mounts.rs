//! The mounts of volumes in the kernel's mount table.

use crate::options::FLAGS;
use rustix::mount::MountFlags;
use std::io;
use std::path::{Path, PathBuf};
pub(crate) use varve_env::mount_table::MountEntry;
use varve_env::trusted_path;

pub(crate) use varve_env::mount_table::VARVE_TYPE as TYPE;

/// The flags of a mount and its file system, as mount(2) takes them.
pub(crate) fn flags_of(mount: &MountEntry) -> MountFlags {
    let flag = |option: &str| FLAGS.iter().find(|(name, _, on)| *on && *name == option).map(|flag| flag.1);
    mount.options.split(',').filter_map(flag).collect()
}

/// All mounts of this process's mount namespace, in the order in which they were made.
pub(crate) use varve_env::mount_table::read as table;

/// The topmost mount at `target`, if `target` is a mount point.
pub(crate) fn at(table: &[MountEntry], target: &Path) -> Option<MountEntry> {
    let here = || table.iter().rev().filter(|mount| mount.target == target);
    // The table lists mounts in the order in which they were made. After a move, that is not the order in which they
    // cover each other.
    here().find(|mount| !here().any(|above| above.id != mount.id && above.parent == mount.id)).cloned()
}

/// The device of the topmost mount at `target`, which identifies the mount as long as it exists; `None` if it cannot be
/// determined.
pub(crate) fn device_at(target: &Path) -> Option<(u32, u32)> {
    at(&table().ok()?, target).map(|mount| mount.device)
}

/// One location of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountLocation {
    pub target: PathBuf,
    /// [`MountEntry::id`]; `None` where the table cannot be read.
    pub id: Option<u32>,
    /// The target of a mount that covers this one, or a directory above it.
    pub covered: Option<PathBuf>,
    /// The target of a mount inside this one.
    pub holds: Option<PathBuf>,
}

/// The present locations of the mount of `device`, which was made at `made_at`, in the order in which it got there. The
/// mount may have been moved, covered or bound to more locations since. If the device is unknown, the result is the
/// locations of a volume at `made_at`.
pub(crate) fn places_of(device: Option<(u32, u32)>, made_at: &Path) -> Vec<MountLocation> {
    match table() {
        Ok(table) => places_in(&table, device, made_at),
        Err(_) => vec![MountLocation { target: made_at.to_owned(), id: None, covered: None, holds: None }],
    }
}

fn places_in(table: &[MountEntry], device: Option<(u32, u32)>, made_at: &Path) -> Vec<MountLocation> {
    let is_ours = |mount: &MountEntry| {
        mount.kind == TYPE && device.map_or(mount.target == made_at, |device| device == mount.device)
    };
    let others: Vec<&MountEntry> = table.iter().filter(|mount| !is_ours(mount)).collect();
    let place = |mount: &MountEntry| {
        let mut inside = others.iter().filter(|other| other.target.starts_with(&mount.target));
        let inside = inside.find(|other| lies_on(table, other, mount)).map(|other| other.target.clone());
        let (above, holds) = match inside {
            Some(at) if at == mount.target => (Some(at), None),
            at => (None, at),
        };
        let covered = covering(table, mount, is_ours).or(above);
        MountLocation { target: mount.target.clone(), id: Some(mount.id), covered, holds }
    };
    table.iter().filter(|mount| is_ours(mount)).map(place).collect()
}

/// The target of another mount that covers `mount`, or a directory above it, so that its path leads elsewhere. A mount
/// over the root directory does not redirect a process that already has its root.
fn covering(table: &[MountEntry], mount: &MountEntry, is_ours: impl Fn(&MountEntry) -> bool) -> Option<PathBuf> {
    let above = mount.target.ancestors().filter(|ancestor| ancestor.parent().is_some());
    let tops = above.filter_map(|ancestor| at(table, ancestor));
    tops.filter(|top| !is_ours(top) && !lies_on(table, mount, top)).last().map(|top| top.target)
}

/// Whether `mount` is on `other`, directly or through other mounts.
fn lies_on(table: &[MountEntry], mount: &MountEntry, other: &MountEntry) -> bool {
    let parent = |mount: &MountEntry| table.iter().find(|parent| parent.id == mount.parent && parent.id != mount.id);
    // A chain of parents is at most as long as the table.
    let chain = std::iter::successors(parent(mount), |mount| parent(mount)).take(table.len());
    chain.into_iter().any(|below| below.id == other.id)
}

/// The source of the volume mounted at `target`: its store, unless the mount option `fsname` gave another name. `None`
/// if no volume is mounted there. Sends no request to the mount itself, which may hang.
pub fn source_of(target: &Path) -> io::Result<Option<PathBuf>> {
    let target = resolve(target)?;
    Ok(at(&table()?, &target).filter(|mount| mount.kind == TYPE).map(|mount| mount.source))
}

/// The path as the mount table shows it. A dead mount, or one that this user may not enter, cannot be resolved itself,
/// but its parent directory can.
pub(crate) fn resolve(target: &Path) -> io::Result<PathBuf> {
    match trusted_path::resolve(target).map_err(io::Error::from).and_then(|path| path.symlink_metadata().map(|_| path))
    {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EACCES)) => {
            let absolute = std::path::absolute(target)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(trusted_path::resolve(parent)?.join(name)),
                _ => Err(error),
            }
        }
        resolved => resolved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One mount per line: the minor number of its device, the line of its parent, its target and its type.
    fn table(lines: &[(u32, u32, &str, &str)]) -> Vec<MountEntry> {
        let entry = |(id, (minor, parent, target, kind)): (usize, &(u32, u32, &str, &str))| MountEntry {
            id: id as u32,
            parent: *parent,
            device: (0, *minor),
            target: target.into(),
            kind: (*kind).into(),
            source: "/store".into(),
            options: "rw".into(),
        };
        lines.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn a_mount_is_found_where_it_was_moved_covered_or_bound_to() {
        let places = |lines: &[(u32, u32, &str, &str)]| {
            let places = places_in(&table(&[&[(1, 0, "/", "ext4")], lines].concat()), Some((0, 7)), Path::new("/a/m"));
            let text = |place: MountLocation| {
                let [covered, holds] =
                    [place.covered, place.holds].map(|at| at.map_or("-".into(), |at| at.into_os_string()));
                [place.target.into_os_string(), covered, holds].map(|path| path.into_string().unwrap()).join(" ")
            };
            places.into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(places(&[(7, 0, "/a/m", TYPE)]), ["/a/m - -"]);
        assert_eq!(places(&[(7, 0, "/b/c", TYPE)]), ["/b/c - -"], "moved");
        assert_eq!(places(&[(8, 0, "/a/m", TYPE), (7, 1, "/a/m", TYPE)]), ["/a/m - -"], "over another");
        assert_eq!(places(&[(7, 0, "/a/m", TYPE), (8, 1, "/a/m", TYPE)]), ["/a/m /a/m -"]);
        assert_eq!(places(&[(8, 2, "/a/m", "tmpfs"), (7, 0, "/a/m", TYPE)]), ["/a/m /a/m -"], "by one that was moved");
        assert_eq!(places(&[(7, 0, "/a/m", TYPE), (8, 0, "/a", "tmpfs")]), ["/a/m /a -"], "a directory above");
        assert_eq!(places(&[(8, 0, "/a", "tmpfs"), (7, 1, "/a/m", TYPE)]), ["/a/m - -"], "on what is above");
        assert_eq!(places(&[(7, 0, "/a/m", TYPE), (8, 1, "/a/m/in", "tmpfs")]), ["/a/m - /a/m/in"]);
        let bound = [(7, 0, "/a/m", TYPE), (7, 0, "/b", TYPE), (7, 1, "/a/m", TYPE)];
        assert_eq!(places(&bound), ["/a/m - -", "/b - -", "/a/m - -"]);
        let between = [(7, 0, "/a/m", TYPE), (8, 1, "/a/m", "tmpfs"), (7, 2, "/a/m", TYPE)];
        assert_eq!(places(&between), ["/a/m /a/m -", "/a/m - -"], "of another between");
        let between = [(7, 0, "/a/b/m", TYPE), (8, 0, "/a/b", "tmpfs"), (7, 0, "/a", TYPE)];
        assert_eq!(places(&between), ["/a/b/m /a/b -", "/a - -"], "of another between, above");
        assert_eq!(places(&[(7, 0, "/a/m", TYPE), (1, 0, "/", "ext4")]), ["/a/m - -"], "over the root directory");
        assert_eq!(places(&[(8, 0, "/a/m", TYPE)]), [""; 0], "gone, and another in its place");
        assert_eq!(places(&[(7, 0, "/a/m", "fuse.other")]), [""; 0], "of a number that another has now");
        let other = table(&[(1, 0, "/", "ext4"), (8, 0, "/a/m", TYPE)]);
        assert_eq!(places_in(&other, None, Path::new("/a/m")).len(), 1, "as far as it is known");
    }
}
