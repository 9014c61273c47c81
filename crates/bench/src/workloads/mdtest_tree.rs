//! mdtest with its own options: a tree of directories with items in each, which ranks create, stat, rename, read and remove.
//! Its summary table has the form of mdtest's, so that results can be laid beside old ones.

mod options;
mod rank;
mod shape;
mod summary;
#[cfg(test)]
mod tests;

pub use options::MdtestOptions;
pub use summary::summary;

pub(crate) use rank::run_rank;

use super::campaign::{Campaign, CampaignConfig, Kept, Point};
use super::{RankWork, check_clients_and_repeat};
use crate::ranks::PhaseRecord;
use crate::results::{Figure, MARK_APPLICATION, MARK_DRAINED, Parameters, RunResults};
use crate::{Error, Result};
use shape::TreeShape;

/// The directory of files that `-C` leaves for later runs.
pub(crate) const KEPT_NAME: &str = "varve-bench.mdtest";

pub struct MdtestTreeConfig {
    pub campaign: CampaignConfig,
    pub options: MdtestOptions,
    pub clients: Vec<usize>,
    pub iterations: u32,
}

/// Measures and reports. All files of the run are removed, after success and after failure, unless the options keep them.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn run(config: &MdtestTreeConfig) -> Result<RunResults> {
    check_clients_and_repeat(&config.clients, config.iterations)?;
    let shape = TreeShape::of(&config.options)?;
    let options = &config.options;
    let kept = options.selects_phases().then(|| Kept {
        name: KEPT_NAME,
        create: options.creates(),
        remove: options.removes(),
    });
    if kept.is_some() && config.clients.len() > 1 {
        return Err(Error::Usage("-C, -T, -E and -r work on the files of one number of clients: give one".to_owned()));
    }
    let most = config.clients.iter().copied().max().unwrap_or(1);
    let mut campaign = Campaign::open(&config.campaign, "bench mdtest", most, kept)?;
    let clients = campaign.fixed_clients().map_or(config.clients.clone(), |ranks| vec![ranks]);
    let outcome = clients.iter().try_for_each(|clients| {
        let point = Point {
            workload: "mdtest",
            clients: *clients,
            parameters: parameters(options, &shape, *clients),
            work: RankWork::Mdtest(options.clone()),
        };
        (0..config.iterations).try_for_each(|turn| campaign.turn(&point, turn, &figures))
    });
    campaign.finish(outcome)
}

fn parameters(options: &MdtestOptions, shape: &TreeShape, clients: usize) -> Parameters {
    let mut parameters = Parameters::from([
        ("files".to_owned(), (shape.items() * clients as u64).into()),
        ("depth".to_owned(), options.depth.into()),
        ("branch".to_owned(), options.branch.into()),
        ("layout".to_owned(), if options.unique { "unique" } else { "shared" }.into()),
    ]);
    if options.write_bytes > 0 {
        parameters.insert("file_bytes".to_owned(), options.write_bytes.into());
    }
    parameters
}

/// A rate for each phase; for those that change something, also until the file system below has it.
fn figures(phases: &[PhaseRecord]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for phase in phases.iter().filter(|phase| phase.operations > 0 && !phase.phase.ends_with(rank::DRAIN)) {
        let (name, operations) = (&phase.phase, phase.operations as f64);
        let drain = phases.iter().find(|other| other.phase == format!("{name}{}", rank::DRAIN));
        let drain = drain.filter(|drain| drain.operations > 0);
        let application = drain.map(|_| MARK_APPLICATION);
        figures.push(Figure::rate(name, "ops/s", operations / phase.seconds(), name).marked(application));
        if let Some(drain) = drain {
            let rate = operations / (phase.seconds() + drain.seconds());
            let figure = Figure::plain(&format!("{name}_drained"), "ops/s", true, rate);
            figures.push(figure.marked([MARK_DRAINED]));
        }
    }
    figures
}
