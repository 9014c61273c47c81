//! The kernel's table of mounts, `/proc/self/mountinfo` (proc(5)), and who holds one of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the type of our mounts is shown as.
pub const FILE_SYSTEM: &str = "fuse.varve";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `st_dev` of everything in it.
    pub device: u64,
    pub directory: PathBuf,
    pub file_system: String,
    /// Of ours: the store.
    pub source: PathBuf,
}

/// All mounts, later ones on the same directory behind earlier ones.
pub fn mounts() -> io::Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// The uppermost mount on `directory`.
pub fn mounted_on(directory: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.directory == directory))
}

/// The mount that `path` (absolute, without symlinks) is in.
pub fn mount_of(path: &Path) -> io::Result<Option<Mount>> {
    let all = mounts()?;
    Ok(path.ancestors().find_map(|above| all.iter().rfind(|mount| mount.directory == above).cloned()))
}

fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    Some(Mount {
        device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        directory: unescape(fields.get(4)?),
        file_system: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        source: unescape(fields.get(separator + 2)?),
    })
}

/// Blanks, newlines and backslashes are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// A process that keeps a mount busy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Holder {
    pub pid: u32,
    pub command: String,
    /// `open file`, `working directory`, `root directory`, `mapped file`.
    pub by: Vec<&'static str>,
}

/// Who has files of `device` open, mapped, or as working or root directory, as far as this user may look.
pub fn holders(device: u64) -> Vec<Holder> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let held: BTreeMap<u32, Vec<&'static str>> =
        pids.map(|pid| (pid, ways(pid, device))).filter(|(_, by)| !by.is_empty()).collect();
    let command = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    held.into_iter().map(|(pid, by)| Holder { pid, command: command(pid), by }).collect()
}

fn ways(pid: u32, device: u64) -> Vec<&'static str> {
    let on_device = |path: PathBuf| std::fs::metadata(path).is_ok_and(|found| found.dev() == device);
    let process = PathBuf::from(format!("/proc/{pid}"));
    let mut by = Vec::new();
    if on_device(process.join("cwd")) {
        by.push("working directory");
    }
    if on_device(process.join("root")) {
        by.push("root directory");
    }
    let open = std::fs::read_dir(process.join("fd")).map(|fds| fds.flatten().any(|fd| on_device(fd.path())));
    if open.unwrap_or(false) {
        by.push("open file");
    }
    let shown = format!(" {:02x}:{:02x} ", rustix::fs::major(device), rustix::fs::minor(device));
    if std::fs::read_to_string(process.join("maps")).is_ok_and(|maps| maps.contains(&shown)) {
        by.push("mapped file");
    }
    by
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount is read as proc(5) writes it, optional fields and escapes included.
    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = b"36 35 0:55 / /mnt/a\\040b rw,noatime shared:1 - fuse.varve /the\\134store rw,user_id=0";
        let mount = parse(line).expect("a sound line");
        assert_eq!(mount.directory, Path::new("/mnt/a b"));
        assert_eq!(mount.source, Path::new("/the\\store"));
        assert_eq!((mount.file_system.as_str(), mount.device), (FILE_SYSTEM, rustix::fs::makedev(0, 55)));
    }

    #[test]
    fn this_process_is_seen_to_hold_its_working_directory() {
        let here = std::env::current_dir().and_then(std::fs::metadata).expect("a working directory");
        let own = holders(here.dev()).into_iter().find(|holder| holder.pid == std::process::id());
        assert!(own.expect("this process").by.contains(&"working directory"));
    }
}
