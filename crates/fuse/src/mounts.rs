//! The kernel's table of mounts, as proc(5) shows it in `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system type of our mounts.
pub(crate) const TYPE: &str = "fuse.varve";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Major and minor number of the device that `stat` and `/proc/<pid>/maps` show.
    pub device: (u32, u32),
    pub target: PathBuf,
    pub kind: String,
    /// What is mounted: the store, unless whoever mounted it gave another name.
    pub source: PathBuf,
}

/// All mounts of this process's namespace, in the order in which they were made.
pub(crate) fn table() -> io::Result<Vec<MountEntry>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(entry).collect())
}

/// The mount that is on top at `target`, if it is a mount point.
pub(crate) fn at(table: &[MountEntry], target: &Path) -> Option<MountEntry> {
    table.iter().rev().find(|mount| mount.target == target).cloned()
}

/// The device of what is on top at `target`, which tells a mount from every other one for as long as it lasts; `None` where it
/// cannot be known.
pub(crate) fn device_at(target: &Path) -> Option<(u32, u32)> {
    at(&table().ok()?, target).map(|mount| mount.device)
}

/// Where a mount can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    OnTop(PathBuf),
    /// What is mounted over it comes first.
    Covered(PathBuf),
}

/// A place where the mount of `device`, which was made at `made_at`, is now: it may have been moved or covered since, and bound
/// to more places. As far as it can be known: at least a place of a volume.
pub(crate) fn place_of(device: Option<(u32, u32)>, made_at: &Path) -> Option<Place> {
    match table() {
        Ok(table) => place_in(&table, device, made_at),
        Err(_) => Some(Place::OnTop(made_at.to_owned())),
    }
}

fn place_in(table: &[MountEntry], device: Option<(u32, u32)>, made_at: &Path) -> Option<Place> {
    let ours = |mount: &MountEntry| {
        mount.kind == TYPE && device.map_or(mount.target == made_at, |device| device == mount.device)
    };
    let target = &table.iter().find(|mount| ours(mount))?.target;
    let on_top = at(table, target).is_some_and(|mount| ours(&mount));
    Some(if on_top { Place::OnTop(target.clone()) } else { Place::Covered(target.clone()) })
}

/// A line: `36 35 98:0 /root /target options [optional]… - type source options`; blanks and the like in octal.
fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let target = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        target,
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: PathBuf::from(OsString::from_vec(unescape(source))),
    })
}

/// What is mounted at `target`, if that is where a volume is mounted: its store, unless whoever mounted it gave another
/// name (`fsname`). The mount itself is not asked, which may hang.
pub fn source_of(target: &Path) -> io::Result<Option<PathBuf>> {
    let target = resolve(target)?;
    Ok(at(&table()?, &target).filter(|mount| mount.kind == TYPE).map(|mount| mount.source))
}

/// The path as the table of mounts has it. A mount whose process died, or that is closed to this user, cannot be looked
/// into, but the directory around it can.
pub(crate) fn resolve(target: &Path) -> io::Result<PathBuf> {
    match target.canonicalize() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EACCES)) => {
            let absolute = std::path::absolute(target)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Err(error),
            }
        }
        resolved => resolved,
    }
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(digits) => {
                bytes.push(digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(minor: u32, target: &str, kind: &str) -> MountEntry {
        MountEntry { device: (0, minor), target: target.into(), kind: kind.into(), source: "/store".into() }
    }

    #[test]
    fn a_mount_is_found_where_it_was_moved_covered_or_bound_to() {
        let place = |table: &[MountEntry]| place_in(table, Some((0, 7)), Path::new("/a"));
        let (on_top, covered) = (|at: &str| Some(Place::OnTop(at.into())), |at: &str| Some(Place::Covered(at.into())));
        let (root, other) = (mount(1, "/", "ext4"), mount(8, "/a", TYPE));
        assert_eq!(place(&[root.clone(), mount(7, "/a", TYPE)]), on_top("/a"));
        assert_eq!(place(&[root.clone(), mount(7, "/b/c", TYPE)]), on_top("/b/c"), "moved");
        assert_eq!(place(&[root.clone(), other.clone(), mount(7, "/a", TYPE)]), on_top("/a"), "over another");
        assert_eq!(place(&[root.clone(), mount(7, "/a", TYPE), other.clone()]), covered("/a"));
        assert_eq!(place(&[mount(7, "/a", TYPE), mount(7, "/a", TYPE), mount(7, "/b", TYPE)]), on_top("/a"), "bound");
        assert_eq!(place(&[root.clone(), other.clone()]), None, "gone, and another in its place");
        assert_eq!(place(&[root.clone(), mount(7, "/a", "fuse.other")]), None, "of a number that another has now");
        assert_eq!(place_in(&[root, other], None, Path::new("/a")), on_top("/a"), "as far as it is known");
    }

    /// `varve umount` finds a mount whatever bytes its path has.
    #[test]
    fn lines_of_mountinfo_are_read_with_their_escapes() {
        let line = br"36 35 0:98 / /mnt/a\040b\134c rw,noatime shared:1 master:2 - fuse.varve /a\040store rw,user_id=0";
        let entry = entry(line).unwrap();
        assert_eq!(entry.device, (0, 98));
        assert_eq!(entry.target, Path::new("/mnt/a b\\c"));
        assert_eq!(entry.kind, TYPE);
        assert_eq!(entry.source, Path::new("/a store"));
        assert_eq!(super::entry(b""), None);
    }
}
