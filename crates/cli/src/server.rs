//! Parts common to `serve` and an embedded mount: the flags of a server and the messages for its failures.

use crate::identity::Rights;
use crate::metrics::{self, Endpoint};
use crate::problem::{Problem, Result};
use crate::quantity::Bytes;
use clap::Args;
use std::io;
use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use varve_admin::maintenance::MaintenanceError;
use varve_cluster::claim::LivingServer;
use varve_env::cgroup;
use varve_env::volume_dir::{LockError, VolumeDir};
use varve_meta::server::{MemoryShares, ServerConfig, ServerError, WORKERS_MAX};

/// A stop syncs and closes every shard. A store that needs longer is stuck, and the log has all acknowledged changes.
pub const STOP_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct ServerFlags {
    /// Threads that own the shards [default: one per two processors]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX as i64))]
    pub workers: Option<u16>,
    /// Directory for the workers' Unix sockets; it belongs to the store's owner [default: $XDG_RUNTIME_DIR/varve or
    /// /tmp/varve-UID; for root /run/varve, and /run/varve/UID for the store of user UID]
    #[arg(long, value_name = "DIR")]
    pub unix_dir: Option<PathBuf>,
    /// Approximate memory limit of the server, at least 128MiB; caches and memtables divide it [default: 1536MiB, or half
    /// of the control group's limit if that is less]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Serve Prometheus metrics over HTTP at this loopback address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
    pub metrics: Option<SocketAddr>,
}

impl ServerFlags {
    /// The memory limit: the given one, or the default for the control group of this process.
    pub fn memory(&self) -> Bytes {
        self.memory.unwrap_or_else(|| default_memory(cgroup::memory_limit_bytes()))
    }

    /// The memory limit, if it was given.
    pub fn given_memory(&self) -> Option<Bytes> {
        self.memory
    }

    /// Starts the metrics, if requested. Nothing that counts may have been started before.
    pub fn serve_metrics(&self) -> Result<Option<Arc<Endpoint>>> {
        self.metrics.map(metrics::serve).transpose()
    }

    /// The server configuration from the flags.
    pub fn config(&self, volume: VolumeDir, rights: &Rights) -> Result<ServerConfig> {
        let mut config = ServerConfig::new(volume);
        if let Some(workers) = self.workers {
            config.workers = workers.into();
        }
        config.workers = config.workers.min(WORKERS_MAX);
        if let Some(directory) = &self.unix_dir {
            let failed =
                |error: std::io::Error| Problem::usage(format!("--unix-dir {}", directory.display())).caused_by(&error);
            config.unix_directory = Some(std::path::absolute(directory).map_err(failed)?);
        } else if let Some(directory) = &rights.socket_directory {
            config.unix_directory = Some(directory.clone());
        }
        config.memory_bytes = self.memory().0;
        config.measure = self.metrics.is_some();
        Ok(config)
    }
}

/// The rest of a control group is for what the limit does not count, and for other processes in the group.
fn default_memory(group_bytes: Option<u64>) -> Bytes {
    let half = group_bytes.map_or(u64::MAX, |bytes| bytes / 2);
    Bytes(MemoryShares::BYTES_DEFAULT.min(half).max(MemoryShares::BYTES_MIN))
}

/// Checks the address during parsing, so that an error appears before the store is accessed.
fn loopback(text: &str) -> std::result::Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error: AddrParseError| error.to_string())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("metrics are not protected, so they are served on a loopback address only; use 127.0.0.1:PORT, and a proxy \
                      with a password if others shall read them"
            .to_owned()),
    }
}

/// Describes a server's failure, and the remedy.
pub fn explain(what: impl Into<String>, error: &ServerError) -> Problem {
    let problem = Problem::new(what).caused_by(error);
    match error {
        ServerError::Locked(lock) => problem.next(to_lock(lock)),
        ServerError::Io { source, .. } => match unwritable(source) {
            Some(next) => problem.next(next),
            None => problem,
        },
        ServerError::NotYours { .. } => problem.next("Run it as that user, or as root."),
        _ => problem,
    }
}

/// The remedy for a lock that could not be taken.
pub fn to_lock(error: &LockError) -> &'static str {
    match error {
        LockError::Held { .. } => "Stop that process first; `varve status STORE` shows it.",
        LockError::Read { .. } => {
            "Wait until that has ended, then try again; `fuser` of the locked file shows the process if it is on this \
             host."
        }
        LockError::Io { source, .. } => unwritable(source).unwrap_or("Check that the store is complete and mounted."),
    }
}

/// The remedy for servers that cannot be kept away from the volume.
pub fn to_maintenance(error: &MaintenanceError) -> Option<String> {
    let evict = |server: &LivingServer| format!("`varve cluster evict STORE {}`", server.server);
    let evictions: Vec<_> = error.servers().iter().map(evict).collect();
    match (error, evictions.is_empty()) {
        (error, _) if error.is_of_unreachable_etcd() => Some(
            "If that etcd is gone for good, and no server of the volume runs, remove STORE/cluster/registry.toml, and run this \
             again."
                .to_owned(),
        ),
        (MaintenanceError::Lost, _) => Some("Run it again; the volume is as after a crash of this command.".to_owned()),
        (_, true) => None,
        (_, false) => Some(format!(
            "Stop these servers first (SIGTERM to each process); {} removes one that cannot be reached.",
            evictions.join(", ")
        )),
    }
}

/// The remedy for a store that accepts no writes, if that is the cause.
fn unwritable(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Some(
            "The store is on a file system that takes no writes: mount that read-write. `varve fsck` and `varve dump` \
             read a store as it is.",
        ),
        io::ErrorKind::PermissionDenied => Some(
            "This user may not use the store: run this as the volume's owner or as root, and check that the owner may \
             read and write the store.",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(
            "The store has no space left: remove other files on its file system, or enlarge it. `varve fsck` and \
             `varve dump` read a store as it is.",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::default_memory;
    use varve_meta::server::MemoryShares;

    /// Promise: the default memory limit fits into the control group, down to the least that a server works with.
    #[test]
    fn default_memory_fits_the_control_group() {
        assert_eq!(default_memory(None).0, MemoryShares::BYTES_DEFAULT);
        assert_eq!(default_memory(Some(1 << 40)).0, MemoryShares::BYTES_DEFAULT);
        assert_eq!(default_memory(Some(1 << 30)).0, 512 << 20);
        assert_eq!(default_memory(Some(64 << 20)).0, MemoryShares::BYTES_MIN);
    }
}
