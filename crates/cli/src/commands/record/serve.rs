//! `varve record serve DIRECTORY`: the detector service, in the foreground, until SIGTERM or SIGINT.

use super::protection::Listening;
use super::validators::{self, PvaPlace};
use crate::escaping;
use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::{Bytes, Span};
use crate::signals;
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use varve_detector_service::{Config, MetadataSource, PvaServer, PvaTarget, Service, ServiceError, Unfinished};
use varve_detector_writer::Settings;
use varve_env::service_manager::{self, ServiceState};

/// Receive frames of detectors over TCP and write them to HDF5 files, until SIGTERM or SIGINT
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory of the files; nothing is written outside it
    directory: PathBuf,
    /// Address to receive frames at (port 0: any)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// Address of the HTTP service that starts, stops and shows runs
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7421", value_parser = validators::http_listen)]
    http: SocketAddr,
    #[command(flatten)]
    listening: Listening,
    /// Name of this host that HTTP requests may use, beside localhost and the address of --http; may be repeated
    #[arg(long, value_name = "NAME", value_parser = validators::host)]
    allow_host: Vec<String>,
    /// Directory of the filter plug-ins that runs may use; without it none is allowed, because a plug-in's library runs
    /// code in this service
    #[arg(long, value_name = "DIRECTORY")]
    plugins: Option<PathBuf>,
    /// Maximum bytes of frames of one run waiting in memory, at least 1MiB
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = validators::queue)]
    queue: Bytes,
    /// Threads of each run that compress and write [default: one a processor]
    #[arg(long, value_parser = validators::threads)]
    threads: Option<usize>,
    /// Write size that suits the store best: its stripe
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = validators::stripe)]
    stripe: Bytes,
    /// How long frames may wait until they are synced and visible to readers
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = Span::of_some_length)]
    commit_interval: Span,
    /// Maximum number of runs at once
    #[arg(long, default_value_t = 8, value_parser = validators::some)]
    runs_max: usize,
    /// Maximum number of connections at once
    #[arg(long, default_value_t = 256, value_parser = validators::some)]
    connections_max: usize,
    /// Close a connection that has been idle for this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = Span::of_some_length)]
    idle: Span,
    /// Receive the series of the DECTRIS detector that sends stream2 there, one run each; may be repeated
    #[arg(long, value_name = "tcp://HOST:PORT", value_parser = validators::stream2)]
    stream2: Vec<String>,
    /// Log file, made with mode 0600; SIGHUP opens it anew [default: stderr]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Receive frames of this EPICS NTNDArray, one run per acquisition; without an address the server is searched, by
    /// EPICS_PVA_ADDR_LIST and by broadcast; may be repeated
    #[arg(long, value_name = "PV[=HOST[:PORT]]", value_parser = validators::pva)]
    pva: Vec<PvaPlace>,
    /// Finish the run of a PV that has sent no frame for this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = Span::of_some_length)]
    pva_idle: Span,
    /// Metadata for every run that lacks them, in JSON or TOML as for `record start`; read again when a run starts
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
}

