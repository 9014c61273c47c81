//! Flags of the workloads that ranks run: the targets, who drives them, and where the results go.

use super::{command_line, explain, take_rights_for, write};
use crate::escaping;
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::Args;
use std::path::PathBuf;
use varve_bench::ranks::{
    ANSWER_VARIABLE, HUB_VARIABLE, Launched, LauncherConfig, RANK_VARIABLE, Secrets, TOKEN_VARIABLE, serve_child,
    serve_rank,
};
use varve_bench::results::RunResults;
use varve_bench::target::Via;
use varve_bench::workloads::campaign::CampaignConfig;

#[derive(Debug, Args)]
pub struct DriveFlags {
    /// Start each client as a process of its own instead of a thread
    #[arg(long)]
    pub processes: bool,
    /// Directory that all hosts of mpirun or srun share, in which they find rank 0 [default: the first target]
    #[arg(long, value_name = "DIR")]
    pub rendezvous: Option<PathBuf>,
    /// How long a client process may give no sign of life
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = Span::of_some_length)]
    pub rank_timeout: Span,
    /// Write every sample as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// The flags of workloads that only ranks run.
#[derive(Debug, Args)]
pub struct RankFlags {
    #[command(flatten)]
    drive: DriveFlags,
    /// Keep the results as JSON, as --json prints them
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl RankFlags {
    /// Runs a workload at the targets and delivers its results.
    pub fn run(
        &self,
        via: &[Via],
        output: &Output,
        work: impl FnOnce(CampaignConfig) -> varve_bench::Result<RunResults>,
    ) -> Result<Exit> {
        let save = self.save.as_ref();
        let Some(campaign) = self.drive.campaign(via, save, output)? else { return Ok(Exit::Done) };
        let results = work(campaign).map_err(|error| explain(&error))?;
        self.drive.deliver(&results, save, output, RunResults::to_text)
    }
}

/// A client process of a benchmark, which starts this by itself
#[derive(Debug, Args)]
pub struct RankArguments {}

/// The environment of a client process.
pub fn run_rank(_arguments: &RankArguments) -> Result<Exit> {
    let variable = |name: &str| {
        std::env::var(name).map_err(|_| Problem::usage(format!("{name} is not set: varve bench itself starts this")))
    };
    let rank = variable(RANK_VARIABLE)?.parse();
    let rank = rank.map_err(|_| Problem::usage(format!("{RANK_VARIABLE} is no number")))?;
    let secrets = Secrets { token: variable(TOKEN_VARIABLE)?, answer: variable(ANSWER_VARIABLE)? };
    serve_child(&variable(HUB_VARIABLE)?, &secrets, rank).map_err(|error| explain(&error))?;
    Ok(Exit::Done)
}

impl DriveFlags {
    /// The configuration of the process that drives the run. `None`: this process was another rank of it, and is done.
    pub fn campaign(&self, via: &[Via], save: Option<&PathBuf>, output: &Output) -> Result<Option<CampaignConfig>> {
        take_rights_for(via, [self.csv.as_ref(), save].into_iter().flatten())?;
        let launched = Launched::detect(|name| std::env::var(name).ok()).map_err(Problem::usage)?;
        let rendezvous = match (&self.rendezvous, via.first()) {
            (Some(directory), _) => directory.clone(),
            (None, Some(via)) => via.directory(),
            (None, None) => return Err(Problem::usage("give at least one target")),
        };
        if let Some(launched) = launched.as_ref().filter(|launched| launched.rank > 0) {
            serve_rank(&rendezvous, &launched.job, launched.rank).map_err(|error| explain(&error))?;
            return Ok(None);
        }
        let program = std::env::current_exe()
            .map_err(|error| Problem::new("cannot find this program itself").caused_by(&error))?;
        Ok(Some(CampaignConfig {
            via: via.to_vec(),
            launcher: LauncherConfig {
                processes: self.processes,
                launched,
                rendezvous,
                program: (program, ["bench", "rank"].map(str::to_owned).to_vec()),
                silence_max: self.rank_timeout.0,
            },
            outputs: [self.csv.as_ref(), save].into_iter().flatten().cloned().collect(),
            progress: output.shows_progress(),
            arguments: command_line(),
        }))
    }

    /// Prints the results and writes the files. Results of a run that ended early are delivered too; the exit code says so.
    pub fn deliver(
        &self,
        results: &RunResults,
        save: Option<&PathBuf>,
        output: &Output,
        text: impl FnOnce(&RunResults) -> String,
    ) -> Result<Exit> {
        let json = results.to_json().map_err(|error| explain(&error))?;
        let saved = save.map(|path| write(path, &format!("{json}\n"))).transpose();
        let table = self.csv.as_ref().map(|path| write(path, &results.to_csv())).transpose();
        output::print_line(&if output.is_json() { escaping::json(&json) } else { escaping::lines(&text(results)) })?;
        saved?;
        table?;
        match &results.error {
            None => Ok(Exit::Done),
            Some(error) if error == INTERRUPTED => {
                Err(Problem::new("the benchmark was interrupted").exits(Exit::BrokenOff))
            }
            Some(error) => {
                Err(Problem::new("the benchmark ended early; its figures until then are kept").because(error))
            }
        }
    }
}

/// The text of `Error::Interrupted`.
const INTERRUPTED: &str = "interrupted";
