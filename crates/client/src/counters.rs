//! Counts of what this client did: operations, errors and latencies, for `varve stats`.

use crate::failure::Failure;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve_types::Errno;

macro_rules! operations {
    ($($variant:ident = $name:literal,)*) => {
        /// A kind of operation, as frontends call it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation { $($variant,)* }

        impl Operation {
            pub const ALL: &[Operation] = &[$(Operation::$variant,)*];

            /// The name in output and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Operation::$variant => $name,)* }
            }
        }
    };
}

operations! {
    Lookup = "lookup",
    GetAttributes = "getattr",
    SetAttributes = "setattr",
    Create = "create",
    MakeNode = "mknod",
    MakeDirectory = "mkdir",
    Unlink = "unlink",
    RemoveDirectory = "rmdir",
    Rename = "rename",
    Link = "link",
    ReadLink = "readlink",
    Xattr = "xattr",
    ReadDirectory = "readdir",
    Open = "open",
    Read = "read",
    Write = "write",
    Flush = "flush",
    Fsync = "fsync",
    Release = "release",
    Allocate = "fallocate",
    Seek = "lseek",
    CopyRange = "copy_range",
    Statistics = "statfs",
    Sync = "sync",
}

/// Bucket `i` counts latencies below `2^i` microseconds that are not in bucket `i - 1`; the last bucket also counts
/// longer ones.
pub const LATENCY_BUCKETS: usize = 28;

#[derive(Debug, Default)]
struct Count {
    calls: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    Done,
    /// The file system gave the answer that POSIX asks for, such as `ENOENT` for a name that is not there.
    Refused,
    /// The store, a server or the network could not do its part.
    Failed,
}

impl OperationOutcome {
    pub(crate) fn of<T>(result: &Result<T, Failure>) -> OperationOutcome {
        match result {
            Ok(_) => OperationOutcome::Done,
            Err(failure) if is_trouble(failure.errno) => OperationOutcome::Failed,
            Err(_) => OperationOutcome::Refused,
        }
    }
}

/// Whether an errno speaks of trouble, and not of the caller's request.
fn is_trouble(errno: Errno) -> bool {
    matches!(errno, Errno::EIO | Errno::ETIMEDOUT | Errno::EHOSTDOWN | Errno::ENOSPC | Errno::EDQUOT | Errno::ENOMEM)
}

/// Why a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCause {
    /// Another shard has the partition of the name.
    Moved,
    /// Another worker owns the shard.
    NotOwner,
    /// Other changes keep the rows busy, or the shard is being opened.
    Busy,
    /// The connection broke.
    Lost,
}

impl RetryCause {
    pub const ALL: [RetryCause; 4] = [RetryCause::Moved, RetryCause::NotOwner, RetryCause::Busy, RetryCause::Lost];

    /// The name in output and metrics.
    pub fn name(self) -> &'static str {
        match self {
            RetryCause::Moved => "moved",
            RetryCause::NotOwner => "not_owner",
            RetryCause::Busy => "busy",
            RetryCause::Lost => "lost",
        }
    }
}

/// The counters since the client connected. They can be read at any time; the counts of one operation may differ by a
/// few.
#[derive(Debug)]
pub struct Counters {
    operations: Box<[Count]>,
    pub(crate) requests: AtomicU64,
    /// By cause.
    retries: [AtomicU64; RetryCause::ALL.len()],
    pub(crate) reconnects: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The counts of one operation at the time of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCount {
    pub operation: Operation,
    pub calls: u64,
    /// Calls that ended in an error.
    pub errors: u64,
    /// Of these, those that ended in trouble: [`OperationOutcome::Failed`].
    pub failed: u64,
    /// Sum of all latencies.
    pub total: Duration,
    pub latency: [u64; LATENCY_BUCKETS],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            operations: Operation::ALL.iter().map(|_| Count::default()).collect(),
            requests: AtomicU64::new(0),
            retries: Default::default(),
            reconnects: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub fn of(&self, operation: Operation) -> OperationCount {
        let count = &self.operations[operation as usize];
        let failed = count.failed.load(Relaxed);
        OperationCount {
            operation,
            calls: count.calls.load(Relaxed),
            errors: count.refused.load(Relaxed) + failed,
            failed,
            total: Duration::from_nanos(count.nanoseconds.load(Relaxed)),
            latency: std::array::from_fn(|i| count.latency[i].load(Relaxed)),
        }
    }

    pub fn all(&self) -> Vec<OperationCount> {
        Operation::ALL.iter().map(|operation| self.of(*operation)).collect()
    }

    /// Requests sent to servers, repeated ones included.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Requests sent again.
    pub fn retries(&self) -> u64 {
        RetryCause::ALL.into_iter().map(|cause| self.retries_for(cause)).sum()
    }

    pub fn retries_for(&self, cause: RetryCause) -> u64 {
        self.retries[cause as usize].load(Relaxed)
    }

    pub(crate) fn retry(&self, cause: RetryCause) {
        self.retries[cause as usize].fetch_add(1, Relaxed);
    }

    /// Number of times that a lost server was found again.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Relaxed)
    }

    /// Bytes of files that were read through this client. The kernel reads passthrough files itself.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Relaxed)
    }

    /// Bytes of files that were written through this client.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Relaxed)
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn record(&self, operation: Operation, took: Duration, outcome: OperationOutcome) {
        let count = &self.operations[operation as usize];
        count.calls.fetch_add(1, Relaxed);
        match outcome {
            OperationOutcome::Done => {}
            OperationOutcome::Refused => drop(count.refused.fetch_add(1, Relaxed)),
            OperationOutcome::Failed => drop(count.failed.fetch_add(1, Relaxed)),
        }
        count.nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
        count.latency[bucket(took)].fetch_add(1, Relaxed);
    }
}

fn bucket(took: Duration) -> usize {
    let microseconds = took.as_micros() as u64;
    ((u64::BITS - microseconds.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the bucket of a latency is the smallest power of two of microseconds above it.
    #[test]
    fn latencies_fall_into_powers_of_two() {
        assert_eq!(bucket(Duration::from_nanos(900)), 0);
        assert_eq!(bucket(Duration::from_micros(1)), 1);
        assert_eq!(bucket(Duration::from_micros(3)), 2);
        assert_eq!(bucket(Duration::from_micros(4)), 3);
        assert_eq!(bucket(Duration::from_secs(100_000)), LATENCY_BUCKETS - 1);
    }
}
