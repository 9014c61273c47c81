//! `varve record serve DIRECTORY`: the detector service, in the foreground, until SIGTERM or SIGINT.

use super::protection::Listening;
use super::validators;
use crate::escaping;
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
use varve_detector::service::{Config, Service, ServiceError, Unfinished};
use varve_detector::writer::Settings;

/// Take frames of detectors over TCP and write them to HDF5 files, until SIGTERM or SIGINT
#[derive(Debug, Args)]
pub struct Arguments {
    /// Files are written beneath this directory alone
    directory: PathBuf,
    /// Where detectors bring their frames (port 0: any)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// Where runs are started, stopped and watched
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7421", value_parser = validators::http_listen)]
    http: SocketAddr,
    #[command(flatten)]
    listening: Listening,
    /// Name of this host that requests over HTTP may use, beside localhost and the address of --http; may be given often
    #[arg(long, value_name = "NAME", value_parser = validators::host)]
    allow_host: Vec<String>,
    /// Runs may ask for filter plug-ins whose libraries lie in this directory; without it for none, as a library runs code in
    /// this service
    #[arg(long, value_name = "DIRECTORY")]
    plugins: Option<PathBuf>,
    /// Frames of one run that wait in memory take at most so many bytes, from 1MiB on
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = validators::queue)]
    queue: Bytes,
    /// Threads of each run that compress and write [default: one a processor]
    #[arg(long, value_parser = validators::threads)]
    threads: Option<usize>,
    /// What the store takes best in one write: its stripe
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = validators::stripe)]
    stripe: Bytes,
    /// How long frames may wait until they are synced and readers find them
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = Span::of_some_length)]
    commit_interval: Span,
    /// Runs at once
    #[arg(long, default_value_t = 8, value_parser = validators::some)]
    runs_max: usize,
    /// Connections at once
    #[arg(long, default_value_t = 256, value_parser = validators::some)]
    connections_max: usize,
    /// A connection on which nothing comes for so long is given up
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = Span::of_some_length)]
    idle: Span,
    /// Take the series of the DECTRIS detector that sends stream2 there, a run each; several times for several detectors
    #[arg(long, value_name = "tcp://HOST:PORT", value_parser = validators::stream2)]
    stream2: Vec<String>,
}

#[derive(Serialize)]
struct RecordServeReady {
    directory: PathBuf,
    pid: u32,
    listen: SocketAddr,
    http: SocketAddr,
    /// Both take TLS alone.
    tls: bool,
    /// Where programs of this user find the token that was made; `None`: it was given.
    token_file: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let listeners = [("--listen", arguments.listen), ("--http", arguments.http)];
    let (token, mut protection) = arguments.listening.protect(&listeners)?;
    protection.hosts.clone_from(&arguments.allow_host);
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
        settings,
        runs_max: arguments.runs_max,
        connections_max: arguments.connections_max,
        idle: arguments.idle.0,
    };
    let failed = |error: ServiceError| Problem::new("the detector service cannot start").caused_by(&error);
    // Before anything is taken, so that a signal finds someone who listens.
    let (stop, stopped) = mpsc::channel();
    signals::listen()?.on_stop(move || {
        // Who does not listen any more is stopping already.
        let _ = stop.send(());
    })?;
    let mut service = Service::start(config).map_err(failed)?;
    for address in &arguments.stream2 {
        service
            .take_stream2(address)
            .map_err(|error| Problem::new(format!("cannot take the stream at {address}")).caused_by(&error))?;
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
    // An error means that nobody can ask any more: that is a reason to stop too.
    let _ = stopped.recv();
    for left in service.stop() {
        // Who does not read any more is told nothing; the journal and the record are there all the same.
        let _ = write!(std::io::stderr(), "{}", escaping::lines(&unfinished(&left, &arguments.directory)));
    }
    Ok(Exit::Done)
}

/// What is said of a run that goes on when the service is started again.
fn unfinished(left: &Unfinished, directory: &Path) -> String {
    let Unfinished { run, file, durable, trouble } = left;
    let file = file.display();
    let holds = match trouble {
        None => format!("{file} shows its {durable} frames so far"),
        Some(trouble) => format!("not all that was taken could be published: {trouble}"),
    };
    format!(
        "varve: run `{run}` is not finished: {holds}\n  To go on with it, start the service again: varve record serve {}\n  \
         To leave it at that: varve record recover {file}\n",
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
        rows.push(("token", format!("{} (programs of this user find it)", file.display())));
    }
    rows.push(("process", serving.pid.to_string()));
    columns(&rows)
}
