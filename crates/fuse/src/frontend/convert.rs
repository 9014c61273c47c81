//! Conversions of attributes, times and file types between `fuser` and Varve.

use crate::numbers::NodeNumbers;
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use varve_client::{NewNode, NodeInfo};
use varve_env::clock::system_time;
use varve_types::{Attributes, Errno, FileKind, SetTime, Timestamp};

/// `st_blksize`: the I/O size that programs such as cp(1) choose. It is large because every call has a fixed cost.
const PREFERRED_IO_BYTES: u32 = 128 * 1024;

/// Margin by which a timeout for the kernel is shortened. The kernel starts counting when it has read the reply, and
/// counts whole ticks of up to 10 ms. On a busy machine a thread may be preempted for a few ticks in between.
const KERNEL_LATE: Duration = Duration::from_millis(50);

pub(crate) fn file_attr(numbers: NodeNumbers, node: &NodeInfo) -> FileAttr {
    let Attributes { kind, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime, btime } = node.attributes;
    FileAttr {
        ino: numbers.number(node.inode),
        size,
        blocks: node.blocks,
        atime: system_time(atime),
        mtime: system_time(mtime),
        ctime: system_time(ctime),
        crtime: system_time(btime),
        kind: file_type(kind),
        perm: mode.bits(),
        nlink,
        uid,
        gid,
        rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// The attributes in a reply without attributes: "no such name" (inode 0), or an entry `.` or `..`, of which the kernel
/// uses only inode number and type.
pub(crate) fn bare_attr(number: u64, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The timeout to give the kernel for attributes or entries that are valid for `ttl` from now.
pub(crate) fn kernel_ttl(ttl: Duration) -> Duration {
    ttl.saturating_sub(KERNEL_LATE)
}

/// The shorter of the two timeouts, for replies where `fuser` sets both to the same value.
pub(crate) fn shorter_ttl(node: &NodeInfo) -> Duration {
    kernel_ttl(node.entry_ttl.min(node.attributes_ttl))
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The node that mknod(2) requests. The kernel sends device numbers in the 32 bits of its `new_encode_dev`.
pub(crate) fn new_node(mode: u32, rdev: u32) -> Result<NewNode, Errno> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(NewNode::Regular),
        libc::S_IFIFO => Ok(NewNode::Fifo),
        libc::S_IFSOCK => Ok(NewNode::Socket),
        libc::S_IFCHR => Ok(NewNode::CharDevice { rdev }),
        libc::S_IFBLK => Ok(NewNode::BlockDevice { rdev }),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether a mode has set-group-id, which a caller outside the group keeps only with a capability: it is dropped without
/// an error.
pub(crate) fn sets_group_id(mode: u32) -> bool {
    mode & libc::S_ISGID != 0
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(requested_time(time)),
    }
}

/// Converts a time as `fuser` passes it. From seconds `s` and nanoseconds `n` of the request, `fuser` makes `1970 + s +
/// n`, but for negative `s` it makes `1970 − |s| − n` instead of `1970 − |s| + n`. This function restores `s` and `n`.
pub(crate) fn requested_time(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: clamp(after.as_secs()), nanoseconds: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let seconds = 0i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN);
            Timestamp { seconds, nanoseconds: before.subsec_nanos() }
        }
    }
}

fn clamp(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let half_past = Timestamp { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(system_time(half_past), UNIX_EPOCH - Duration::from_millis(1500));
        // The value that fuser 0.18 makes of the same numbers in a request.
        let requested = UNIX_EPOCH - Duration::new(2, 500_000_000);
        assert_eq!(requested_time(requested), half_past);
        for seconds in [i64::MIN, -1, 0, 1, i64::MAX] {
            let time = Timestamp { seconds, nanoseconds: 0 };
            assert_eq!(requested_time(system_time(time)), time);
        }
    }

    /// Promise: the kernel's timeout, which starts late, ends before the lease that it is derived from.
    #[test]
    fn kernel_ttl_is_shorter_than_the_lease() {
        assert_eq!(kernel_ttl(Duration::from_secs(1)), Duration::from_millis(950));
        assert_eq!(kernel_ttl(Duration::from_millis(20)), Duration::ZERO);
    }

    #[test]
    fn mknod_type_follows_mode() {
        assert_eq!(new_node(libc::S_IFIFO | 0o644, 0), Ok(NewNode::Fifo));
        assert_eq!(new_node(0o644, 0), Ok(NewNode::Regular));
        assert_eq!(new_node(libc::S_IFCHR, 0x103), Ok(NewNode::CharDevice { rdev: 0x103 }));
        assert_eq!(new_node(libc::S_IFDIR, 0), Err(Errno::EINVAL));
    }
}
