//! Ids and capabilities of a thread, from `/proc`.

use rustix::fs::{Mode, OFlags};
use varve_types::{CallerCapabilities, Credentials, IdRange, MappedIds};

/// Bytes of a file in `/proc` that are read. `status` has the longest lists: with [`Credentials::GROUPS_MAX`] groups
/// (each at most ten digits and a blank) its last line of interest ends within this many bytes.
const BYTES_MAX: usize = 16 * 1024;

/// The initial user namespace, as `/proc/<pid>/ns/user` names it (the kernel's PROC_USER_INIT_INO).
const INITIAL_NAMESPACE: &[u8] = b"user:[4026531837]";

/// The capabilities that Varve's rules know (`varve_types::Capability`): without one of them, there is nothing to ask
/// again for.
const OF_FILES: u64 = 0b1_1111 | 1 << 21 | 1 << 27 | 1 << 31;

/// A thread that waits for the reply to its request, so that its ids and capabilities do not change meanwhile.
pub(super) struct Process {
    pid: u32,
    status: Vec<u8>,
}

impl Process {
    /// `None` where the thread cannot be seen: it is in a PID namespace that this process does not know (pid 0), or
    /// `/proc` hides it.
    pub fn of(pid: u32) -> Option<Process> {
        if pid == 0 {
            return None;
        }
        Some(Process { pid, status: read(&format!("/proc/{pid}/status"))? })
    }

    /// The file system ids, and at most [`Credentials::GROUPS_MAX`] groups.
    pub fn ids(&self) -> Option<Credentials> {
        // Real, effective, saved and file system id.
        let fourth = |label| numbers(line(&self.status, label)?).nth(3);
        let groups = line(&self.status, b"\nGroups:").map(|line| numbers(line).take(Credentials::GROUPS_MAX).collect());
        Some(Credentials::user(fourth(b"\nUid:")?, fourth(b"\nGid:")?, groups.unwrap_or_default()))
    }

    /// The effective capabilities, if they include one that concerns files.
    pub fn capabilities(&self) -> Option<CallerCapabilities> {
        let effective = self.effective()?;
        if effective & OF_FILES == 0 {
            return None;
        }
        // In another namespace than the initial one, this process does not know the ids of the host.
        if namespace("self")? != INITIAL_NAMESPACE {
            return None;
        }
        let pid = self.pid;
        let namespace = match namespace(&pid.to_string())? == INITIAL_NAMESPACE {
            true => None,
            false => Some(MappedIds {
                uids: ranges(&read(&format!("/proc/{pid}/uid_map"))?),
                gids: ranges(&read(&format!("/proc/{pid}/gid_map"))?),
            }),
        };
        Some(CallerCapabilities { effective, namespace })
    }

    fn effective(&self) -> Option<u64> {
        let digits = std::str::from_utf8(line(&self.status, b"\nCapEff:")?).ok()?;
        u64::from_str_radix(digits.trim(), 16).ok()
    }
}

fn namespace(process: &str) -> Option<Vec<u8>> {
    let link = rustix::fs::readlink(format!("/proc/{process}/ns/user"), Vec::new());
    link.inspect_err(|errno| tracing::debug!(process, %errno, "cannot read the user namespace")).ok().map(Into::into)
}

/// The first [`BYTES_MAX`] bytes of a file.
fn read(path: &str) -> Option<Vec<u8>> {
    let mut buffer = vec![0; BYTES_MAX];
    let filled = fill(path, &mut buffer);
    let filled = filled.inspect_err(|errno| tracing::debug!(path, %errno, "cannot read about the caller")).ok()?;
    buffer.truncate(filled);
    Some(buffer)
}

fn fill(path: &str, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // One read returns one page or the whole file, as /proc prefers; further reads return the rest.
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&file, &mut buffer[filled..])? {
            0 => break,
            more => filled += more,
        }
    }
    Ok(filled)
}

/// The rest of the line that begins with `label`, if the whole line was read.
fn line<'a>(status: &'a [u8], label: &[u8]) -> Option<&'a [u8]> {
    let start = status.windows(label.len()).position(|window| window == label)? + label.len();
    let length = status[start..].iter().position(|byte| *byte == b'\n')?;
    Some(&status[start..start + length])
}

fn numbers(line: &[u8]) -> impl Iterator<Item = u32> {
    let words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    words.filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

/// The ids that a namespace maps, from lines of first id inside, first id outside, and count. A line that was not read
/// whole maps nothing.
fn ranges(map: &[u8]) -> Vec<IdRange> {
    let whole = map.iter().rposition(|byte| *byte == b'\n').map_or(&map[..0], |end| &map[..end]);
    let range = |line: &[u8]| match numbers(line).collect::<Vec<_>>()[..] {
        [_, first, count] => Some(IdRange { first, count }),
        _ => None,
    };
    whole.split(|byte| *byte == b'\n').filter_map(range).take(MappedIds::RANGES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(status: &[u8]) -> Process {
        Process { pid: 1, status: status.to_vec() }
    }

    #[test]
    fn ids_are_read_from_status() {
        let status =
            b"Name:\tGroups:\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t4 24 65534 \nNStgid:\t9\n";
        assert_eq!(process(status).ids(), Some(Credentials::user(4, 8, vec![4, 24, 65534])));
        let none = b"Name:\tx\nUid:\t1\t1\t1\t1\nGid:\t2\t2\t2\t2\nGroups:\t\nNS:\t1\n";
        assert_eq!(process(none).ids(), Some(Credentials::user(1, 2, vec![])));
        let cut = b"Name:\tx\nUid:\t1\t1\t1\t1\nGid:\t2\t2\t2\t2\nGroups:\t4 24 6";
        assert_eq!(process(cut).ids(), Some(Credentials::user(1, 2, vec![])), "a cut line is not believed");
    }

    #[test]
    fn capabilities_are_read_from_status() {
        assert_eq!(process(b"Name:\tx\nCapPrm:\t1\nCapEff:\t0000000000000004\nCapBnd:\t0\n").effective(), Some(4));
        assert_eq!(process(b"Name:\tx\nCapEff:\t00000000000").effective(), None, "a cut line is not believed");
    }

    #[test]
    fn ids_of_this_thread_are_found() {
        let mut own: Vec<u32> = rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        let mut found = Process::of(std::process::id()).unwrap().ids().unwrap();
        found.groups.sort_unstable();
        own.sort_unstable();
        assert_eq!((found.uid, found.groups), (rustix::process::geteuid().as_raw(), own));
        assert!(Process::of(0).is_none());
    }

    #[test]
    fn maps_of_namespaces_give_ids_outside() {
        let map = b"         0       1000          1\n         1     100000      65536\n";
        let expected = [IdRange { first: 1000, count: 1 }, IdRange { first: 100_000, count: 65_536 }];
        assert_eq!(ranges(map), expected);
        assert_eq!(ranges(b"0 1000 1\n1 100000 6"), expected[..1]);
        assert_eq!(ranges(b""), []);
    }
}
