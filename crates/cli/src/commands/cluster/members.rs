//! The servers that have joined others in a volume, as the registry shows them.

use crate::commands::status;
use crate::identity::{self, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_cluster::address::RegistryAddress;
use varve_cluster::claim;
use varve_cluster::map::{Claim, ClusterMap, MapRefusal, MemberState, ServerId};
use varve_cluster::membership::{self, MembershipError};
use varve_cluster::registry::Registry;
use varve_env::clock::RealClock;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::VolumeDir;
use varve_types::{AckLevel, ShardId, VolumeId};

type OpenedRegistry = (RegistryAddress, Arc<dyn Registry>);

#[derive(Debug, Args)]
pub struct RegistryFlag {
    /// Where the servers of the volume find each other, as given to `varve serve --join` [default: the recorded one]
    #[arg(long, value_name = "store|URL")]
    registry: Option<RegistryAddress>,
}

impl RegistryFlag {
    /// The registry of the volume, and where it is. `None`: no server has ever joined.
    pub fn open(
        &self,
        volume: &VolumeDir,
        id: VolumeId,
    ) -> std::result::Result<Option<OpenedRegistry>, MembershipError> {
        let Some(address) = RegistryAddress::of_volume(volume, self.registry.as_ref())? else { return Ok(None) };
        let opened = address.open(volume, id)?;
        Ok(Some((address, opened)))
    }

    /// The registry of a volume whose servers are to change.
    fn open_for(&self, store: &Path, failed: impl Fn() -> Problem) -> Result<Arc<dyn Registry>> {
        let volume = VolumeDir::new(store);
        let settings = volume.read_settings().map_err(|error| failed().caused_by(&error))?;
        match self.open(&volume, settings.id) {
            Ok(Some((_, registry))) => Ok(registry),
            Ok(None) => Err(failed().because("no server has ever joined the volume")),
            Err(error) => Err(failed().caused_by(&error)),
        }
    }
}

/// A server in a volume.
#[derive(Debug, Args)]
pub struct Selected {
    /// Store of the volume (a directory, or a file:// URL of one), or the directory that it is mounted on
    #[arg(value_name = "STORE|DIR")]
    store: StoreUrl,
    /// Number of the server or of the claim, as `varve cluster status` shows it
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
    /// The level of its replies to changes.
    ack: &'static str,
    /// It began at another level than the volume has now, and replies at it until it is restarted.
    restart: bool,
}

#[derive(Serialize)]
struct Changed {
    store: PathBuf,
    server: String,
}

/// The servers of a volume, as its registry shows them.
#[derive(Default)]
pub struct ServersOutput {
    pub members: Vec<MemberOutput>,
    /// The server of each shard, in order; empty if the server is alone.
    pub owners: Vec<Option<String>>,
    pub claim: Option<ClaimOutput>,
    /// Null if no server has ever joined.
    pub registry: Option<String>,
}

/// A command that keeps servers away.
#[derive(Serialize)]
pub struct ClaimOutput {
    claim: String,
    command: String,
    host: String,
    pid: u32,
}

impl fmt::Display for ClaimOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClaimOutput { claim, command, host, pid } = self;
        writeln!(
            f,
            "claimed by `{command}`, process {pid} on host {host}: servers cannot join. When that process was killed, the \
             claim ends by itself with the next join; `varve cluster evict STORE {claim}` ends it by force"
        )
    }
}

impl MemberOutput {
    pub fn is_synced(&self) -> bool {
        self.ack == AckLevel::Synced.name()
    }
}

