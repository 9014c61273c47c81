//! `varve cluster …`: shows the servers of a volume and which worker has each shard, moves shards, and removes servers.

pub mod members;

use self::members::{ClaimOutput, MemberOutput, RegistryFlag, ServersOutput};
use super::status;
use crate::client::{Approach, ClientFlags};
use crate::identity::{self, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use varve_client::{ClientConfig, Failure, FileSystem, Purpose};
use varve_cluster::map::ServerId;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::VolumeDir;
use varve_proto::{ShardLocation, ShardPhase};
use varve_types::{AckLevel, ShardId};

/// How long the command waits for the server: a move flushes tables first, and the server gives up after 15 s.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Show a volume's servers and shards; move shards, and remove servers
///
/// A server has several workers, each with shards of the volume. A moved shard is away for less than half a second;
/// calls for it wait meanwhile, and none fails. The server assigns the shards anew when it starts. The commands prove
/// the volume's own key, and work with `varve serve` and with the server inside a mount.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the servers that have joined, and the worker and the state of every shard
    Status {
        /// Store of the volume (a directory, or a file:// URL of one), or the directory that it is mounted on
        #[arg(value_name = "STORE|DIR")]
        store: StoreUrl,
        #[command(flatten)]
        registry: RegistryFlag,
        #[command(flatten)]
        client: ClientFlags,
    },
    /// Move a shard to another worker or server while it is in use
    ///
    /// Of servers that have joined, name the server. While shards stay where a command has moved them, the servers move
    /// none by themselves; they divide all anew when a server joins, leaves or is drained.
    Move {
        /// Store of the volume (a directory, or a file:// URL of one), or the directory that it is mounted on
        #[arg(value_name = "STORE|DIR")]
        store: StoreUrl,
        /// Number of the shard, counted from 0
        shard: u16,
        /// The worker that gets it, counted from 0; or the server that gets it, if servers have joined
        #[arg(value_name = "WORKER|SERVER")]
        target: MoveTarget,
        #[command(flatten)]
        registry: RegistryFlag,
        #[command(flatten)]
        client: ClientFlags,
    },
    /// Have a server that has joined others give its shards away, and take none
    Drain {
        #[command(flatten)]
        member: members::Selected,
    },
    /// Remove a server from the others, alive or not; it then ends, and its shards get other owners. Also ends the claim of
    /// a command such as `varve fsck`
    Evict {
        #[command(flatten)]
        member: members::Selected,
    },
}

/// A worker of the one server, or one of several servers.
#[derive(Clone, Copy, Debug)]
enum MoveTarget {
    Worker(u16),
    Server(ServerId),
}

impl FromStr for MoveTarget {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<MoveTarget, String> {
        let server = text.parse().map(MoveTarget::Server);
        let target = server.or_else(|_| text.parse().map(MoveTarget::Worker));
        target.map_err(|_| "give the number of a worker, or the 16 hexadecimal digits of a server".to_owned())
    }
}

impl fmt::Display for MoveTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveTarget::Worker(worker) => write!(f, "worker {worker}"),
            MoveTarget::Server(server) => write!(f, "server {server}"),
        }
    }
}

#[derive(Serialize)]
struct ClusterStatus {
    store: PathBuf,
    /// Where the servers find each other. Null if no server has ever joined.
    registry: Option<String>,
    /// The lowest level at which a running server replies to changes, or that of the volume if none runs.
    ack: &'static str,
    /// Empty: the server is alone.
    servers: Vec<MemberOutput>,
    /// A command that keeps servers away. Then there are no servers, and no shard is open.
    claim: Option<ClaimOutput>,
    shards: Vec<ShardPlace>,
}

#[derive(Serialize)]
struct ShardPlace {
    shard: u16,
    /// The number of the server; null if it is alone, or if the shard has no owner at this moment.
    server: Option<String>,
    /// The worker of that server.
    worker: u16,
    state: &'static str,
    /// How long it has been in this state.
    since_ms: u64,
    names_loaded: u64,
    partitions_loaded: u64,
    /// Null if there is none.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Moved {
    store: PathBuf,
    shard: u16,
    from: u16,
    to: u16,
    /// How long calls for the shard had to wait.
    seconds: f64,
}

impl ShardPlace {
    fn of(location: ShardLocation) -> ShardPlace {
        ShardPlace {
            shard: location.shard,
            server: None,
            worker: location.worker,
            state: name(location.phase),
            since_ms: location.since_ms,
            names_loaded: location.names_loaded,
            partitions_loaded: location.partitions_loaded,
            problem: Some(location.problem).filter(|problem| !problem.is_empty()),
        }
    }
}

