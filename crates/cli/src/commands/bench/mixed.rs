//! `varve bench mixed`: a paced experiment alone, and beside other users.

use super::drive::RankFlags;
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::Span;
use clap::Args;
use std::time::Duration;
use varve_bench::target::Via;
use varve_bench::workloads::mixed::{self, MixedConfig, OtherUser};

/// Write detector images at a fixed rate, alone and while others read, unpack, list and delete
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: mount:DIR or path:DIR, an empty directory each; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// Images a second of the experiment
    #[arg(long, value_name = "HZ", default_value_t = 10.0)]
    rate: f64,
    /// Duration of the experiment
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = Span::of_some_length)]
    time: Span,
    /// Detector: pilatus6m, eiger16m, pco4000, pco-edge, excalibur or WIDTHxHEIGHTxTYPE
    #[arg(long, default_value = "pilatus6m")]
    model: String,
    /// The other users, a client each: reader, unpacker, lister, deleter
    #[arg(long, value_name = "USERS", value_delimiter = ',', default_values_t = OtherUser::ALL)]
    others: Vec<OtherUser>,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    arguments.ranks.run(&arguments.via, output, |campaign| {
        let config = MixedConfig {
            campaign,
            rate_hz: arguments.rate,
            seconds: Duration::as_secs_f64(&arguments.time.0),
            model: arguments.model.clone(),
            others: arguments.others.clone(),
            repeat: arguments.repeat,
        };
        mixed::run(&config)
    })
}
