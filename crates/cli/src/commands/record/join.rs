//! `varve record join`: a process that receives frames for its writer share of a run, and writes them into the run's
//! one file.

use super::protection::{self, Listening};
use super::validators;
use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::{Bytes, Span};
use crate::signals;
use clap::Args;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use varve_detector_service::{Config, EndKind, Joining, RunEnd, Service, ServiceError, WriterShareOptions};
use varve_detector_stream::FinishedHead;
use varve_detector_writer::Settings;

/// Receive frames for a writer share of a run, on this host or another, and write them into the run's one file
#[derive(Debug, Args)]
pub struct Arguments {
    /// Frame address of the service that owns the run (its --listen)
    #[arg(value_name = "HOST:PORT")]
    service: String,
    /// Name of the run
    #[arg(value_parser = validators::run_name)]
    run: String,
    /// The service's directory, as mounted on this host
    #[arg(long)]
    directory: PathBuf,
    /// Source number of this writer share in the run. Its own clients number theirs from 0 again
    #[arg(long, default_value_t = 0)]
    source: u16,
    /// Clients that send the frames of this writer share
    #[arg(long, default_value_t = 1)]
    sources: u16,
    /// Address to receive them at (port 0: any)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    #[command(flatten)]
    listening: Listening,
    #[command(flatten)]
    trust: protection::Trust,
    /// Maximum bytes of frames waiting in memory
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = validators::queue)]
    queue: Bytes,
    /// Threads that compress and write [default: one a processor]
    #[arg(long, value_parser = validators::threads)]
    threads: Option<usize>,
    /// How long frames may wait until they are synced and reported
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = Span::of_some_length)]
    report_interval: Span,
    /// How long to retry if the service is unreachable
    #[arg(long, value_name = "TIME", default_value = "60s")]
    retry: Span,
}

#[derive(Serialize)]
struct JoinReady {
    run: String,
    pid: u32,
    listen: SocketAddr,
}

#[derive(Serialize)]
struct JoinOutput {
    run: String,
    why: String,
    #[serde(flatten)]
    finished: FinishedHead,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let (token, protection) = arguments.listening.protect(&[("--listen", arguments.listen)])?;
    let defaults = Settings::default();
    let settings = Settings {
        threads: arguments.threads.unwrap_or(defaults.threads),
        queue_bytes: arguments.queue.0 as usize,
        commit_interval: arguments.report_interval.0,
        ..defaults
    };
    let config = Config {
        listen: arguments.listen,
        http: None,
        root: arguments.directory.clone(),
        token: Some(token.clone()),
        protection,
        plugins: None,
        metadata: None,
        settings,
        runs_max: 0,
        connections_max: 256,
        idle: Duration::from_secs(30),
    };
    let coordinator = WriterShareOptions {
        address: arguments.service.clone(),
        run: arguments.run.clone(),
        // A token made here is for this writer share only; the service's token is looked up.
        token: if arguments.listening.has_token_file() { token } else { String::new() },
        tls: arguments.trust.tls()?,
        source: arguments.source,
        retry: arguments.retry.0,
    };
    // As in `record serve`.
    identity::take(&arguments.directory, Work::Detector, || Problem::new("cannot take a share of the run"))?;
    let (stop, stopped) = mpsc::channel();
    signals::listen()?.on_stop(move || {
        // If nobody listens any more, the process is stopping already.
        let _ = stop.send(());
    })?;
    let failed = |error: ServiceError| Problem::new("cannot take a share of the run").caused_by(&error);
    let service = Service::join(config, Joining { coordinator, sources: arguments.sources }).map_err(failed)?;
    let serving = JoinReady { run: arguments.run.clone(), pid: std::process::id(), listen: service.address() };
    output.announce("record join", &serving, |serving| {
        columns(&[("run", serving.run.clone()), ("frames", serving.listen.to_string())])
    })?;
    let ended = loop {
        if stopped.try_recv().is_ok() {
            break None;
        }
        let run = service.shared().run(&arguments.run).expect("the one that was joined");
        if let Some(ended) = run.wait_ended(Duration::from_millis(200)) {
            break Some(ended);
        }
    };
    service.stop();
    match ended {
        Some(ended) => left(arguments, ended, output),
        None => Ok(Exit::Done),
    }
}

fn left(arguments: &Arguments, ended: RunEnd, output: &Output) -> Result<Exit> {
    if ended.how == EndKind::Failed {
        return Err(Problem::new(format!("run `{}` failed", arguments.run)).because(ended.why));
    }
    let left = JoinOutput { run: arguments.run.clone(), why: ended.why, finished: ended.finished };
    output.result("record join", &left, |left| {
        columns(&[
            ("frames received", left.finished.received.to_string()),
            ("dropped", left.finished.dropped.to_string()),
        ])
    })?;
    Ok(if left.finished.dropped > 0 { Exit::Degraded } else { Exit::Done })
}
