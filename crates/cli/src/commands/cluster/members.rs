//! The servers that have joined others in a volume, as the registry shows them.

use crate::commands::status;
use crate::identity::{self, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_cluster::address::RegistryAddress;
use varve_cluster::map::{MapRefusal, MemberState, ServerId};
use varve_cluster::membership::{self, MembershipError};
use varve_cluster::registry::Registry;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeId;

#[derive(Debug, Args)]
pub struct RegistryFlag {
    /// Where the servers of the volume find each other, as given to `varve serve --join`
    #[arg(long, value_name = "store|URL", default_value_t = RegistryAddress::Store)]
    registry: RegistryAddress,
}

/// A server in a volume.
#[derive(Debug, Args)]
pub struct Selected {
    /// Store of the volume (a directory, or a file:// URL of one), or the directory that it is mounted on
    #[arg(value_name = "STORE|DIR")]
    store: StoreUrl,
    /// Number of the server, as `varve cluster status` shows it
    server: ServerId,
    #[command(flatten)]
    registry: RegistryFlag,
}

#[derive(Serialize)]
pub struct MemberOutput {
    server: String,
    host: String,
    pid: u32,
    state: MemberState,
    shards: usize,
}

#[derive(Serialize)]
struct Changed {
    store: PathBuf,
    server: String,
}

/// The servers that have joined others in a volume.
#[derive(Default)]
pub struct Members {
    pub servers: Vec<MemberOutput>,
    /// The server of each shard, in order; empty if the server is alone.
    pub owners: Vec<Option<String>>,
}

/// The members in the newest map, or why there is none.
pub fn of_volume(store: &Path, registry: &RegistryFlag, volume: VolumeId) -> std::result::Result<Members, String> {
    let found = registry.registry.open(&VolumeDir::new(store), volume).map_err(|error| error.to_string())?;
    let map = block_on(found.newest_map())?.map_err(|error| error.to_string())?;
    let Some(map) = map else { return Ok(Members::default()) };
    let member = |(server, member): (&ServerId, &varve_cluster::map::Member)| MemberOutput {
        server: server.to_string(),
        host: member.host.clone(),
        pid: member.pid,
        state: member.state,
        shards: map.shards_of(*server).count(),
    };
    let servers = map.members.iter().map(member).collect();
    let owners = map.shards.iter().map(|shard| Some(shard.owner?.to_string())).collect();
    Ok(Members { servers, owners })
}

impl Selected {
    /// The server gives its shards away; it goes on as a member without shards until it is stopped.
    pub fn drain(&self, output: &Output) -> Result<Exit> {
        let (store, registry) = self.open("drain")?;
        let drained = membership::change(&*registry, |map| {
            Ok::<_, MembershipError>(map.ok_or(MapRefusal::NotAMember(self.server))?.draining(self.server)?)
        });
        self.done("drain", block_on(drained).map(|done| done.map(drop)), store, output)
    }

    pub fn evict(&self, output: &Output) -> Result<Exit> {
        let (store, registry) = self.open("evict")?;
        self.done("evict", block_on(membership::evict(&*registry, self.server)), store, output)
    }

    fn failed(&self, verb: &str, store: &Path) -> Problem {
        Problem::new(format!("cannot {verb} server {} of {}", self.server, store.display()))
    }

    fn open(&self, verb: &str) -> Result<(PathBuf, Arc<dyn Registry>)> {
        let store = status::find(self.store.directory())?;
        identity::take(&store, Work::Store, || self.failed(verb, &store))?;
        let volume = VolumeDir::new(&store);
        let settings = volume.read_settings().map_err(|error| self.failed(verb, &store).caused_by(&error))?;
        let registry = self.registry.registry.open(&volume, settings.id);
        registry.map(|registry| (store.clone(), registry)).map_err(|error| self.failed(verb, &store).caused_by(&error))
    }

    fn done(
        &self,
        verb: &str,
        done: std::result::Result<std::result::Result<(), MembershipError>, String>,
        store: PathBuf,
        output: &Output,
    ) -> Result<Exit> {
        match done {
            Err(why) => Err(self.failed(verb, &store).because(why)),
            Ok(Err(error)) => Err(self.failed(verb, &store).caused_by(&error)),
            Ok(Ok(())) => {
                let done = Changed { store, server: self.server.to_string() };
                let text = match verb {
                    "drain" => format!("server {} gives its shards away\n", self.server),
                    _ => format!("removed server {}\n", self.server),
                };
                output.result(&format!("cluster {verb}"), &done, |_| text.clone())?;
                Ok(Exit::Done)
            }
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> std::result::Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|error| error.to_string())?.block_on(work))
}

/// The servers, one a line; nothing if the server is alone.
pub fn table(members: &[MemberOutput]) -> String {
    if members.is_empty() {
        return String::new();
    }
    let mut lines = format!("{:>16} {:>14} {:>8} {:>9} {:>6}\n", "server", "host", "pid", "state", "shards");
    for MemberOutput { server, host, pid, state, shards } in members {
        let state = match state {
            MemberState::Active => "active",
            MemberState::Draining => "draining",
        };
        lines += &format!("{server:>16} {host:>14} {pid:>8} {state:>9} {shards:>6}\n");
    }
    lines + "\n"
}
