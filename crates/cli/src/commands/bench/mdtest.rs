//! `varve bench mdtest`: creates, stats and removes files, at several targets in turns.

use super::{ReportFlags, command_line, deliver, explain, null, take_rights};
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::{Bytes, Span};
use clap::Args;
use std::path::PathBuf;
use varve_bench::ceilings::CeilingsConfig;
use varve_bench::target::Via;
use varve_bench::workloads::mdtest::{self, MdtestConfig};

/// Create, stat and delete files in one directory, as mdtest does
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: library:STORE, mount:DIR or path:DIR; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// Files of all clients together
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    files: u64,
    /// Numbers of clients to measure with, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 2, 8])]
    clients: Vec<usize>,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    /// A directory for each client instead of one for all
    #[arg(long)]
    unique_dirs: bool,
    /// Make and remove directories instead of files
    #[arg(long)]
    directories: bool,
    /// Write this much into each file, and read it back
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(0))]
    write: Bytes,
    /// Files that are in the directory before the measurement; an empty directory is measured in the same turns
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    prefill: u64,
    /// Skip the warm-up turn
    #[arg(long)]
    no_warm_up: bool,
    /// Seed of the random orders
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Measure the ceilings in the same turns: the bare transport, a FUSE file system that does nothing, the store
    #[arg(long)]
    ceilings: bool,
    /// With --ceilings: threads of the bare transport's server [default: one a processor]
    #[arg(long, value_name = "COUNT", requires = "ceilings")]
    workers: Option<usize>,
    /// With --ceilings: cache timeout of the null file system [default: that of the first mount]
    #[arg(long, value_name = "DURATION", requires = "ceilings")]
    null_timeout: Option<Span>,
    /// With --ceilings: the directory for the store's own rates [default: the first library's store]
    #[arg(long, value_name = "DIR", requires = "ceilings")]
    store: Option<PathBuf>,
    #[command(flatten)]
    report: ReportFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let recorded = arguments.report.recorded()?;
    take_rights(&arguments.via, &arguments.report)?;
    let config = MdtestConfig {
        via: arguments.via.clone(),
        files: arguments.files,
        clients: arguments.clients.clone(),
        repeat: arguments.repeat,
        unique_dirs: arguments.unique_dirs,
        directories: arguments.directories,
        write_bytes: usize::try_from(arguments.write.0).unwrap_or(usize::MAX),
        prefill: arguments.prefill,
        warm_up: !arguments.no_warm_up,
        seed: arguments.seed,
        ceilings: arguments.ceilings.then(|| ceilings(arguments)),
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let report = mdtest::run(&config).map_err(|error| explain(&error))?;
    deliver(&report, recorded.as_ref(), &arguments.report, output)
}

fn ceilings(arguments: &Arguments) -> CeilingsConfig {
    let mut ceilings = CeilingsConfig { store: arguments.store.clone(), ..CeilingsConfig::default() };
    ceilings.null_fuse = Some(Box::new(null::Null::new(arguments.null_timeout.map(|span| span.0), &arguments.via)));
    if let Some(workers) = arguments.workers {
        ceilings.workers = workers;
    }
    ceilings
}
