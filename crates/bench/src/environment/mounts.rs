//! The file system beneath a directory, from /proc/self/mountinfo (proc_pid_mountinfo(5)).

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    let table = std::fs::read("/proc/self/mountinfo")?;
    find(&table, path.as_os_str().as_bytes())
        .ok_or_else(|| io::Error::other(format!("no mount in /proc/self/mountinfo holds {}", path.display())))
}

/// The last of the mounts with the longest mount point above `path`: a later mount covers an earlier one.
pub(super) fn find(table: &[u8], path: &[u8]) -> Option<MountInfo> {
    let mut found: Option<(usize, MountInfo)> = None;
    for (point, mount) in table.split(|byte| *byte == b'\n').filter_map(parse) {
        let above = path
            .strip_prefix(point.as_slice())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || point.as_slice() == b"/");
        if above && found.as_ref().is_none_or(|(len, _)| *len <= point.len()) {
            found = Some((point.len(), mount));
        }
    }
    found.map(|(_, mount)| mount)
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &[u8]) -> Option<(Vec<u8>, MountInfo)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescape(fields.nth(4)?);
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (filesystem, source) = (rest.next()?, unescape(rest.next()?));
    let mut all: Vec<String> = String::from_utf8_lossy(options).split(',').map(str::to_owned).collect();
    for option in String::from_utf8_lossy(rest.next().unwrap_or_default()).split(',') {
        if !option.is_empty() && !all.iter().any(|known| known == option) {
            all.push(option.to_owned());
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mount = MountInfo {
        mount_point: text(&point),
        filesystem: text(filesystem),
        source: text(&source),
        options: all.join(","),
    };
    Some((point, mount))
}

/// Decodes space, tab, newline and backslash, which the kernel writes as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}
