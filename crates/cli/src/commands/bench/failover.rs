//! `varve bench failover`: makes a volume, serves it with several servers, and ends them one after another.

use super::work::WorkDirectory;
use super::{command_line, explain};
use crate::escaping;
use crate::identity;
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_bench::workloads::failover::{self, FailoverConfig, FailoverReport, Fleet};
use varve_cluster::address::RegistryAddress;
use varve_cluster::registry::Registry;
use varve_env::private_file::check_directory;
use varve_env::random;
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_types::{ShardCount, VolumeId, VolumeSettings};

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

/// How long a server may take to start and to join the others, and to give its shards away and stop.
const START_MAX: Duration = Duration::from_secs(60);
const LEAVE_MAX: Duration = Duration::from_secs(60);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(5);

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let beneath = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let failed = || Problem::new(format!("cannot make a volume in {}", beneath.display()));
    let beneath = beneath.canonicalize().map_err(|error| failed().caused_by(&error))?;
    identity::take(&beneath, identity::Work::Bench, failed)?;
    // Another user must not redirect root's volume. Users who name a directory know with whom they share it.
    if arguments.directory.is_none() || rustix::process::geteuid().is_root() {
        check_directory(&beneath).map_err(|error| {
            failed().caused_by(&error).next("Name another directory, or set TMPDIR to one of this user's.")
        })?;
    }
    let work = WorkDirectory::make(&beneath)?;
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
    let mut fleet = ProcessFleet::start(&store, work.path(), arguments.servers)?;
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

/// Servers of one volume on this host, each a process of its own.
struct ProcessFleet {
    store: PathBuf,
    logs: PathBuf,
    registry: Arc<dyn Registry>,
    runtime: tokio::runtime::Runtime,
    /// By place. `None`: it has ended.
    servers: Vec<Option<Child>>,
    /// Number of servers started so far, for the names of the logs.
    started: u32,
}

impl ProcessFleet {
    fn start(store: &Path, logs: &Path, servers: usize) -> Result<ProcessFleet> {
        let failed = |doing: &str| format!("cannot {doing} the volume at {}", store.display());
        let volume = VolumeDir::new(store);
        let settings = VolumeSettings {
            id: VolumeId(random::bytes()),
            name: "failover".to_owned(),
            shards: ShardCount::new(VolumeSettings::SHARDS_DEFAULT).expect("the default is valid"),
            split_threshold: VolumeSettings::SPLIT_THRESHOLD_DEFAULT,
            inline_limit: VolumeSettings::INLINE_LIMIT_DEFAULT,
            sync_interval: VolumeSettings::SYNC_INTERVAL_DEFAULT,
            owner_uid: rustix::process::geteuid().as_raw(),
        };
        varve_admin::format::format(&volume, &settings, FormatOver::Nothing)
            .map_err(|error| Problem::new(failed("make")).caused_by(&error))?;
        let registry = RegistryAddress::Store.open(&volume, settings.id);
        let registry = registry.map_err(|error| Problem::new(failed("watch the servers of")).caused_by(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Problem::new(failed("watch the servers of")).caused_by(&error))?;
        let none = (0..servers).map(|_| None).collect();
        let (store, logs) = (store.to_owned(), logs.to_owned());
        let mut fleet = ProcessFleet { store, logs, registry, runtime, servers: none, started: 0 };
        for place in 0..servers {
            fleet.spawn(place).map_err(|error| Problem::new(failed("serve")).caused_by(&error))?;
        }
        Ok(fleet)
    }

    fn spawn(&mut self, place: usize) -> io::Result<()> {
        self.started += 1;
        let log = File::create(self.logs.join(format!("server{place}-{}.log", self.started)))?;
        let mut command = Command::new(std::env::current_exe()?);
        // SIGINT on the terminal is for the benchmark, which ends the servers itself.
        command.arg("serve").arg(&self.store).arg("--join").process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.servers[place] = Some(command.spawn()?);
        let end = Instant::now() + START_MAX;
        while !self.members()?.values().any(|member| *member == place) {
            let child = self.servers[place].as_mut().expect("started above");
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("server {place} has ended with {status}")));
            }
            if Instant::now() > end {
                return Err(io::Error::other(format!(
                    "server {place} has not joined within {} s",
                    START_MAX.as_secs()
                )));
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
        Ok(())
    }

    /// The places of the members, by their numbers in the cluster.
    fn members(&self) -> io::Result<HashMap<u64, usize>> {
        let map = self.runtime.block_on(self.registry.newest_map()).map_err(io::Error::other)?;
        let place = |pid: u32| self.servers.iter().position(|server| server.as_ref().is_some_and(|s| s.id() == pid));
        let members = map.iter().flat_map(|map| &map.members);
        Ok(members.filter_map(|(server, member)| Some((server.0, place(member.pid)?))).collect())
    }

    /// Stops all servers in good order, the last ones at once: nobody takes their shards.
    fn end(mut self) -> io::Result<()> {
        let mut ended = Ok(());
        for place in 0..self.servers.len() {
            if self.servers[place].is_some() {
                ended = ended.and(self.leave(place));
            }
        }
        ended
    }
}

impl Fleet for ProcessFleet {
    fn servers(&self) -> usize {
        self.servers.len()
    }

    fn owners(&mut self) -> io::Result<Vec<Option<usize>>> {
        let map = self.runtime.block_on(self.registry.newest_map()).map_err(io::Error::other)?;
        let places = self.members()?;
        let place = |owner: Option<varve_cluster::map::ServerId>| places.get(&owner?.0).copied();
        Ok(map.iter().flat_map(|map| &map.shards).map(|shard| place(shard.owner)).collect())
    }

    fn kill(&mut self, place: usize) -> io::Result<()> {
        let Some(mut child) = self.servers[place].take() else { return Ok(()) };
        child.kill()?;
        child.wait().map(drop)
    }

    fn leave(&mut self, place: usize) -> io::Result<()> {
        let Some(mut child) = self.servers[place].take() else { return Ok(()) };
        // A process that has ended is waited for below; its number is not used anew before that.
        if let Some(process) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process(process, Signal::TERM);
        }
        let end = Instant::now() + LEAVE_MAX;
        loop {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(io::Error::other(format!("server {place} has ended with {status}"))),
                None if Instant::now() > end => {
                    child.kill()?;
                    child.wait()?;
                    return Err(io::Error::other(format!(
                        "server {place} did not stop within {} s",
                        LEAVE_MAX.as_secs()
                    )));
                }
                None => std::thread::sleep(LOOKED_AT_EVERY),
            }
        }
    }

    fn start(&mut self, place: usize) -> io::Result<()> {
        self.spawn(place)
    }
}

impl Drop for ProcessFleet {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().flatten() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