fn name(phase: ShardPhase) -> &'static str {
    match phase {
        ShardPhase::Waiting => "waiting",
        ShardPhase::Opening => "opening",
        ShardPhase::Open => "open",
        ShardPhase::ReadOnly => "read-only",
        ShardPhase::Refused => "refused",
        ShardPhase::Failed => "failed",
        ShardPhase::MovingAway => "moving away",
        ShardPhase::Released => "released",
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moved { shard, from, to, seconds, .. } = self;
        match from == to {
            true => writeln!(f, "shard {shard} is at worker {to} already"),
            false => writeln!(f, "moved shard {shard} from worker {from} to worker {to} in {seconds:.2} s"),
        }
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.command {
        Command::Drain { member } => member.drain(output),
        Command::Evict { member } => member.evict(output),
        Command::Status { store, registry, client } => {
            let failed = |store: &Path| Problem::new(format!("cannot show the shards of {}", store.display()));
            let found = status::find(store.directory())?;
            identity::take(&found, Work::Store, || failed(&found))?;
            let settings = VolumeDir::new(&found).read_settings();
            let settings = settings.map_err(|error| failed(&found).caused_by(&error))?;
            let servers = members::of_volume(&found, registry, settings.id);
            let servers = servers.map_err(|why| failed(&found).because(why))?;
            let (store, shards) = match servers.claim {
                Some(_) => (found, Vec::new()),
                None => {
                    let (store, server) = connect(store, client, Purpose::Observe, failed)?;
                    let mut shards = locations(&server).map_err(|failure| failed(&store).because(failure))?;
                    shards.iter_mut().zip(&servers.owners).for_each(|(place, owner)| place.server.clone_from(owner));
                    (store, shards)
                }
            };
            let degraded = shards.iter().any(|shard| shard.problem.is_some());
            let ServersOutput { members, claim, registry, .. } = servers;
            let ack = lowest_level(&VolumeDir::new(&store), &members).name();
            let status = ClusterStatus { store, registry, ack, servers: members, claim, shards };
            output.result("cluster status", &status, table)?;
            Ok(if degraded { Exit::Degraded } else { Exit::Done })
        }
        Command::Move { store, shard, target, registry, client } => {
            let failed =
                |store: &Path| Problem::new(format!("cannot move shard {shard} of {} to {target}", store.display()));
            let worker = match target {
                MoveTarget::Worker(worker) => worker,
                MoveTarget::Server(server) => {
                    let moved = members::move_shard(store, registry, ShardId(*shard), *server, failed)?;
                    output.result("cluster move", &moved, members::MovedToServer::to_string)?;
                    return Ok(Exit::Done);
                }
            };
            let (store, server) = connect(store, client, Purpose::Administer, failed)?;
            let moved = varve_client::block_on(server.move_shard(ShardId(*shard), *worker));
            // The reason says more than the errno.
            let why = |failure: Failure| failure.message.map_or(failure.errno.to_string(), String::from);
            let (from, away) = moved.map_err(|failure| failed(&store).because(why(failure)))?;
            let moved = Moved { store, shard: *shard, from, to: *worker, seconds: away.as_secs_f64() };
            output.result("cluster move", &moved, Moved::to_string)?;
            Ok(Exit::Done)
        }
    }
}

/// The lowest level at which a server of the volume replies.
fn lowest_level(volume: &VolumeDir, members: &[MemberOutput]) -> AckLevel {
    match members {
        [] => {
            let alone = volume.read_server_record().ok().flatten().filter(|record| !record.is_of_the_dead());
            let began_at = alone.and_then(|record| record.ack?.parse().ok());
            began_at.unwrap_or_else(|| volume.ack_level())
        }
        _ if members.iter().all(MemberOutput::is_synced) => AckLevel::Synced,
        _ => AckLevel::Appended,
    }
}

fn connect(
    place: &StoreUrl,
    flags: &ClientFlags,
    purpose: Purpose,
    failed: impl Fn(&Path) -> Problem,
) -> Result<(PathBuf, Arc<FileSystem>)> {
    let store = status::find(place.directory())?;
    let approach: Approach = flags.read()?;
    identity::take(&store, Work::Store, || failed(&store))?;
    let mut config = ClientConfig::new(VolumeDir::new(&store));
    approach.apply(&mut config);
    (config.purpose, config.deadline, config.read_only) = (purpose, ANSWER_DEADLINE, true);
    match FileSystem::connect(config) {
        Ok(server) => Ok((store, server)),
        Err(failure) => Err(failed(&store).because(failure)),
    }
}

fn locations(server: &FileSystem) -> std::result::Result<Vec<ShardPlace>, Failure> {
    let shards = server.settings().shards.all();
    shards.map(|shard| varve_client::block_on(server.locate_shard(shard)).map(ShardPlace::of)).collect()
}

fn table(status: &ClusterStatus) -> String {
    if let Some(claim) = &status.claim {
        return claim.to_string();
    }
    let mut lines = format!("changes are acknowledged when {}\n\n", status.ack);
    lines += &members::table(&status.servers);
    // A server that is alone has no number that an administrator uses.
    let server = |of: &str| if status.servers.is_empty() { String::new() } else { format!("{of:>16} ") };
    lines += &format!(
        "{:>5} {}{:>6} {:>11} {:>12} {:>10} {:>12}\n",
        "shard",
        server("server"),
        "worker",
        "state",
        "since",
        "partitions",
        "names"
    );
    for place in &status.shards {
        let since = Span(Duration::from_secs(place.since_ms / 1000)).to_string();
        lines += &format!(
            "{:>5} {}{:>6} {:>11} {:>12} {:>10} {:>12}\n",
            place.shard,
            server(place.server.as_deref().unwrap_or("-")),
            place.worker,
            place.state,
            since,
            place.partitions_loaded,
            place.names_loaded
        );
    }
    let problems = status.shards.iter().filter_map(|place| place.problem.as_ref());
    lines + &problems.map(|problem| format!("problem: {problem}\n")).collect::<String>()
}
