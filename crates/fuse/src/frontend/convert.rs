//! Attributes, times and kinds between the kernel's words and ours.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use varve_client::{NewNode, NodeInfo};
use varve_types::{Attributes, Errno, FileKind, InodeId, SetTime, Timestamp};

/// `st_blksize`: the size of I/O that programs such as cp(1) choose. Large, for every call has a cost of its own.
const PREFERRED_IO_BYTES: u32 = 128 * 1024;

/// The kernel begins to count when it has read the answer, and counts whole ticks: up to 10 ms each, and on a busy machine a thread
/// may lose its processor for a few of them in the midst of that.
const KERNEL_LATE: Duration = Duration::from_millis(50);

pub(crate) fn inode(number: INodeNo) -> InodeId {
    InodeId(number.0)
}

pub(crate) fn file_attr(node: &NodeInfo) -> FileAttr {
    let Attributes { kind, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime, btime } = node.attributes;
    FileAttr {
        ino: INodeNo(node.inode.0),
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

/// The attributes in an answer that has none: "there is no such name" (inode 0), or an entry `.` or `..`, of which the
/// kernel takes only number and kind.
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

/// How long the kernel is told to believe what may be believed for `ttl` from now.
pub(crate) fn kernel_ttl(ttl: Duration) -> Duration {
    ttl.saturating_sub(KERNEL_LATE)
}

/// One time to live where the kernel's answer has a place for two but `fuser` fills them alike.
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

/// What mknod(2) is asked to make; the kernel sends device numbers in the 32 bits of its `new_encode_dev`.
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

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(requested_time(time)),
    }
}

/// A time as `fuser` hands it over: seconds `s` and nanoseconds `n` of the request become `1970 + s + n`, but for
/// negative `s` they become `1970 − |s| − n` instead of `1970 − |s| + n`. This takes them apart again.
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

/// Saturates at what the platform's clock can say, which is what Linux's timespec can.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let seconds = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    let seconds = seconds.unwrap_or(UNIX_EPOCH);
    seconds.checked_add(Duration::from_nanos(time.nanoseconds.into())).unwrap_or(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let half_past = Timestamp { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(system_time(half_past), UNIX_EPOCH - Duration::from_millis(1500));
        // What fuser 0.18 makes of the same numbers in a request.
        let requested = UNIX_EPOCH - Duration::new(2, 500_000_000);
        assert_eq!(requested_time(requested), half_past);
        for seconds in [i64::MIN, -1, 0, 1, i64::MAX] {
            let time = Timestamp { seconds, nanoseconds: 0 };
            assert_eq!(requested_time(system_time(time)), time);
        }
    }

    /// Promise: the kernel, which begins to count late, is done before what it was told has ended.
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