/// The newest map, or why it cannot be read.
pub fn of_volume(store: &Path, registry: &RegistryFlag, id: VolumeId) -> std::result::Result<ServersOutput, String> {
    let volume = VolumeDir::new(store);
    let opened = registry.open(&volume, id).map_err(|error| error.to_string())?;
    let Some((address, registry)) = opened else { return Ok(ServersOutput::default()) };
    let registry_name = Some(address.to_string());
    let map = block_on(registry.newest_map())?.map_err(|error| error.to_string())?;
    let without_servers = || ServersOutput { registry: registry_name.clone(), ..ServersOutput::default() };
    let Some(map) = map else { return Ok(without_servers()) };
    // Members of the map beside a server that is alone are dead, or on a host where its lock does not count.
    let is_alone = volume.read_server_record().ok().flatten().is_some_and(|record| !record.is_of_the_dead());
    if is_alone && !map.members.is_empty() {
        let living = block_on(claim::living_members(&*registry, &RealClock::new(), &map))?;
        if living.map_err(|error| error.to_string())?.is_empty() {
            return Ok(without_servers());
        }
    }
    let level = volume.ack_level();
    let member = |(server, member): (&ServerId, &varve_cluster::map::Member)| {
        let ack = level_of(&map, *server);
        MemberOutput {
            server: server.to_string(),
            host: member.host.clone(),
            pid: member.pid,
            state: member.state,
            shards: map.shards_of(*server).count(),
            ack: ack.name(),
            restart: needs_restart(&map, ack, level),
        }
    };
    let owners = map.shards.iter().map(|shard| Some(shard.owner?.to_string())).collect();
    let members = map.members.iter().map(member).collect();
    let claim = map.claim.clone().map(|Claim { holder, purpose, host, pid }| ClaimOutput {
        claim: holder.to_string(),
        command: purpose,
        host,
        pid,
    });
    Ok(ServersOutput { members, owners, claim, registry: registry_name })
}

/// The newest map, for a command that needs it only for what it says. `None`: no server has ever joined, or it cannot be read.
pub fn newest_map(volume: &VolumeDir, id: VolumeId) -> Option<ClusterMap> {
    let (_, registry) = RegistryFlag { registry: None }.open(volume, id).ok()??;
    block_on(registry.newest_map()).ok()?.ok()?
}

/// The level at which a member replies.
pub fn level_of(map: &ClusterMap, server: ServerId) -> AckLevel {
    if map.is_synced(server) { AckLevel::Synced } else { AckLevel::Appended }
}

/// Whether a member replies at another level than the volume's until it is restarted. While servers of several hosts serve
/// the volume, a restart changes nothing.
pub fn needs_restart(map: &ClusterMap, replies: AckLevel, level: AckLevel) -> bool {
    replies != level && !(map.synced.is_some() && replies == AckLevel::Synced)
}

/// A shard that another server has now.
#[derive(Serialize)]
pub struct MovedToServer {
    store: PathBuf,
    shard: u16,
    from: String,
    to: String,
    /// From the command until the map named the new owner. Calls for the shard waited for a part of it.
    seconds: f64,
}

impl fmt::Display for MovedToServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MovedToServer { shard, from, to, seconds, .. } = self;
        writeln!(f, "moved shard {shard} from server {from} to server {to} in {seconds:.2} s")
    }
}

/// Has a shard moved to another of the servers that have joined.
pub fn move_shard(
    place: &StoreUrl,
    registry: &RegistryFlag,
    shard: ShardId,
    to: ServerId,
    failed: impl Fn(&Path) -> Problem,
) -> Result<MovedToServer> {
    let store = status::find(place.directory())?;
    identity::take(&store, Work::Store, || failed(&store))?;
    let registry = registry.open_for(&store, || failed(&store))?;
    let clock = RealClock::new();
    let moved = block_on(membership::move_shard(&*registry, &clock, shard, to));
    let moved = moved.map_err(|why| failed(&store).because(why))?.map_err(|error| failed(&store).caused_by(&error))?;
    let (from, to, seconds) = (moved.from.to_string(), to.to_string(), moved.took.as_secs_f64());
    Ok(MovedToServer { store, shard: shard.0, from, to, seconds })
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
        let registry = self.registry.open_for(&store, || self.failed(verb, &store))?;
        Ok((store, registry))
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
    let mut lines =
        format!("{:>16} {:>14} {:>8} {:>9} {:>6} {:>8}\n", "server", "host", "pid", "state", "shards", "ack");
    for MemberOutput { server, host, pid, state, shards, ack, .. } in members {
        let state = match state {
            MemberState::Active => "active",
            MemberState::Draining => "draining",
        };
        lines += &format!("{server:>16} {host:>14} {pid:>8} {state:>9} {shards:>6} {ack:>8}\n");
    }
    for MemberOutput { server, ack, .. } in members.iter().filter(|member| member.restart) {
        lines += &format!("restart server {server}: it acknowledges changes when {ack}, not at the volume's level\n");
    }
    lines + "\n"
}
