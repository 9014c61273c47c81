//! `varve bench stream`: writes and reads large files, at several directories in turns.

use super::{ReportFlags, command_line, deliver, explain};
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::Bytes;
use clap::Args;
use varve_bench::target::Via;
use varve_bench::workloads::stream::{self, StreamConfig};

/// Write and read large files, one a client
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: mount:DIR or path:DIR; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// Bytes that each client writes and reads
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(1 << 30))]
    bytes: Bytes,
    /// Bytes of one write(2) or read(2)
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(1 << 20))]
    block: Bytes,
    /// Numbers of clients to measure with, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 2])]
    clients: Vec<usize>,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    /// Do not drop the kernel's caches before reading
    #[arg(long)]
    keep_caches: bool,
    #[command(flatten)]
    report: ReportFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let recorded = arguments.report.recorded()?;
    let config = StreamConfig {
        via: arguments.via.clone(),
        bytes: arguments.bytes.0,
        block_bytes: usize::try_from(arguments.block.0).unwrap_or(usize::MAX),
        clients: arguments.clients.clone(),
        repeat: arguments.repeat,
        drop_caches: !arguments.keep_caches,
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let report = stream::run(&config).map_err(|error| explain(&error))?;
    deliver(&report, recorded.as_ref(), &arguments.report, output)
}
