//! A paced experiment beside other users of the same file system: readers of its images, unpackers of trees, listers and
//! deleters. In each turn, the same experiment runs alone first.

mod others;
#[cfg(test)]
mod tests;

pub use others::OtherUser;

use super::campaign::{Campaign, CampaignConfig, Point};
use super::data::no_library;
use super::images::{EXPERIMENT, ImageStream, ImagesOptions, RATE_MAX, paced_figures};
use super::{Job, REPEAT_MAX, RankWork};
use crate::ranks::{PhaseRecord, RANKS_MAX, RankContext};
use crate::results::{Figure, Parameters, RunResults};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use varve_detector_tools::simulator::DetectorModel;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MixedOptions {
    pub images: ImagesOptions,
    /// The users of the other ranks, in order; more ranks begin again with the first. Empty: the experiment is alone.
    pub others: Vec<OtherUser>,
    pub seconds: f64,
}

pub struct MixedConfig {
    pub campaign: CampaignConfig,
    pub rate_hz: f64,
    pub seconds: f64,
    /// The detector's name on the command line.
    pub model: String,
    pub others: Vec<OtherUser>,
    pub repeat: u32,
}

/// Longer experiments show the same.
pub const SECONDS_MAX: f64 = 86_400.0;

/// Measures and reports. All files of the run are removed, after success and after failure.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn run(config: &MixedConfig) -> Result<RunResults> {
    no_library(&config.campaign.via)?;
    let fail = |text: String| Err(Error::Usage(text));
    if config.others.is_empty() || config.others.len() >= RANKS_MAX {
        return fail("beside the experiment there is at least one other user".to_owned());
    }
    if !(config.rate_hz > 0.0 && config.rate_hz <= RATE_MAX && config.seconds > 0.0 && config.seconds <= SECONDS_MAX) {
        return fail(format!("rates are at most {RATE_MAX} images a second, for at most {SECONDS_MAX} seconds"));
    }
    if config.repeat == 0 || config.repeat > REPEAT_MAX {
        return fail(format!("the number of repeats goes from 1 to {REPEAT_MAX}"));
    }
    config.model.parse::<DetectorModel>().map_err(|error| Error::Usage(error.to_string()))?;
    let clients = config.others.len() + 1;
    let mut campaign = Campaign::open(&config.campaign, "bench mixed", clients, None)?;
    let clients = campaign.fixed_clients().unwrap_or(clients);
    let outcome = (0..config.repeat).try_for_each(|turn| {
        [false, true].into_iter().try_for_each(|mixed| {
            let point = point(config, if mixed { clients } else { 1 }, mixed);
            campaign.turn(&point, turn, &|phases| figures(phases, config.rate_hz))
        })
    });
    campaign.finish(outcome)
}

fn point(config: &MixedConfig, clients: usize, mixed: bool) -> Point {
    let images = ImagesOptions {
        images: ((config.seconds * config.rate_hz) as u64).max(1),
        rate_hz: config.rate_hz,
        model: config.model.clone(),
        sync: false,
    };
    let others = if mixed { config.others.clone() } else { Vec::new() };
    let names: Vec<String> = config.others.iter().map(OtherUser::to_string).collect();
    let beside = if mixed { names.join(",") } else { "none".to_owned() };
    let parameters = Parameters::from([
        ("rate_hz".to_owned(), config.rate_hz.into()),
        ("model".to_owned(), config.model.clone().into()),
        ("beside".to_owned(), beside.into()),
    ]);
    let work = RankWork::Mixed(MixedOptions { images, others, seconds: config.seconds });
    Point { workload: "mixed", clients, parameters, work }
}

fn figures(phases: &[PhaseRecord], rate_hz: f64) -> Vec<Figure> {
    let mut figures = Vec::new();
    for phase in phases.iter().filter(|phase| phase.operations > 0) {
        match phase.phase.as_str() {
            EXPERIMENT => figures.extend(paced_figures(phase, rate_hz)),
            name => figures.push(Figure::rate(name, "ops/s", phase.operations as f64 / phase.seconds(), name)),
        }
    }
    figures
}

/// Rank 0 is the experiment.
pub(crate) fn run_rank(job: &Job, options: &MixedOptions, context: &RankContext<'_>) -> Result<()> {
    let via = job.target()?;
    let directory = via.directory().join(&job.directory);
    if context.rank == 0 {
        let stream = ImageStream::new(via.to_string(), directory, 0, &options.images)?;
        return context.phase(EXPERIMENT, |recorder| stream.write(recorder));
    }
    let user = options.others[(context.rank - 1) % options.others.len()];
    let seconds = Duration::from_secs_f64(options.seconds);
    let place = others::Place { via: via.to_string(), directory, number: context.rank, seed: job.seed };
    context.phase(user.name(), |recorder| others::run(user, &place, seconds, recorder))
}
