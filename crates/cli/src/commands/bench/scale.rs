//! `varve bench scale`: makes volumes, serves each with another number of servers, and has as many client processes create
//! files in one directory.

use super::new_volume;
use super::servers::ProcessFleet;
use super::work::WorkDirectory;
use super::{command_line, explain};
use crate::escaping;
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use crate::stdout::Stdout;
use clap::Args;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use varve_bench::workloads::fleet::Fleet;
use varve_bench::workloads::scale::{self, ScaleConfig, ScaleReport, ScaleRun, ScaleSite};
use varve_env::spin;
use varve_env::volume_dir::VolumeDir;

/// Create files in one directory with a growing number of servers and clients
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for the volumes and the logs of their servers; leftovers of killed runs are removed from it too [default:
    /// the system's for temporary files]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Numbers of servers, each with as many clients and a new volume [default: 1, 2, 4 and so on up to twice the
    /// processors, at most 16]
    #[arg(long, value_name = "COUNT,...", value_delimiter = ',')]
    servers: Vec<usize>,
    /// Files that each client creates while the directory splits, and again after that
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    files_per_server: u64,
}

/// A client of `varve bench scale`, which starts this by itself
#[derive(Debug, Args)]
pub struct ClientArguments {
    store: PathBuf,
    number: usize,
}

/// More servers than that need not be measured without being asked for.
const SERVERS_DEFAULT_MAX: usize = 16;

/// Each server is one thread, as each client is, and keeps its memory small, because they share a host.
const SERVER_WORDS: &[&str] = &["--no-spin", "--workers", "1", "--memory", "256MiB"];

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let config = ScaleConfig {
        servers: match arguments.servers.is_empty() {
            true => default_servers(std::thread::available_parallelism().map_or(1, usize::from)),
            false => arguments.servers.clone(),
        },
        files_per_server: arguments.files_per_server,
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let work = WorkDirectory::make_in(arguments.directory.as_deref())?;
    match measure(&config, &work) {
        Ok(report) => {
            work.remove()?;
            let text =
                if output.is_json() { escaping::json(&report.to_json()) } else { escaping::lines(&report.to_text()) };
            output::print_line(&text)?;
            Ok(if report.all_found() { Exit::Done } else { Exit::Degraded })
        }
        // The logs of the servers say more.
        Err(problem) if matches!(problem.exit(), Exit::BrokenOff | Exit::Usage) => work.remove().and(Err(problem)),
        Err(problem) => Err(problem.next(format!("The servers' logs are in {}.", work.path().display()))),
    }
}

/// A client process: it carries out what it reads from stdin, until that ends.
pub fn run_client(arguments: &ClientArguments) -> Result<Exit> {
    spin::turn_off();
    let orders = BufReader::new(io::stdin());
    scale::work(&arguments.store, arguments.number, orders, Stdout).map_err(|error| explain(&error))?;
    Ok(Exit::Done)
}

fn default_servers(processors: usize) -> Vec<usize> {
    let most = (2 * processors).min(SERVERS_DEFAULT_MAX);
    std::iter::successors(Some(1), |servers| Some(servers * 2)).take_while(|servers| *servers <= most).collect()
}

fn measure(config: &ScaleConfig, work: &WorkDirectory) -> Result<ScaleReport> {
    let mut run = ScaleRun::begin(config).map_err(|error| explain(&error))?;
    for (at, servers) in config.servers.iter().enumerate() {
        let directory = work.path().join(format!("{at}-servers{servers}"));
        let mut site = Site::make(config, &directory, *servers)?;
        run.measure(&mut site).map_err(|error| explain(&error))?;
        // Killed servers do not give their shards away one by one.
        drop(site);
        let removed = std::fs::remove_dir_all(&directory);
        removed.map_err(|error| Problem::new(format!("cannot remove {}", directory.display())).caused_by(&error))?;
    }
    Ok(run.end())
}

struct Site {
    directory: PathBuf,
    store: PathBuf,
    fleet: ProcessFleet,
}

impl Site {
    fn make(config: &ScaleConfig, directory: &Path, servers: usize) -> Result<Site> {
        let made = std::fs::create_dir(directory);
        made.map_err(|error| Problem::new(format!("cannot make {}", directory.display())).caused_by(&error))?;
        let store = directory.join("store");
        let settings = new_volume::make(&VolumeDir::new(&store), "scale", config.split_threshold())?;
        let fleet = ProcessFleet::start(&store, settings.id, directory, servers, SERVER_WORDS)?;
        Ok(Site { directory: directory.to_owned(), store, fleet })
    }
}

impl ScaleSite for Site {
    fn store(&self) -> &Path {
        &self.store
    }

    fn fleet(&mut self) -> &mut dyn Fleet {
        &mut self.fleet
    }

    fn start_client(&mut self, number: usize) -> io::Result<Child> {
        let log = File::create(self.directory.join(format!("client{number}.log")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "scale-client"]).arg(&self.store).arg(number.to_string());
        // SIGINT on the terminal is for the benchmark, which ends the clients itself.
        scale::with_pipes(&mut command).stderr(log).process_group(0).spawn()
    }
}

#[cfg(test)]
mod tests {
    use super::default_servers;

    #[test]
    fn default_numbers_of_servers_suit_the_processors() {
        assert_eq!(default_servers(1), [1, 2]);
        assert_eq!(default_servers(2), [1, 2, 4]);
        assert_eq!(default_servers(6), [1, 2, 4, 8]);
        assert_eq!(default_servers(64), [1, 2, 4, 8, 16]);
    }
}
