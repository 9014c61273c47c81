//! The credentials of a request's caller.
//!
//! A request carries the file system uid and gid of its thread, but not its supplementary groups. The frontend reads
//! those from `/proc/<pid>/status` while the thread waits in its system call, so they are the groups at the time of the
//! call. The read costs about a quarter of a request. The frontend skips it where groups cannot matter: root needs
//! none, and calls on an open handle, as well as stat, need no permission.

use fuser::Request;
use rustix::fs::{Mode, OFlags};
use varve_types::Credentials;

/// The line `Groups:` is near the top of `status`. With [`Credentials::GROUPS_MAX`] groups (each at most ten digits and
/// a blank) it ends within this many bytes.
const STATUS_BYTES_MAX: usize = 16 * 1024;

/// Credentials for calls whose permissions are checked.
pub(crate) fn caller(request: &Request) -> Credentials {
    let groups = if request.uid() == Credentials::ROOT_UID { Vec::new() } else { groups_of(request.pid()) };
    Credentials { groups, ..identity(request) }
}

/// Credentials for calls that need no permission: calls on an open handle, and stat.
pub(crate) fn identity(request: &Request) -> Credentials {
    Credentials { uid: request.uid(), gid: request.gid(), groups: Vec::new() }
}

/// The supplementary groups of a thread, at most [`Credentials::GROUPS_MAX`]. Empty where they cannot be read: the
/// caller is in a PID namespace that this process cannot see (pid 0), or /proc hides it. The server then checks the
/// caller's uid and gid alone.
fn groups_of(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let mut status = [0; STATUS_BYTES_MAX];
    let length = match read_status(pid, &mut status) {
        Ok(length) => length,
        Err(errno) => {
            tracing::debug!(pid, %errno, "cannot read the caller's groups");
            return Vec::new();
        }
    };
    parse_groups(&status[..length])
}

fn read_status(pid: u32, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let path = format!("/proc/{pid}/status");
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // One read returns one page or the whole file, as /proc prefers; further reads return the rest.
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&file, &mut buffer[filled..])? {
            0 => break,
            more => filled += more,
        }
        if groups_line(&buffer[..filled]).is_some() {
            break;
        }
    }
    Ok(filled)
}

/// The digits after `Groups:`, once the buffer has the whole line.
fn groups_line(status: &[u8]) -> Option<&[u8]> {
    const LABEL: &[u8] = b"\nGroups:";
    let start = status.windows(LABEL.len()).position(|window| window == LABEL)? + LABEL.len();
    let length = status[start..].iter().position(|byte| *byte == b'\n')?;
    Some(&status[start..start + length])
}

fn parse_groups(status: &[u8]) -> Vec<u32> {
    let line = groups_line(status).unwrap_or_default();
    let words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let numbers = words.filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok());
    numbers.take(Credentials::GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_status() {
        let status = b"Name:\tGroups:\nUid:\t1\t1\t1\t1\nFDSize:\t64\nGroups:\t4 24 65534 \nNStgid:\t9\n";
        assert_eq!(parse_groups(status), [4, 24, 65534]);
        assert_eq!(parse_groups(b"Name:\tx\nGroups:\t\nNS:\t1\n"), [0; 0]);
        assert_eq!(parse_groups(b"Name:\tx\nGroups:\t4 24 6"), [0; 0], "a cut line is not believed");
    }

    #[test]
    fn groups_of_this_process_are_found() {
        let own: Vec<u32> = rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        let mut found = groups_of(std::process::id());
        let mut own = own;
        found.sort_unstable();
        own.sort_unstable();
        assert_eq!(found, own);
    }
}
