//! `varve bench mdtest`: creates, stats and removes files, at several targets in turns.

mod letters;

use super::drive::DriveFlags;
use super::{ReportFlags, command_line, deliver, explain, null, take_rights};
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::{Bytes, Span};
use clap::Args;
use std::path::PathBuf;
use varve_bench::ceilings::CeilingsConfig;
use varve_bench::target::Via;
use varve_bench::workloads::mdtest::{self, MdtestConfig};

/// Create, stat and delete files in one directory; or mdtest's tree, with its options
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: library:STORE, mount:DIR or path:DIR; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required_unless_present = "dir")]
    via: Vec<Via>,
    /// Files of all clients together
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    files: u64,
    /// Numbers of clients to measure with, one after the other [default: 1,2,8; with a tree: 1]
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    clients: Vec<usize>,
    /// How often to measure each target [default: 3; with a tree: 1]
    #[arg(long, short = 'i', visible_alias = "iterations", value_name = "COUNT")]
    repeat: Option<u32>,
    /// A directory for each client instead of one for all
    #[arg(long, short = 'u')]
    unique_dirs: bool,
    /// Make and remove directories instead of files
    #[arg(long, short = 'D')]
    directories: bool,
    /// Write this much into each file, and read it back
    #[arg(long, short = 'w', value_name = "SIZE", default_value_t = Bytes(0))]
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
    letters: letters::Letters,
    #[command(flatten)]
    drive: DriveFlags,
    #[command(flatten)]
    report: ReportFlags,
}

/// Numbers of clients without a tree.
const CLIENTS: [usize; 3] = [1, 2, 8];
const REPEAT: u32 = 3;

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if arguments.letters.select_tree() {
        return letters::run(arguments, output);
    }
    arguments.letters.check_unused()?;
    let recorded = arguments.report.recorded()?;
    let via = letters::targets(arguments);
    take_rights(&via, &arguments.report)?;
    let ceilings = arguments.ceilings.then(|| ceilings(arguments, &via));
    let config = MdtestConfig {
        via,
        files: arguments.files,
        clients: if arguments.clients.is_empty() { CLIENTS.to_vec() } else { arguments.clients.clone() },
        repeat: arguments.repeat.unwrap_or(REPEAT),
        unique_dirs: arguments.unique_dirs,
        directories: arguments.directories,
        write_bytes: usize::try_from(arguments.write.0).unwrap_or(usize::MAX),
        prefill: arguments.prefill,
        warm_up: !arguments.no_warm_up,
        seed: arguments.seed,
        ceilings,
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let report = mdtest::run(&config).map_err(|error| explain(&error))?;
    deliver(&report, recorded.as_ref(), &arguments.report, output)
}

fn ceilings(arguments: &Arguments, via: &[Via]) -> CeilingsConfig {
    let mut ceilings = CeilingsConfig { store: arguments.store.clone(), ..CeilingsConfig::default() };
    ceilings.null_fuse = Some(Box::new(null::Null::new(arguments.null_timeout.map(|span| span.0), via)));
    if let Some(workers) = arguments.workers {
        ceilings.workers = workers;
    }
    ceilings
}
