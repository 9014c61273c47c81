//! What `serve` and an embedded mount share: the flags of a server and how its failures are told.

use crate::metrics;
use crate::problem::{Problem, Result};
use crate::quantity::Bytes;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use varve_meta::server::{Memory, ServerConfig, ServerError, WORKERS_MAX};
use varve_world::volume_dir::VolumeDir;

/// A stop syncs and closes every shard; a store that needs longer is stuck, and the log has what was acknowledged.
pub const STOP_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct ServerFlags {
    /// Threads that own the shards [default: one a processor]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX as i64))]
    pub workers: Option<u16>,
    /// Directory for the workers' Unix sockets [default: /run/varve, or $XDG_RUNTIME_DIR/varve]
    #[arg(long, value_name = "DIR")]
    pub unix_dir: Option<PathBuf>,
    /// Memory that the server may take, about: caches and memtables are divided by it
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(Memory::BYTES_DEFAULT))]
    pub memory: Bytes,
    /// Serve Prometheus metrics over HTTP at this loopback address
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
}

impl ServerFlags {
    /// The configuration that the flags describe; starts the metrics, if they are asked for.
    pub fn config(&self, volume: VolumeDir) -> Result<ServerConfig> {
        if let Some(address) = self.metrics {
            metrics::serve(address)?;
        }
        let mut config = ServerConfig::new(volume);
        if let Some(workers) = self.workers {
            config.workers = workers.into();
        }
        config.workers = config.workers.min(WORKERS_MAX);
        if let Some(directory) = &self.unix_dir {
            let failed =
                |error: std::io::Error| Problem::usage(format!("--unix-dir {}", directory.display())).caused_by(&error);
            config.unix_directory = Some(std::path::absolute(directory).map_err(failed)?);
        }
        config.memory_bytes = self.memory.0;
        config.measure = self.metrics.is_some();
        Ok(config)
    }
}

/// A server's failure, and what to do about it.
pub fn explain(what: impl Into<String>, error: &ServerError) -> Problem {
    let problem = Problem::new(what).caused_by(error);
    match error {
        ServerError::Locked(_) => problem.next("Stop that process first; `varve status STORE` shows it."),
        ServerError::NotYours { .. } => problem.next("Run it as that user, or as root."),
        _ => problem,
    }
}
