//! `varve bench files`: small files of several sizes in one directory.

use super::drive::RankFlags;
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::Bytes;
use clap::Args;
use varve_bench::target::Via;
use varve_bench::workloads::small_files::{self, SIZES, SmallFilesConfig};

/// Create, read and remove small files of several sizes in one directory
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: library:STORE, mount:DIR or path:DIR, an empty directory each; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// Files of all clients together, for each size
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    files: u64,
    /// Sizes [default: 0, 1, 2, 4, 8, 16, 32 and 64 KiB]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    sizes: Vec<Bytes>,
    /// Numbers of clients, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 8])]
    clients: Vec<usize>,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    arguments.ranks.run(&arguments.via, output, |campaign| {
        let sizes = match arguments.sizes.as_slice() {
            [] => SIZES.to_vec(),
            sizes => sizes.iter().map(|size| size.0).collect(),
        };
        let config = SmallFilesConfig {
            campaign,
            files: arguments.files,
            sizes,
            clients: arguments.clients.clone(),
            repeat: arguments.repeat,
        };
        small_files::run(&config)
    })
}
