//! Servers of a benchmark's volume: processes of this program that join each other.

use crate::problem::{Problem, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_bench::workloads::fleet::Fleet;
use varve_cluster::address::RegistryAddress;
use varve_cluster::registry::Registry;
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeId;

/// How long a server may take to start and to join the others, and to give its shards away and stop.
const START_MAX: Duration = Duration::from_secs(60);
const LEAVE_MAX: Duration = Duration::from_secs(60);
const STARTS_MAX: u32 = 3;
const LOOKED_AT_EVERY: Duration = Duration::from_millis(5);

/// Servers of one volume on this host, each a process of its own.
pub struct ProcessFleet {
    store: PathBuf,
    logs: PathBuf,
    words: &'static [&'static str],
    registry: Arc<dyn Registry>,
    runtime: tokio::runtime::Runtime,
    /// By place. `None`: it has ended.
    servers: Vec<Option<Child>>,
    /// Number of servers started so far, for the names of the logs.
    started: u32,
}

impl ProcessFleet {
    /// Starts so many servers of a new volume, each with these words after `varve serve STORE --join`.
    pub fn start(
        store: &Path,
        volume: VolumeId,
        logs: &Path,
        servers: usize,
        words: &'static [&'static str],
    ) -> Result<ProcessFleet> {
        let failed = |doing: &str| format!("cannot {doing} the volume at {}", store.display());
        let registry = RegistryAddress::Store.open(&VolumeDir::new(store), volume);
        let registry = registry.map_err(|error| Problem::new(failed("watch the servers of")).caused_by(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Problem::new(failed("watch the servers of")).caused_by(&error))?;
        let none = (0..servers).map(|_| None).collect();
        let (store, logs) = (store.to_owned(), logs.to_owned());
        let mut fleet = ProcessFleet { store, logs, words, registry, runtime, servers: none, started: 0 };
        for place in 0..servers {
            fleet.spawn(place).map_err(|error| Problem::new(failed("serve")).caused_by(&error))?;
        }
        Ok(fleet)
    }

    /// Starts a server, again if it ends: a join is refused where a renewal takes long, as beside the work of a benchmark.
    fn spawn(&mut self, place: usize) -> io::Result<()> {
        for _ in 1..STARTS_MAX {
            if self.try_spawn(place).is_ok() {
                return Ok(());
            }
        }
        self.try_spawn(place)
    }

    fn try_spawn(&mut self, place: usize) -> io::Result<()> {
        self.started += 1;
        let log = File::create(self.logs.join(format!("server{place}-{}.log", self.started)))?;
        let mut command = Command::new(std::env::current_exe()?);
        // SIGINT on the terminal is for the benchmark, which ends the servers itself.
        command.arg("serve").arg(&self.store).arg("--join").args(self.words).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.servers[place] = Some(command.spawn()?);
        let end = Instant::now() + START_MAX;
        while !self.serves(place)? {
            let child = self.servers[place].as_mut().expect("started above");
            if let Some(status) = child.try_wait()? {
                self.servers[place] = None;
                return Err(io::Error::other(format!("server {place} has ended with {status}")));
            }
            if Instant::now() > end {
                self.kill(place)?;
                return Err(io::Error::other(format!(
                    "server {place} has not joined within {} s",
                    START_MAX.as_secs()
                )));
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
        Ok(())
    }

    /// Whether the server at `place` is a member that clients find.
    fn serves(&self, place: usize) -> io::Result<bool> {
        let Some(process) = self.servers[place].as_ref().map(Child::id) else { return Ok(false) };
        let records = VolumeDir::new(&self.store).read_server_records()?;
        Ok(records.iter().any(|record| record.pid == process)
            && self.members()?.values().any(|member| *member == place))
    }

    /// The places of the members, by their numbers in the cluster.
    fn members(&self) -> io::Result<HashMap<u64, usize>> {
        let map = self.runtime.block_on(self.registry.newest_map()).map_err(io::Error::other)?;
        let place = |pid: u32| self.servers.iter().position(|server| server.as_ref().is_some_and(|s| s.id() == pid));
        let members = map.iter().flat_map(|map| &map.members);
        Ok(members.filter_map(|(server, member)| Some((server.0, place(member.pid)?))).collect())
    }

    /// Stops all servers in good order, the last ones at once: nobody takes their shards.
    pub fn end(mut self) -> io::Result<()> {
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

    fn processes(&self) -> Vec<u32> {
        self.servers.iter().flatten().map(Child::id).collect()
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
