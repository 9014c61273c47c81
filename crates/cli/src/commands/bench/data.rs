//! `varve bench data`: checkpoints, shared files, frames, random opens and reads.

use super::drive::RankFlags;
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::Bytes;
use clap::Args;
use varve_bench::target::Via;
use varve_bench::workloads::data::{self, DataConfig, DataOptions, DataPattern};

/// Write and read large files as parallel applications do, and verify them
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: mount:DIR or path:DIR, an empty directory each; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// n-n, n-1-segmented, n-1-strided, frames, open-files or random-read
    #[arg(long, value_name = "PATTERN", default_value = "n-n")]
    pattern: DataPattern,
    /// Bytes that each client writes
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(1 << 30))]
    bytes: Bytes,
    /// Bytes of one write(2) or read(2)
    #[arg(long, value_name = "SIZE", default_value_t = Bytes(1 << 20))]
    transfer: Bytes,
    /// Bytes of a block of a strided file, or of a frame [default: --transfer]
    #[arg(long, value_name = "SIZE")]
    block: Option<Bytes>,
    /// Use O_DIRECT
    #[arg(long)]
    direct: bool,
    /// Compare every byte that is read with what was written
    #[arg(long)]
    verify: bool,
    /// Do not read
    #[arg(long)]
    write_only: bool,
    /// Files of all clients together, for open-files
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    files: u64,
    /// Opens or random reads of each client
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    operations: u64,
    /// Numbers of clients, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 2])]
    clients: Vec<usize>,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    /// Do not drop the caches before reading
    #[arg(long)]
    keep_caches: bool,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    arguments.ranks.run(&arguments.via, output, |campaign| {
        let options = DataOptions {
            pattern: arguments.pattern,
            bytes: arguments.bytes.0,
            transfer_bytes: arguments.transfer.0,
            block_bytes: arguments.block.unwrap_or(arguments.transfer).0,
            direct: arguments.direct,
            verify: arguments.verify,
            drop_caches: !arguments.keep_caches,
            write_only: arguments.write_only,
            files: arguments.files,
            operations: arguments.operations,
        };
        let config = DataConfig { campaign, options, clients: arguments.clients.clone(), repeat: arguments.repeat };
        data::run(&config)
    })
}
