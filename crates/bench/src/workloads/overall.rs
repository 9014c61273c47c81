//! Write throughput against the number of clients: with and without the time of metadata calls (`overall`), and up to the
//! number of clients from which it no longer rises (`saturation`).

use super::campaign::{Campaign, CampaignConfig};
use super::data::{self, DataOptions, DataPattern};
use super::{CLIENTS_MAX, REPEAT_MAX, check_clients_and_repeat};
use crate::measure::Spread;
use crate::results::RunResults;
use crate::{Error, Result};

/// The evaluation of the mirrored file system: 20 measurements, of which the highest and the lowest 5 are discarded.
pub const REPEAT: u32 = 20;
pub const DISCARDED: usize = 5;
/// The numbers of clients of that evaluation's figures.
pub const CLIENTS: [usize; 10] = [1, 2, 4, 8, 16, 32, 48, 64, 80, 100];

pub struct OverallConfig {
    pub campaign: CampaignConfig,
    pub clients: Vec<usize>,
    pub repeat: u32,
    /// Bytes that each client writes, in transfers of so many.
    pub bytes: u64,
    pub transfer_bytes: u64,
    /// All clients write parts of one file, instead of a file each.
    pub shared_file: bool,
}

fn write_only(bytes: u64, transfer_bytes: u64, shared_file: bool) -> DataOptions {
    let pattern = if shared_file { DataPattern::Segmented } else { DataPattern::NToN };
    DataOptions { pattern, bytes, transfer_bytes, write_only: true, ..DataOptions::default() }
}

/// Measures and reports. All files of the run are removed, after success and after failure.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn run(config: &OverallConfig) -> Result<RunResults> {
    check_clients_and_repeat(&config.clients, config.repeat)?;
    let options = write_only(config.bytes, config.transfer_bytes, config.shared_file);
    options.check()?;
    data::no_library(&config.campaign.via)?;
    let most = config.clients.iter().copied().max().unwrap_or(1);
    let mut campaign = Campaign::open(&config.campaign, "bench overall", most, None)?;
    let available = campaign.fixed_clients().unwrap_or(most);
    let clients: Vec<usize> = config.clients.iter().copied().filter(|clients| *clients <= available).collect();
    let outcome = clients.iter().try_for_each(|clients| {
        (0..config.repeat).try_for_each(|turn| data::turn_at(&mut campaign, &options, "overall", *clients, turn))
    });
    let mut results = campaign.finish(outcome)?;
    for measured in &mut results.results {
        measured.discard = if config.repeat as usize > 2 * DISCARDED { DISCARDED } else { 0 };
    }
    if config.repeat as usize <= 2 * DISCARDED {
        results.warn(format!(
            "With {} measurements, the highest and lowest {DISCARDED} are not discarded.",
            config.repeat
        ));
    }
    Ok(results)
}

/// Which throughput a sweep looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepMetric {
    /// MiB a second of a file a client, until the store has them.
    Write,
    /// Creates a second of small files in one directory.
    Create,
}

pub struct SaturationConfig {
    pub campaign: CampaignConfig,
    pub metric: SweepMetric,
    /// The sweep ends here at the latest.
    pub clients_max: usize,
    pub repeat: u32,
    pub bytes: u64,
    pub transfer_bytes: u64,
    /// Files of each client.
    pub files: u64,
}

/// A rise below this is noise on most machines.
const RISE_MIN: f64 = 1.05;
/// The sweep ends after so many numbers of clients without a rise.
const FLAT_MAX: usize = 2;

/// Doubles the number of clients until the throughput of no target rises any more.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn saturate(config: &SaturationConfig) -> Result<RunResults> {
    if config.clients_max == 0 || config.clients_max > CLIENTS_MAX || config.repeat == 0 || config.repeat > REPEAT_MAX {
        return Err(Error::Usage(format!("1 to {CLIENTS_MAX} clients, and 1 to {REPEAT_MAX} repeats")));
    }
    let options = write_only(config.bytes, config.transfer_bytes, false);
    options.check()?;
    if config.metric == SweepMetric::Write {
        data::no_library(&config.campaign.via)?;
    }
    let mut campaign = Campaign::open(&config.campaign, "bench saturate", config.clients_max, None)?;
    let most = campaign.fixed_clients().unwrap_or(config.clients_max);
    let outcome = sweep(config, &options, &mut campaign, most);
    campaign.finish(outcome)
}