#[derive(Serialize)]
struct RecordServeReady {
    directory: PathBuf,
    pid: u32,
    listen: SocketAddr,
    http: SocketAddr,
    /// Whether both listeners accept TLS only.
    tls: bool,
    /// The file where programs of this user find the token that was made; `None`: the token was given.
    token_file: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let listeners = [("--listen", arguments.listen), ("--http", arguments.http)];
    let (token, mut protection) = arguments.listening.protect(&listeners)?;
    protection.hosts.clone_from(&arguments.allow_host);
    // Root has the rights of the user whose directory it is, who could put links in the place of runs. TLS and token files
    // were read before that.
    let cannot = || Problem::new("cannot start the detector service");
    identity::take(&arguments.directory, Work::Detector, cannot)?;
    // A mistake in the file appears at once, not at the first run.
    arguments.metadata.as_deref().map(super::metadata).transpose()?;
    let tls = protection.tls.is_some();
    let defaults = Settings::default();
    let settings = Settings {
        threads: arguments.threads.unwrap_or(defaults.threads),
        queue_bytes: arguments.queue.0 as usize,
        stripe_bytes: arguments.stripe.0,
        extent_bytes: defaults.extent_bytes.max(arguments.stripe.0),
        commit_interval: arguments.commit_interval.0,
        ..defaults
    };
    let config = Config {
        listen: arguments.listen,
        http: Some(arguments.http),
        root: arguments.directory.clone(),
        token: Some(token),
        protection,
        plugins: arguments.plugins.clone(),
        metadata: arguments.metadata.clone().map(|path| {
            MetadataSource::new(move || varve_detector_tools::metadata::read(&path).map_err(|error| error.to_string()))
        }),
        settings,
        runs_max: arguments.runs_max,
        connections_max: arguments.connections_max,
        idle: arguments.idle.0,
    };
    let failed = |error: ServiceError| Problem::new("cannot start the detector service").caused_by(&error);
    // Set up before the service accepts anything, so that no signal is missed.
    let (stop, stopped) = mpsc::channel();
    signals::listen()?.on_stop(move || {
        // If nobody listens any more, the process is stopping already.
        let _ = stop.send(());
    })?;
    let mut service = Service::start(config).map_err(failed)?;
    for address in &arguments.stream2 {
        service
            .take_stream2(address)
            .map_err(|error| Problem::new(format!("cannot receive the stream at {address}")).caused_by(&error))?;
    }
    for PvaPlace { pv, server } in &arguments.pva {
        let server = server.clone().map_or_else(searched, PvaServer::At);
        let target = PvaTarget { pv: pv.clone(), server, idle: arguments.pva_idle.0 };
        service
            .take_pva(target)
            .map_err(|error| Problem::new(format!("cannot receive the frames of {pv}")).caused_by(&error))?;
    }
    let serving = RecordServeReady {
        directory: arguments.directory.clone(),
        pid: std::process::id(),
        listen: service.address(),
        http: service.http().expect("it was asked for"),
        tls,
        token_file: service.published().next().map(Path::to_owned),
    };
    output.announce("record serve", &serving, text)?;
    tracing::info!(
        "the detector service of {} has started: varve {}, process {}, frames at {}, control at {}, up to {} runs and {} \
         connections, a queue of {}",
        serving.directory.display(),
        env!("CARGO_PKG_VERSION"),
        serving.pid,
        serving.listen,
        serving.http,
        arguments.runs_max,
        arguments.connections_max,
        arguments.queue
    );
    service_manager::notify(&ServiceState::Ready(&format!("recording beneath {}", serving.directory.display())));
    // An error means that no signal can arrive any more, which is a reason to stop too.
    let _ = stopped.recv();
    service_manager::notify(&ServiceState::Stopping);
    tracing::info!("the detector service of {} is stopping", serving.directory.display());
    for left in service.stop() {
        // If stderr is closed, nobody reads this; the journal and the record exist all the same.
        let _ = write!(std::io::stderr(), "{}", escaping::lines(&unfinished(&left, &arguments.directory)));
    }
    tracing::info!("the detector service of {} has stopped", serving.directory.display());
    Ok(Exit::Done)
}

/// Where servers of PVs are searched: as other clients of EPICS do, by the same environment variables.
fn searched() -> PvaServer {
    let words = |name: &str| std::env::var(name).unwrap_or_default();
    let port = words("EPICS_PVA_BROADCAST_PORT").parse().unwrap_or(PvaServer::SEARCH_PORT);
    let with_port = |word: &str| if word.contains(':') { word.to_owned() } else { format!("{word}:{port}") };
    let mut addresses: Vec<String> = words("EPICS_PVA_ADDR_LIST").split_whitespace().map(with_port).collect();
    if !words("EPICS_PVA_AUTO_ADDR_LIST").eq_ignore_ascii_case("no") {
        addresses.extend(["255.255.255.255", "127.0.0.1"].map(with_port));
    }
    PvaServer::Searched(addresses)
}

/// The message about a run that continues when the service is started again.
fn unfinished(left: &Unfinished, directory: &Path) -> String {
    let Unfinished { run, file, durable, trouble } = left;
    let file = file.display();
    let holds = match trouble {
        None => format!("{file} contains its {durable} frames so far"),
        Some(trouble) => format!("some received frames could not be published: {trouble}"),
    };
    format!(
        "varve: run `{run}` is not finished: {holds}\n  \
         To continue it, start the service again: varve record serve {}\n  \
         To finish the file as it is: varve record recover {file}\n",
        directory.display()
    )
}

fn text(serving: &RecordServeReady) -> String {
    let scheme = if serving.tls { "https" } else { "http" };
    let mut rows = vec![
        ("files beneath", serving.directory.display().to_string()),
        ("frames", serving.listen.to_string()),
        ("control", format!("{scheme}://{}", serving.http)),
    ];
    if let Some(file) = &serving.token_file {
        rows.push(("token", format!("{} (found by programs of this user)", file.display())));
    }
    rows.push(("process", serving.pid.to_string()));
    columns(&rows)
}
