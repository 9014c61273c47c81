//! Small files of several sizes in one directory: create with content, read by another client, remove.

use super::campaign::{Campaign, CampaignConfig, Point};
use super::mdtest::push_decimal;
use super::{Job, RankWork, check_clients_and_repeat};
use crate::ranks::{PhaseRecord, RankContext};
use crate::results::{Figure, MARK_APPLICATION, MARK_DRAINED, Parameters, RunResults};
use crate::target;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io;

/// The sizes of the evaluation of layered metadata.
pub const SIZES: [u64; 8] = [0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Larger files belong to `bench data`.
pub const SIZE_MAX: u64 = 16 << 20;
pub const FILES_MAX: u64 = 1 << 32;
const MIB: f64 = 1048576.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SmallFilesOptions {
    /// Files of each client.
    pub files: u64,
    pub bytes: u64,
}

pub struct SmallFilesConfig {
    pub campaign: CampaignConfig,
    /// Files of all clients together.
    pub files: u64,
    pub sizes: Vec<u64>,
    pub clients: Vec<usize>,
    pub repeat: u32,
}

/// Measures and reports. All files of the run are removed, after success and after failure.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn run(config: &SmallFilesConfig) -> Result<RunResults> {
    check_clients_and_repeat(&config.clients, config.repeat)?;
    if config.sizes.is_empty() || config.sizes.iter().any(|bytes| *bytes > SIZE_MAX) {
        return Err(Error::Usage(format!("files of at most {SIZE_MAX} bytes; use bench data for larger ones")));
    }
    let most = config.clients.iter().copied().max().unwrap_or(1);
    if config.files < most as u64 || config.files > FILES_MAX {
        return Err(Error::Usage(format!("each client needs a file, and {FILES_MAX} is the most")));
    }
    let mut campaign = Campaign::open(&config.campaign, "bench files", most, None)?;
    let clients = campaign.fixed_clients().map_or(config.clients.clone(), |ranks| vec![ranks]);
    // All sizes of a turn see the same conditions.
    let outcome = clients.iter().try_for_each(|clients| {
        (0..config.repeat).try_for_each(|turn| {
            config.sizes.iter().try_for_each(|bytes| {
                let parameters = Parameters::from([
                    ("file_bytes".to_owned(), (*bytes).into()),
                    ("files".to_owned(), config.files.into()),
                ]);
                let files = (config.files / *clients as u64).max(1);
                let work = RankWork::SmallFiles(SmallFilesOptions { files, bytes: *bytes });
                campaign.turn(&Point { workload: "small files", clients: *clients, parameters, work }, turn, &figures)
            })
        })
    });
    campaign.finish(outcome)
}

/// A turn with empty files, `files` of each client.
pub(super) fn turn_at(
    campaign: &mut Campaign,
    workload: &'static str,
    files: u64,
    clients: usize,
    turn: u32,
) -> Result<()> {
    let parameters =
        Parameters::from([("files".to_owned(), (files * clients as u64).into()), ("file_bytes".to_owned(), 0.into())]);
    let work = RankWork::SmallFiles(SmallFilesOptions { files, bytes: 0 });
    campaign.turn(&Point { workload, clients, parameters, work }, turn, &figures)
}

fn figures(phases: &[PhaseRecord]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for phase in phases.iter().filter(|phase| phase.operations > 0 && phase.phase != "drain") {
        let (name, seconds) = (&phase.phase, phase.seconds());
        let application = (name == "create").then_some(MARK_APPLICATION);
        let rate = Figure::rate(name, "ops/s", phase.operations as f64 / seconds, name);
        figures.push(rate.marked(application));
        if phase.bytes > 0 {
            let rate = phase.bytes as f64 / MIB / seconds;
            figures.push(Figure::plain(name, "MiB/s", true, rate).marked(application));
        }
    }
    let of = |name: &str| phases.iter().find(|phase| phase.phase == name && phase.operations > 0);
    if let (Some(create), Some(drain)) = (of("create"), of("drain")) {
        let seconds = create.seconds() + drain.seconds();
        let rate = create.operations as f64 / seconds;
        figures.push(Figure::plain("create_drained", "ops/s", true, rate).marked([MARK_DRAINED]));
        if create.bytes > 0 {
            let rate = create.bytes as f64 / MIB / seconds;
            figures.push(Figure::plain("create_drained", "MiB/s", true, rate).marked([MARK_DRAINED]));
        }
    }
    figures
}

pub(crate) fn run_rank(job: &Job, options: &SmallFilesOptions, context: &RankContext<'_>) -> Result<()> {
    let target = target::open(&job.target()?)?;
    let mut client = target.connect()?;
    let failed = |operation: &'static str, path: &str| {
        let (via, path) = (target.label(), path.to_owned());
        move |source: io::Error| Error::Operation { via, operation, path, source }
    };
    client.enter(&job.directory).map_err(failed("open the directory", &job.directory))?;
    let mut content: Vec<u8> = varve_env::random::Seeded::new(job.seed).bytes(options.bytes as usize);
    let name_of = |owner: usize, number: u64, name: &mut String| {
        name.clear();
        name.push_str(&format!("file.{owner}."));
        push_decimal(name, number);
    };
    let mut name = String::new();
    context.phase("create", |recorder| {
        for number in 0..options.files {
            name_of(context.rank, number, &mut name);
            stamp(&mut content, context.rank, number);
            client.create(&name, &content).map_err(failed("create", &name))?;
            recorder.done(options.bytes)?;
        }
        Ok(())
    })?;
    context.phase("drain", |recorder| {
        let drained = context.rank == 0 && client.drain().map_err(failed("sync", &job.directory))?;
        if drained { recorder.done(0) } else { Ok(()) }
    })?;
    let owner = (context.rank + 1) % context.ranks;
    let mut buffer = vec![0; options.bytes as usize];
    context.phase("read", |recorder| {
        for number in 0..options.files {
            name_of(owner, number, &mut name);
            client.read_first(&name, &mut buffer).map_err(failed("read", &name))?;
            recorder.done(options.bytes)?;
            stamp(&mut content, owner, number);
            if buffer != content {
                let what = format!("{}/{name} has other bytes than were written", job.directory);
                return Err(Error::WrongAnswer { via: target.label(), what });
            }
        }
        Ok(())
    })?;
    context.phase("remove", |recorder| {
        for number in 0..options.files {
            name_of(owner, number, &mut name);
            client.unlink(&name).map_err(failed("remove", &name))?;
            recorder.done(0)?;
        }
        Ok(())
    })
}

/// Files differ, so that a store cannot keep one for all.
fn stamp(content: &mut [u8], owner: usize, number: u64) {
    let word = (((owner as u64) << 32) ^ number).to_le_bytes();
    let bytes = content.len().min(word.len());
    content[..bytes].copy_from_slice(&word[..bytes]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::campaign::tests::on_threads;

    #[test]
    fn each_size_has_rates_and_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let config = SmallFilesConfig {
            campaign: on_threads(&[dir.path()]),
            files: 40,
            sizes: vec![0, 5, 4096],
            clients: vec![2],
            repeat: 2,
        };
        let results = run(&config).unwrap();
        assert_eq!(results.error, None);
        for bytes in [0, 5, 4096] {
            let of_size = |metric: &str, unit: &str| {
                results.results.iter().find(|found| {
                    found.metric == metric && found.unit == unit && found.parameters["file_bytes"] == bytes
                })
            };
            assert_eq!(of_size("create", "ops/s").unwrap().samples.len(), 2);
            assert_eq!(of_size("read", "MiB/s").is_some(), bytes > 0);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
