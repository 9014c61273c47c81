//! Weak scaling over servers: as many client processes as servers create files in one shared directory, which splits over
//! the shards while it grows. Each number of servers has a new volume.
//!
//! 1. **Growth**: each client creates its share of the files, through all splits. This gives the rate over time.
//! 2. **Steady state**: after the last split each client creates as many again. This gives the rate, and the figures of
//!    one operation: processor time, calls, redirects.
//!
//! All processes run with a spin budget of 0, so that processor time is work. At the end a listing counts the files.

mod client;
mod fit;
mod report;
#[cfg(test)]
mod tests;

pub use client::{with_pipes, work};
pub use fit::Fit;
pub use report::{ScaleReport, ScaleResult};

use super::fleet::{Fleet, LOOKED_AT_EVERY, SERVERS_MAX, WAIT_MAX, wait_until_spread};
use crate::interrupt::{self, Interrupt};
use crate::measure::cpu_seconds_of;
use crate::progress::ProgressDisplay;
use crate::{Error, Result};
use client::{ClientPhase, ClientProcess};
use std::io;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use varve_client::{Failure, InodeInfo, Library, block_on};
use varve_env::volume_dir::VolumeDir;
use varve_types::{Mode, VolumeSettings};

/// With fewer files a server the partitions are so small that chance decides which of them splits.
pub const FILES_MIN: u64 = 1_000;
pub const FILES_MAX: u64 = 100_000_000;

/// A partition splits above this part of its size after the growth at one server. So every directory has all its
/// partitions before the steady state, and the threshold does not depend on the number of servers.
const SPLITS_AT: u64 = 4;

/// For how long the servers are watched before the clients begin: many ticks of the clock that counts processor time.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// The shared directory.
const DIRECTORY: &str = "/shared";
const DIRECTORY_MODE: Mode = Mode(0o755);

pub struct ScaleConfig {
    /// Numbers of servers, each of them with as many clients.
    pub servers: Vec<usize>,
    /// Files that each client creates in each phase.
    pub files_per_server: u64,
    /// Show progress on stderr, if that is a terminal.
    pub progress: bool,
    /// The command line, for the report.
    pub arguments: Vec<String>,
}

/// A new volume with its servers.
pub trait ScaleSite {
    fn store(&self) -> &Path;

    fn fleet(&mut self) -> &mut dyn Fleet;

    /// Starts a process that runs [`work`] with its stdin and stdout, both of them pipes.
    fn start_client(&mut self, number: usize) -> io::Result<Child>;
}

impl ScaleConfig {
    fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::Usage(text));
        if self.servers.is_empty() || self.servers.iter().any(|servers| !(1..=SERVERS_MAX).contains(servers)) {
            return fail(format!("the number of servers goes from 1 to {SERVERS_MAX}"));
        }
        if !(FILES_MIN..=FILES_MAX).contains(&self.files_per_server) {
            return fail(format!("the number of files per server goes from {FILES_MIN} to {FILES_MAX}"));
        }
        Ok(())
    }

    /// The split threshold of the volumes, which have the default number of shards.
    pub fn split_threshold(&self) -> u64 {
        let shards = u64::from(VolumeSettings::SHARDS_DEFAULT);
        (self.files_per_server / SPLITS_AT / shards).max(VolumeSettings::SPLIT_THRESHOLD_MIN)
    }
}

/// A run over all numbers of servers.
pub struct ScaleRun<'a> {
    config: &'a ScaleConfig,
    results: Vec<ScaleResult>,
    /// The intervals of each result up to the end of its first client.
    points: Vec<fit::Point>,
    begun: Instant,
    progress: ProgressDisplay,
    _interrupt: Interrupt,
}

