//! `varve bench failover`: makes a volume, serves it with several servers, and ends them one after another.

use super::new_volume;
use super::servers::ProcessFleet;
use super::work::WorkDirectory;
use super::{command_line, explain};
use crate::escaping;
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use std::path::PathBuf;
use varve_bench::workloads::failover::{self, FailoverConfig, FailoverReport};
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeSettings;

/// Kill servers of a volume while clients work, and measure for how long the clients stand still
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for the volume and the logs of its servers; leftovers of killed runs are removed from it too [default:
    /// the system's for temporary files]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Number of servers
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    servers: usize,
    /// Number of clients
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    clients: usize,
    /// How many servers to kill; as many are stopped in good order after that
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    kills: u32,
    /// Files that exist meanwhile
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    entries: u64,
    /// Seed of the order in which servers are ended
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let work = WorkDirectory::make_in(arguments.directory.as_deref())?;
    let measured = measure(arguments, &work, output);
    match measured {
        Ok(report) => {
            work.remove()?;
            let text =
                if output.is_json() { escaping::json(&report.to_json()) } else { escaping::lines(&report.to_text()) };
            output::print_line(&text)?;
            Ok(if report.crash.lost == 0 { Exit::Done } else { Exit::Degraded })
        }
        // The logs of the servers say more.
        Err(problem) if matches!(problem.exit(), Exit::BrokenOff | Exit::Usage) => work.remove().and(Err(problem)),
        Err(problem) => Err(problem.next(format!("The servers' logs are in {}.", work.path().display()))),
    }
}

fn measure(arguments: &Arguments, work: &WorkDirectory, output: &Output) -> Result<FailoverReport> {
    let store = work.path().join("store");
    let settings = new_volume::make(&VolumeDir::new(&store), "failover", VolumeSettings::SPLIT_THRESHOLD_DEFAULT)?;
    let mut fleet = ProcessFleet::start(&store, settings.id, work.path(), arguments.servers, &[])?;
    let config = FailoverConfig {
        store,
        clients: arguments.clients,
        kills: arguments.kills,
        entries: arguments.entries,
        seed: arguments.seed,
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let measured = failover::run(&config, &mut fleet).map_err(|error| explain(&error));
    let ended = fleet.end();
    let report = measured?;
    ended.map_err(|error| Problem::new("the servers did not stop well").caused_by(&error))?;
    Ok(report)
}
