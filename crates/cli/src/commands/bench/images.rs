//! `varve bench images`: detector images, a CBF file each, at fixed rates.

use super::drive::RankFlags;
use crate::output::Output;
use crate::problem::{Exit, Result};
use crate::quantity::Span;
use clap::Args;
use varve_bench::target::Via;
use varve_bench::workloads::images::{self, IMAGES, ImagesConfig, RATES};

/// Write detector images, a CBF file each, at fixed rates: sustained rate and lateness
#[derive(Debug, Args)]
pub struct Arguments {
    /// Targets: mount:DIR or path:DIR, an empty directory each; several alternate in one run
    #[arg(long, value_name = "VIA", value_parser = clap::value_parser!(Via), required = true)]
    via: Vec<Via>,
    /// Images of all streams together
    #[arg(long, value_name = "COUNT", default_value_t = IMAGES)]
    images: u64,
    /// Images a second of all streams together, one rate after the other
    #[arg(long, value_name = "HZ", value_delimiter = ',', default_values_t = RATES)]
    rates: Vec<f64>,
    /// Numbers of streams, one after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 4])]
    streams: Vec<usize>,
    /// Detector: pilatus6m, eiger16m, pco4000, pco-edge, excalibur or WIDTHxHEIGHTxTYPE
    #[arg(long, default_value = "pilatus6m")]
    model: String,
    /// fsync(2) each image
    #[arg(long)]
    sync: bool,
    /// The longest run at one rate; a slow rate then writes fewer images
    #[arg(long, value_name = "DURATION", value_parser = Span::of_some_length)]
    time_max: Option<Span>,
    /// How often to measure each target
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    repeat: u32,
    #[command(flatten)]
    ranks: RankFlags,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    arguments.ranks.run(&arguments.via, output, |campaign| {
        let config = ImagesConfig {
            campaign,
            images: arguments.images,
            rates_hz: arguments.rates.clone(),
            streams: arguments.streams.clone(),
            model: arguments.model.clone(),
            sync: arguments.sync,
            seconds_max: arguments.time_max.map(|time| time.0.as_secs_f64()),
            repeat: arguments.repeat,
        };
        images::run(&config)
    })
}
