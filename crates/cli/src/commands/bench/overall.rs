//! `varve bench overall` and `varve bench saturate`: throughput against the number of clients.

use super::drive::RankFlags;
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::Bytes;
use clap::{Args, ValueEnum};
use varve_bench::target::Via;
use varve_bench::workloads::overall::{self, CLIENTS, OverallConfig, REPEAT, SaturationConfig, SweepMetric};

/// Write throughput with and without the time of metadata calls, against the number of clients
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: mount:DIR or path:DIR, an empty directory each; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// Numbers of clients, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = CLIENTS)]
    clients: Vec<usize>,
    /// Measurements; of more than 10, the 5 highest and the 5 lowest are discarded
    #[arg(long, value_name = "COUNT", default_value_t = REPEAT)]
    repeat: u32,
    /// Bytes that each client writes
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(16 << 20))]
    bytes: Bytes,
    /// Bytes of one write(2)
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(1 << 20))]
    transfer: Bytes,
    /// All clients write parts of one file instead of a file each
    #[arg(long)]
    shared_file: bool,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    arguments.ranks.run(&arguments.via, output, |campaign| {
        let config = OverallConfig {
            campaign,
            clients: arguments.clients.clone(),
            repeat: arguments.repeat,
            bytes: arguments.bytes.0,
            transfer_bytes: arguments.transfer.0,
            shared_file: arguments.shared_file,
        };
        overall::run(&config)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sweep {
    /// MiB a second of a file a client, until the store has them
    Write,
    /// Creates a second in one directory
    Create,
}

/// Double the number of clients until the throughput no longer rises
#[derive(Debug, Args)]
pub struct SaturateArguments {
    /// Targets: mount:DIR or path:DIR, an empty directory each; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// The throughput to measure
    #[arg(long, value_enum, default_value_t = Sweep::Write)]
    measure: Sweep,
    /// The most clients
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    clients_max: usize,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    /// Bytes that each client writes
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(64 << 20))]
    bytes: Bytes,
    /// Bytes of one write(2)
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(1 << 20))]
    transfer: Bytes,
    /// Files of each client, for create
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    files: u64,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn saturate(arguments: &SaturateArguments, output: &Output) -> Result<Exit> {
    arguments.ranks.run(&arguments.via, output, |campaign| {
        let config = SaturationConfig {
            campaign,
            metric: match arguments.measure {
                Sweep::Write => SweepMetric::Write,
                Sweep::Create => SweepMetric::Create,
            },
            clients_max: arguments.clients_max,
            repeat: arguments.repeat,
            bytes: arguments.bytes.0,
            transfer_bytes: arguments.transfer.0,
            files: arguments.files,
        };
        overall::saturate(&config)
    })
}
