//! Virtual extended attributes, by which a mount describes itself to `varve stats`, `varve info` and `varve umount`. No
//! file has them. They are read with getxattr(2), which needs no socket and no privilege beyond reading the file. They
//! are never listed, so copying tools do not see them.

use crate::error::{Error, Result};
use crate::frontend::PassthroughCount;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve_client::{ContentLocation, FileSystem, InodeInfo, RetryCause, StaleSizes, Timeouts};
use varve_types::FileKind;

/// On the root of the mount: counters of its operations, as JSON.
pub(crate) const STATS: &[u8] = b"varve.stats";
/// On any file or directory: its inode, shard, partitions and the location of its data, as JSON.
pub(crate) const INFO: &[u8] = b"varve.info";
/// On the root of the mount: the process that serves it.
pub(crate) const PROCESS: &[u8] = b"varve.process";
/// On the root of the mount: empty; the reply comes when everything acknowledged before is on disk.
pub(crate) const SYNC: &[u8] = b"varve.sync";
/// On the root of the mount: records the sizes that can be recorded. The value lists the sizes of closed files that
/// cannot be recorded yet, as JSON, or is empty.
pub(crate) const RECORD_SIZES: &[u8] = b"varve.settle";
/// Prefix of the virtual attributes; they cannot be set or removed.
pub(crate) const PREFIX: &[u8] = b"varve.";

/// XATTR_SIZE_MAX of Linux: no value is longer.
const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Partitions of a directory that [`info`] lists; each takes about 120 bytes of the value.
const PARTITIONS_SHOWN_MAX: usize = 500;

/// A process ID and the PID namespace (an inode of nsfs) that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pub pid: u32,
    pub namespace: String,
}

/// The counters of the volume mounted at `directory`, as JSON.
///
/// # Errors
/// If `directory` is not the root of a mounted volume.
pub fn stats(directory: &Path) -> Result<String> {
    text(directory, STATS).map_err(|source| unanswered(directory, source, Error::NotAMount))
}

/// The longest time that the kernel may cache a reply of the mount at `directory`.
///
/// # Errors
/// If `directory` is not the root of a mounted volume.
pub fn timeouts(directory: &Path) -> Result<Timeouts> {
    let wrap = |source: io::Error| Error::Ask { path: directory.to_owned(), source };
    let stats: serde_json::Value = serde_json::from_str(&stats(directory)?).map_err(|error| wrap(error.into()))?;
    let timeout = |of: &str| {
        let reported = stats["timeouts_ms"][of].as_u64();
        reported
            .map(Duration::from_millis)
            .ok_or_else(|| wrap(io::Error::other(format!("the mount reports no timeout of {of}"))))
    };
    Ok(Timeouts { directories: timeout("directories")?, files: timeout("files")?, absent: timeout("absent")? })
}

/// The mount's information about the file or directory at `path`, as JSON. A symlink is not followed.
///
/// # Errors
/// If `path` is not on a mounted volume, or this user may not read it.
pub fn info(path: &Path) -> Result<String> {
    text(path, INFO).map_err(|source| unanswered(path, source, Error::NotOnVolume))
}

/// The process that serves the mount at `directory`.
pub(crate) fn process(directory: &Path) -> io::Result<ProcessIdentity> {
    let stated = text(directory, PROCESS)?;
    let malformed = || io::Error::other(format!("the mount reports a malformed process {stated:?}"));
    let (pid, namespace) = stated.split_once(' ').ok_or_else(malformed)?;
    Ok(ProcessIdentity { pid: pid.parse().map_err(|_| malformed())?, namespace: namespace.to_owned() })
}

/// Returns when everything that the mount at `directory` has acknowledged is on disk.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    text(directory, SYNC).map(drop)
}

/// Whether the server of the mount at `directory` answers: only it can describe the directory. An error is an answer.
pub(crate) fn is_answered(directory: &Path) -> bool {
    !text(directory, INFO).as_ref().is_err_and(crate::unmount::is_timeout)
}

/// Whether the mount at `directory` was made read-only.
pub(crate) fn is_read_only(directory: &Path) -> io::Result<bool> {
    let stated: serde_json::Value = serde_json::from_str(&text(directory, STATS)?)?;
    stated["read_only"].as_bool().ok_or_else(|| io::Error::other("it does not report whether it was made read-only"))
}