impl<'a> ScaleRun<'a> {
    pub fn begin(config: &'a ScaleConfig) -> Result<ScaleRun<'a>> {
        config.check()?;
        let steps = config.servers.iter().map(|servers| *servers as u64 * config.files_per_server * 2).sum();
        Ok(ScaleRun {
            config,
            results: Vec::new(),
            points: Vec::new(),
            begun: Instant::now(),
            progress: ProgressDisplay::new(config.progress, steps),
            _interrupt: Interrupt::listen(),
        })
    }

    /// Measures a new volume. Its servers are left to the caller, who ends them.
    pub fn measure(&mut self, site: &mut dyn ScaleSite) -> Result<()> {
        let (servers, each) = (site.fleet().servers(), self.config.files_per_server);
        self.show(servers, "waiting for the shards");
        wait_until_spread(site.fleet())?;
        let library = Library::open_volume(VolumeDir::new(site.store())).map_err(failed("open", "the volume"))?;
        open_all_shards(&library)?;
        block_on(library.make_directory(DIRECTORY.as_bytes(), DIRECTORY_MODE)).map_err(failed("make", DIRECTORY))?;
        let mut clients = (0..servers)
            .map(|number| ClientProcess::new(number, site.start_client(number)))
            .collect::<Result<Vec<_>>>()?;
        clients.iter_mut().try_for_each(ClientProcess::wait_until_ready)?;
        self.show(servers, "watching the idle servers");
        let idle_cpus = idle_cpus(site.fleet())?;
        self.show(servers, "creating files while the directory splits");
        let growth = self.create(site, &mut clients, 0)?;
        self.show(servers, "waiting for the last split");
        wait_for_last_split(&library)?;
        self.show(servers, "creating files in the directory that has split");
        let steady = self.create(site, &mut clients, each)?;
        self.show(servers, "counting the files");
        let mut found = 0;
        let listed = block_on(library.list(DIRECTORY.as_bytes(), &mut |_| {
            found += 1;
            true
        }));
        listed.map_err(failed("list", DIRECTORY))?;
        let directory = describe(&library)?;
        let owners = site.fleet().owners().map_err(Error::io("cannot read the map of the cluster"))?;
        let timeline = fit::timeline(&growth.clients);
        self.points.extend(fit::Point::before_the_first_end(servers, &timeline, &growth.clients));
        self.results.push(ScaleResult::of(report::Measured {
            idle_cpus,
            servers,
            growth,
            steady,
            found,
            directory,
            owners,
            timeline,
        }));
        Ok(())
    }

    fn show(&self, servers: usize, what: &str) {
        self.progress.show_line(format!("{servers} servers: {what}"));
    }

    /// Has every client create its files, those from `first`.
    fn create(&self, site: &mut dyn ScaleSite, clients: &mut [ClientProcess], first: u64) -> Result<Phase> {
        let each = self.config.files_per_server;
        let before = server_cpu_seconds(site.fleet())?;
        clients.iter_mut().try_for_each(|client| client.begin_creating(first, each))?;
        let created = clients.iter_mut().map(ClientProcess::wait_until_created).collect::<Result<Vec<_>>>()?;
        self.progress.advance(each * clients.len() as u64);
        Ok(Phase {
            operations: each * clients.len() as u64,
            server_cpu_s: server_cpu_seconds(site.fleet())? - before,
            clients: created,
        })
    }

    pub fn end(self) -> ScaleReport {
        ScaleReport::new(self.config, self.begun.elapsed(), Fit::of(&self.points), self.results)
    }
}

/// All clients' work of a phase.
struct Phase {
    operations: u64,
    server_cpu_s: f64,
    clients: Vec<ClientPhase>,
}

impl Phase {
    fn seconds(&self) -> f64 {
        self.clients.iter().map(|client| client.seconds).fold(0.0, f64::max)
    }

    fn ops_per_s(&self) -> f64 {
        self.operations as f64 / self.seconds()
    }

    fn per_operation(&self, sum: f64) -> f64 {
        sum / self.operations as f64
    }

    fn server_cpu_us_per_op(&self) -> f64 {
        self.per_operation(self.server_cpu_s * 1e6)
    }

    fn redirects(&self) -> u64 {
        self.clients.iter().map(|client| client.redirects).sum()
    }
}

fn server_cpu_seconds(fleet: &dyn Fleet) -> Result<f64> {
    fleet.processes().into_iter().map(cpu_seconds_of).sum()
}

/// How many processors all servers together take while no client works.
fn idle_cpus(fleet: &dyn Fleet) -> Result<f64> {
    let (begun, before) = (Instant::now(), server_cpu_seconds(fleet)?);
    while begun.elapsed() < IDLE_TIME {
        interrupt::check()?;
        std::thread::sleep(LOOKED_AT_EVERY);
    }
    let taken = server_cpu_seconds(fleet)? - before;
    Ok(taken / begun.elapsed().as_secs_f64())
}

fn failed(operation: &'static str, path: &str) -> impl FnOnce(Failure) -> Error {
    let path = path.to_owned();
    move |failure| {
        let reason = failure.message.as_ref().map_or_else(|| failure.errno.to_string(), |text| text.to_string());
        Error::Operation { via: "library".to_owned(), operation, path, source: io::Error::other(reason) }
    }
}

/// Servers open shards when they are asked for. That is no part of the measurement.
fn open_all_shards(library: &Library) -> Result<()> {
    let fs = library.file_system();
    fs.settings().shards.all().try_for_each(|shard| block_on(fs.ping(shard, &[])).map_err(failed("open", "a shard")))
}

fn describe(library: &Library) -> Result<InodeInfo> {
    let fs = library.file_system();
    let described = async {
        let inode = library.stat(DIRECTORY.as_bytes()).await?.inode;
        fs.describe(library.caller(), inode).await
    };
    block_on(described).map_err(failed("look at", DIRECTORY))
}

/// Returns when no partition is to be split any more.
fn wait_for_last_split(library: &Library) -> Result<()> {
    let settings = library.file_system().settings();
    let (shards, threshold) = (usize::from(settings.shards.get()), settings.split_threshold);
    let end = Instant::now() + WAIT_MAX;
    loop {
        interrupt::check()?;
        let partitions = describe(library)?.partitions;
        if partitions.len() == shards || partitions.iter().all(|partition| partition.entries <= threshold) {
            return Ok(());
        }
        if Instant::now() > end {
            let source = io::Error::other(format!("{} partitions after {} s", partitions.len(), WAIT_MAX.as_secs()));
            return Err(Error::Io { what: "waited for the last split".to_owned(), source });
        }
        std::thread::sleep(LOOKED_AT_EVERY);
    }
}
