//! The kernel's mount table, as proc_pid_mountinfo(5) shows it in `/proc/self/mountinfo`.
//!
//! Users choose mount points and sources, so any byte but NUL can be in them, and one line that cannot be read must not
//! hide the others.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system type of Varve's mounts.
pub const VARVE_TYPE: &str = "fuse.varve";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount ID, unique in the table.
    pub id: u32,
    /// The mount ID of the parent mount.
    pub parent: u32,
    /// Major and minor number of the device that `stat` and `/proc/<pid>/maps` show.
    pub device: (u32, u32),
    pub target: PathBuf,
    pub kind: String,
    pub source: PathBuf,
    /// Options of the mount and of the file system, comma-separated, each once.
    pub options: String,
}

/// All mounts of this process's mount namespace, in the order in which they were made.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Whether the table of `process`, a directory of proc(5), has a Varve mount that `is_wanted` accepts. `None`: it cannot
/// be read.
pub fn has_mounted(process: &Path, is_wanted: impl Fn(&MountEntry) -> bool) -> Option<bool> {
    let table = parse(&std::fs::read(process.join("mountinfo")).ok()?);
    Some(table.iter().any(|mount| mount.kind == VARVE_TYPE && is_wanted(mount)))
}

/// The mounts of a table; lines that are not of its form are skipped.
pub fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

/// Parses a line: `36 35 98:0 /root /target options [optional]… - type source options`; blanks and the like are in
/// octal.
fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (id, parent) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let (major, minor) = text()?.split_once(':')?;
    let target = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let of_mount = String::from_utf8_lossy(fields.next()?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    let of_file_system = String::from_utf8_lossy(fields.next().unwrap_or_default());
    let mut options: Vec<&str> = of_mount.split(',').collect();
    for option in of_file_system.split(',').filter(|option| !option.is_empty()) {
        if !options.contains(&option) {
            options.push(option);
        }
    }
    Some(MountEntry {
        id,
        parent,
        device: (major.parse().ok()?, minor.parse().ok()?),
        target,
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: PathBuf::from(OsString::from_vec(unescape(source))),
        options: options.join(","),
    })
}

/// Decodes space, tab, newline and backslash, which the kernel writes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after)
            }
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    /// A mount is found whatever bytes its path has, and whatever another line has.
    #[test]
    fn lines_of_mountinfo_are_read_with_their_escapes() {
        let line = br"36 35 0:98 / /mnt/a\040b\134c rw,noatime shared:1 master:2 - fuse.varve /a\040store rw,user_id=0";
        let lines = [line.as_slice(), b"garbage", b"", b"37 36 0:9 / /mnt/\xff\\9 ro - tmpfs  rw"].join(&b'\n');
        let table = parse(&lines);
        let [first, second] = table.as_slice() else { panic!("{table:?}") };
        assert_eq!((first.id, first.parent, first.device), (36, 35, (0, 98)));
        assert_eq!(first.target, Path::new("/mnt/a b\\c"));
        assert_eq!((first.kind.as_str(), first.source.as_path()), ("fuse.varve", Path::new("/a store")));
        assert_eq!(first.options, "rw,noatime,user_id=0");
        assert_eq!(second.target.as_os_str(), OsStr::from_bytes(b"/mnt/\xff\\9"));
        assert_eq!((second.source.as_path(), second.options.as_str()), (Path::new(""), "ro,rw"));
    }

    #[test]
    fn mounts_are_looked_for_in_the_table_of_a_process() {
        let directory = tempfile::tempdir().unwrap();
        let table = "36 35 0:98 / /mnt rw - fuse.varve elsewhere rw\n37 36 0:9 / /srv rw - tmpfs /srv/volume rw\n";
        std::fs::write(directory.path().join("mountinfo"), table).unwrap();
        let is_mounted_on = |target: &str| has_mounted(directory.path(), |mount| mount.target == Path::new(target));
        assert_eq!(is_mounted_on("/mnt"), Some(true));
        assert_eq!(is_mounted_on("/srv"), Some(false), "of another type");
        assert_eq!(has_mounted(Path::new("/nowhere"), |_| true), None);
    }
}