/// Records the sizes of closed files on the mount at `directory`, and returns those that cannot be recorded yet.
pub(crate) fn record_sizes(directory: &Path) -> io::Result<Option<StaleSizes>> {
    let stated = text(directory, RECORD_SIZES)?;
    if stated.is_empty() {
        return Ok(None);
    }
    let fields: serde_json::Value = serde_json::from_str(&stated)?;
    let read = || {
        Some(StaleSizes {
            files: fields["files"].as_u64()?.try_into().ok()?,
            known_in: Duration::from_millis(fields["known_in_ms"].as_u64()?),
            awaited: fields["awaited"].as_bool()?,
        })
    };
    read().map(Some).ok_or_else(|| io::Error::other(format!("the mount reports malformed unrecorded sizes {stated:?}")))
}

/// The value of [`RECORD_SIZES`], which [`record_sizes`] reads.
pub(crate) fn size_stale(of: &StaleSizes) -> String {
    json!({ "files": of.files, "known_in_ms": of.known_in.as_millis() as u64, "awaited": of.awaited }).to_string()
}

/// The value of [`STATS`], which [`stats`] reads: counts since the client connected. Bucket `i` of `latency_log2_us`
/// counts latencies below `2^i` microseconds that are in no earlier bucket.
pub(crate) fn counters(fs: &FileSystem, passthrough: PassthroughCount) -> String {
    let (counters, timeouts) = (fs.counters(), fs.timeouts());
    let operation = |count: varve_client::OperationCount| {
        json!({
            "operation": count.operation.name(),
            "calls": count.calls,
            "errors": count.errors,
            "failed": count.failed,
            "total_ns": count.total.as_nanos() as u64,
            "latency_log2_us": count.latency.as_slice(),
        })
    };
    json!({
        "pid": std::process::id(),
        "read_only": fs.read_only(),
        "requests": counters.requests(),
        "retries": counters.retries(),
        "retry_causes": {
            "moved": counters.retries_for(RetryCause::Moved),
            "not_owner": counters.retries_for(RetryCause::NotOwner),
            "busy": counters.retries_for(RetryCause::Busy),
            "lost": counters.retries_for(RetryCause::Lost),
        },
        "reconnects": counters.reconnects(),
        "read_bytes": counters.read_bytes(),
        "written_bytes": counters.written_bytes(),
        "passthrough": { "granted": passthrough.granted, "refused": passthrough.refused },
        "timeouts_ms": {
            "directories": timeouts.directories.as_millis() as u64,
            "files": timeouts.files.as_millis() as u64,
            "absent": timeouts.absent.as_millis() as u64,
        },
        "operations": counters.all().into_iter().map(operation).collect::<Vec<_>>(),
    })
    .to_string()
}

/// The value of [`INFO`], which [`info`] reads. Inodes and hashes are hexadecimal, as in the names of backing files.
pub(crate) fn description(of: &InodeInfo) -> String {
    let kind = match of.attributes.kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    };
    let content = match &of.place {
        ContentLocation::Row => json!({ "place": "row" }),
        ContentLocation::BackingFile(path) => json!({ "place": "backing file", "path": path.to_string_lossy() }),
        ContentLocation::Nowhere => json!({ "place": "none" }),
    };
    let partition = |partition: &varve_client::PartitionInfo| {
        json!({
            "index": partition.index.0,
            "shard": partition.shard.0,
            "first_hash": format!("{:016x}", partition.range.first.0),
            "last_hash": format!("{:016x}", partition.range.last.0),
            "entries": partition.entries,
        })
    };
    json!({
        "inode": format!("{:016x}", of.inode.0),
        "kind": kind,
        "size": of.attributes.size,
        "shard": of.shard.0,
        "row": if of.by_inode { "inode" } else { "entry" },
        "content": content,
        "ack": of.ack.name(),
        "partitions_total": of.partitions.len(),
        "partitions": of.partitions.iter().take(PARTITIONS_SHOWN_MAX).map(partition).collect::<Vec<_>>(),
    })
    .to_string()
}

/// The value of [`PROCESS`] for this process, which [`process`] reads.
pub(crate) fn own_process() -> io::Result<String> {
    Ok(format!("{} {}", std::process::id(), own_namespace()?))
}

pub(crate) fn own_namespace() -> io::Result<String> {
    Ok(std::fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// A path outside a Varve mount has no attribute of this name, or no attributes at all.
fn unanswered(path: &Path, source: io::Error, no_such: fn(PathBuf) -> Error) -> Error {
    match rustix::io::Errno::from_io_error(&source) {
        Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA) => no_such(path.to_owned()),
        Some(rustix::io::Errno::NOTCONN) => Error::DeadMount(path.to_owned()),
        _ => Error::Ask { path: path.to_owned(), source },
    }
}

fn text(path: &Path, name: &[u8]) -> io::Result<String> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    let length = rustix::fs::lgetxattr(path, name, &mut value)?;
    value.truncate(length);
    String::from_utf8(value).map_err(io::Error::other)
}