fn sweep(config: &SaturationConfig, options: &DataOptions, campaign: &mut Campaign, most: usize) -> Result<()> {
    let metric = match config.metric {
        SweepMetric::Write => "write_drained",
        SweepMetric::Create => "create",
    };
    let mut curve: Vec<(usize, Vec<f64>)> = Vec::new();
    for clients in numbers_of_clients(most) {
        for turn in 0..config.repeat {
            match config.metric {
                SweepMetric::Write => data::turn_at(campaign, options, "saturation", clients, turn)?,
                SweepMetric::Create => {
                    super::small_files::turn_at(campaign, "saturation", config.files, clients, turn)?
                }
            }
        }
        let of_clients =
            campaign.results.results.iter().filter(|found| found.clients == clients && found.metric == metric);
        curve.push((clients, of_clients.filter_map(|found| Spread::of(&found.samples)).map(|at| at.median).collect()));
        if is_flat(&curve) {
            break;
        }
    }
    let saturated = is_flat(&curve);
    let best = curve.iter().max_by(|(_, a), (_, b)| a.iter().sum::<f64>().total_cmp(&b.iter().sum::<f64>()));
    if let Some((clients, _)) = best {
        let end = if saturated { "it no longer rises with more" } else { "the sweep ended before it stopped to rise" };
        campaign.results.warn(format!("The highest throughput is with {clients} clients; {end}."));
    }
    Ok(())
}

fn numbers_of_clients(most: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> =
        std::iter::successors(Some(1), |clients| Some(clients * 2)).take_while(|clients| *clients < most).collect();
    numbers.push(most);
    numbers
}

/// Whether the last points of all targets are no higher than the best before them.
fn is_flat(curve: &[(usize, Vec<f64>)]) -> bool {
    if curve.len() <= FLAT_MAX {
        return false;
    }
    let (before, last) = curve.split_at(curve.len() - FLAT_MAX);
    let targets = before[0].1.len();
    let best = |points: &[(usize, Vec<f64>)], target: usize| {
        points.iter().filter_map(|(_, rates)| rates.get(target)).copied().fold(0.0, f64::max)
    };
    (0..targets).all(|target| best(last, target) < RISE_MIN * best(before, target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::campaign::tests::on_threads;

    #[test]
    fn sweep_ends_after_two_numbers_without_a_rise() {
        let curve = |rates: &[f64]| rates.iter().map(|rate| (1, vec![*rate])).collect::<Vec<_>>();
        assert!(!is_flat(&curve(&[10.0, 10.0])));
        assert!(!is_flat(&curve(&[10.0, 19.0, 19.5])));
        assert!(is_flat(&curve(&[10.0, 19.0, 19.5, 18.0])));
        assert!(!is_flat(&curve(&[10.0, 9.0, 12.0])));
        assert_eq!(numbers_of_clients(12), [1, 2, 4, 8, 12]);
        assert_eq!(numbers_of_clients(1), [1]);
    }

    #[test]
    fn both_sweeps_measure_and_clean_up() {
        let dir = tempfile::tempdir().unwrap();
        let overall = OverallConfig {
            campaign: on_threads(&[dir.path()]),
            clients: vec![1, 3],
            repeat: 2,
            bytes: 100_000,
            transfer_bytes: 8192,
            shared_file: true,
        };
        let results = run(&overall).unwrap();
        assert!(results.results.iter().any(|found| found.metric == "write_overall" && found.clients == 3));
        for metric in [SweepMetric::Write, SweepMetric::Create] {
            let sweep = SaturationConfig {
                campaign: on_threads(&[dir.path()]),
                metric,
                clients_max: 2,
                repeat: 1,
                bytes: 50_000,
                transfer_bytes: 8192,
                files: 20,
            };
            let results = saturate(&sweep).unwrap();
            assert!(results.warnings.iter().any(|text| text.contains("highest throughput")), "{:?}", results.warnings);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
