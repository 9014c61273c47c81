//! `varve serve STORE`: the metadata service, in the foreground, until SIGTERM or SIGINT.

use crate::identity::{self, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use crate::server::{self, ServerFlags};
use crate::signals;
use clap::Args;
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use varve_cluster::address::RegistryAddress;
use varve_cluster::map::LEASE_MAX;
use varve_env::service_manager::{self, ServiceState};
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::VolumeDir;
use varve_meta::server::{JoinSettings, LEASE_DEFAULT, Server, ServerError};

/// Serve a volume, in the foreground, until SIGTERM or SIGINT
///
/// It then syncs and closes its shards, and exits with 0. A store that refuses new tables does not delay that: the rows
/// stay in the logs, synced, and the next server reads them there. It exits with 1 if something could not be synced,
/// after 30 s if the store hangs. Acknowledged changes are then in the logs as after kill -9.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store of the volume: a directory, or a file:// URL of one
    store: StoreUrl,
    /// Listen by TCP too: worker 0 here, worker 1 on the next port and so on (port 0: any). Serves clients on other
    /// hosts, and clients on this host with --tcp. Traffic is encrypted, and both sides prove a key [default: none,
    /// Unix sockets only]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<Listen>,
    /// Serve the volume together with other servers that were started with --join: they divide the shards, and take over
    /// those of a server that dies. Servers with and without --join exclude each other [default: alone]
    #[arg(long)]
    join: bool,
    /// Where the servers of the volume find each other: in its store, or etcd://HOST:PORT[,HOST:PORT…], with TLS
    /// ?ca=FILE[&cert=FILE&key=FILE]. The first server records it in the volume [default: the recorded one, or store]
    #[arg(long, value_name = "store|URL", requires = "join")]
    registry: Option<RegistryAddress>,
    /// How long a server may answer after it has renewed its place among the others; twice that time after its death
    /// others have its shards. Counts for the first server; later ones take it over
    #[arg(long, value_name = "TIME", requires = "join", value_parser = lease, default_value_t = Span(LEASE_DEFAULT))]
    lease: Span,
    /// Sleep between requests without polling for the next one; for `varve bench scale`
    #[arg(long, hide = true)]
    no_spin: bool,
    /// Log file, made with mode 0600; SIGHUP opens it anew [default: stderr]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    #[command(flatten)]
    server: ServerFlags,
}

/// A lease: renewals take milliseconds, and nobody wants to wait longer for a takeover.
fn lease(text: &str) -> std::result::Result<Span, String> {
    let Span(asked) = text.parse()?;
    match (LEASE_MIN..=LEASE_MAX).contains(&asked) {
        true => Ok(Span(asked)),
        false => Err(format!("a lease is between {} and {}", Span(LEASE_MIN), Span(LEASE_MAX))),
    }
}

const LEASE_MIN: Duration = Duration::from_millis(500);

/// An address to listen at, or none.
#[derive(Clone, Copy, Debug)]
struct Listen(Option<SocketAddr>);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Listen, String> {
        if text == "none" {
            return Ok(Listen(None));
        }
        let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; write host:port, or none"))?;
        found.next().map(|address| Listen(Some(address))).ok_or_else(|| format!("{text} has no address"))
    }
}

#[derive(Serialize)]
struct ServeReady {
    store: PathBuf,
    pid: u32,
    workers: Vec<WorkerEndpoints>,
}

#[derive(Serialize)]
struct WorkerEndpoints {
    unix: Option<String>,
    tcp: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if arguments.no_spin {
        varve_env::spin::turn_off();
    }
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let cannot = || Problem::new(format!("cannot serve {}", store.display()));
    let rights = identity::take(&store, Work::Serve, cannot)?;
    let endpoint = arguments.server.serve_metrics()?;
    let mut config = arguments.server.config(VolumeDir::new(&store), &rights)?;
    config.listen = arguments.listen.and_then(|listen| listen.0);
    config.join =
        arguments.join.then(|| JoinSettings { registry: arguments.registry.clone(), lease: arguments.lease.0 });
    let failed = |error: ServerError| server::explain(format!("cannot serve {}", store.display()), &error);
    let signals = signals::listen()?;
    let running = Arc::new(Server::start(config).map_err(failed)?);
    if let Some(endpoint) = endpoint {
        let asked = Arc::clone(&running);
        endpoint.started(move || asked.readiness());
    }
    let stopped = Arc::clone(&running);
    signals.on_stop(move || {
        service_manager::notify(&ServiceState::Stopping);
        tracing::info!("the server is stopping");
        if let Err(error) = stopped.stop(server::STOP_DEADLINE) {
            tracing::error!("the server did not stop well: {error}");
        }
    })?;
    let ready = serving(store.clone(), &running);
    output.announce("serve", &ready, text)?;
    tracing::info!("{}", started(&ready, &running, arguments));
    service_manager::notify(&ServiceState::Ready(&format!("serving {}", store.display())));
    running.wait().map_err(|error| {
        // Close the rest in order. The reason for the server's failure matters more than an error of this stop.
        let _ = running.stop(server::STOP_DEADLINE);
        server::explain(format!("the server of {} has failed", store.display()), &error)
    })?;
    tracing::info!("the server of {} has stopped", store.display());
    Ok(Exit::Done)
}

/// The line of the log about a start.
fn started(ready: &ServeReady, server: &Server, arguments: &Arguments) -> String {
    let (settings, places) = (server.settings(), ready.workers.iter());
    let places: Vec<&str> =
        places.flat_map(|worker| [&worker.unix, &worker.tcp]).flatten().map(String::as_str).collect();
    format!(
        "the server of {} has started: varve {}, process {}, volume {} {}, {} shards, {} workers, memory {}, {} at {}",
        ready.store.display(),
        env!("CARGO_PKG_VERSION"),
        ready.pid,
        settings.name,
        settings.id,
        settings.shards.get(),
        ready.workers.len(),
        arguments.server.memory(),
        if arguments.join { "joined others" } else { "alone" },
        places.join(", ")
    )
}

fn serving(store: PathBuf, server: &Server) -> ServeReady {
    let addresses = server.addresses().into_iter();
    let workers = addresses.map(|address| WorkerEndpoints { unix: address.unix, tcp: address.tcp }).collect();
    ServeReady { store, pid: std::process::id(), workers }
}

fn text(serving: &ServeReady) -> String {
    let mut lines = format!("serving {}, process {}\n", serving.store.display(), serving.pid);
    for (index, worker) in serving.workers.iter().enumerate() {
        let places = [&worker.unix, &worker.tcp].into_iter().flatten().cloned().collect::<Vec<_>>();
        lines += &format!("  worker {index}: {}\n", places.join(", "));
    }
    lines
}
