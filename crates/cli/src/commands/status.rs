//! `varve status PLACE`: shows a volume, its server, and the state of its shards.

use crate::client::{Approach, ClientFlags};
use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::{Bytes, Rounded, Span};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve_client::{ClientConfig, Failure, FileSystem, Purpose};
use varve_env::reserve;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{ServerRecord, VolumeDir, WorkerRecord};
use varve_types::{Errno, ShardId, VolumeSettings};

/// A server that takes longer to reply is considered failed.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

const FULL: &str = "the store is full: writes fail with ENOSPC until files are removed, from the volume or beside it, \
                    or the store is enlarged; other calls work";

/// Show a volume, its server, and the state of its shards
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store of the volume (a directory, or a file:// URL of one), or the directory that it is mounted on
    #[arg(value_name = "STORE|DIR")]
    store: StoreUrl,
    #[command(flatten)]
    client: ClientFlags,
    /// Show every shard
    #[arg(long)]
    shards: bool,
    /// Treat a volume without a server as a problem: exit code 3
    #[arg(long)]
    require_server: bool,
}

#[derive(Serialize)]
struct StatusOutput {
    store: PathBuf,
    volume: VolumeOutput,
    /// Whether the store is full. Writes that need space then fail.
    full: bool,
    /// Null if no server runs.
    server: Option<ServerStatus>,
}

#[derive(Serialize)]
struct VolumeOutput {
    id: String,
    name: String,
    shards: u16,
    split_threshold: u64,
    inline_limit_bytes: u32,
    sync_interval_ms: u64,
    /// The acknowledgement level for servers that start now.
    ack: &'static str,
    owner_uid: u32,
}

#[derive(Serialize)]
struct ServerStatus {
    host: String,
    pid: u32,
    /// Host and process number in words.
    #[serde(skip)]
    process: String,
    embedded: bool,
    workers: Vec<WorkerOutput>,
    open_files: u64,
    /// Null if it answers.
    problem: Option<String>,
    shards: Vec<ShardOutput>,
}

#[derive(Serialize)]
struct WorkerOutput {
    unix: Option<String>,
    tcp: Option<String>,
    listeners: Vec<Listener>,
}

/// An address of a worker, and the protection against other listeners and clients there.
#[derive(Serialize)]
struct Listener {
    address: String,
    transport: &'static str,
    protection: &'static str,
}

impl WorkerOutput {
    fn of(record: WorkerRecord) -> WorkerOutput {
        let listener =
            |address: &String, transport, protection| Listener { address: address.clone(), transport, protection };
        let unix = record.unix.iter().map(|address| listener(address, "unix", "peer's user and key checked"));
        let tcp = record.tcp.iter().map(|address| listener(address, "tcp", "key checked, encrypted"));
        let listeners = unix.chain(tcp).collect();
        WorkerOutput { unix: record.unix, tcp: record.tcp, listeners }
    }
}

#[derive(Serialize)]
struct ShardOutput {
    shard: u16,
    epoch: u64,
    partitions_loaded: u64,
    cache_bytes: u64,
    log_bytes_unsynced: u64,
    intents: u64,
    orphans: u64,
    /// Why the shard does not answer; null if it does.
    problem: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = find(arguments.store.directory())?;
    let volume = VolumeDir::new(&store);
    let failed = || Problem::new(format!("cannot read the status of {}", store.display()));
    let approach = arguments.client.read()?;
    identity::take(&store, Work::Store, failed)?;
    let settings = volume.read_settings().map_err(|error| failed().caused_by(&error))?;
    let records = volume.read_server_records().map_err(|error| failed().caused_by(&error))?;
    // Of several servers, the newest.
    let record = records.into_iter().next();
    if let Some(record) = &record {
        record.check_store(&volume).map_err(|error| failed().caused_by(&error))?;
    }
    let server = record.map(|record| ask(&volume, &settings, record, &approach)).transpose()?;
    // A store that does not report its space counts as not full.
    let full = rustix::fs::statvfs(volume.root()).is_ok_and(|store| reserve::room(&volume.reserve(), &store) == 0);
    let degraded = full || server.as_ref().map_or(arguments.require_server, |server| !server.problems().is_empty());
    let status = StatusOutput {
        volume: VolumeOutput {
            id: settings.id.to_string(),
            name: settings.name,
            shards: settings.shards.get(),
            split_threshold: settings.split_threshold,
            inline_limit_bytes: settings.inline_limit,
            sync_interval_ms: settings.sync_interval.as_millis() as u64,
            ack: volume.ack_level().name(),
            owner_uid: settings.owner_uid,
        },
        store,
        full,
        server,
    };
    output.result("status", &status, |status| text(status, arguments.shards))?;
    Ok(if degraded { Exit::Degraded } else { Exit::Done })
}

/// The store at `place`, or the store of the volume mounted there.
pub(super) fn find(place: &Path) -> Result<PathBuf> {
    let mounted = varve_fuse::source_of(place).ok().flatten();
    if let Some(source) = mounted.as_ref().filter(|source| !source.is_absolute()) {
        let what = format!("cannot find out which volume is mounted at {}", place.display());
        let why = format!("it was mounted with fsname={}, which is not its store", source.display());
        return Err(Problem::new(what).because(why).next("Give the directory of the store."));
    }
    std::path::absolute(mounted.as_deref().unwrap_or(place))
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))
}

impl ServerStatus {
    /// Reasons why it cannot answer all requests.
    fn problems(&self) -> Vec<String> {
        if let Some(problem) = &self.problem {
            return vec![format!("it does not answer: {problem}")];
        }
        // Each text names its shard.
        self.shards.iter().filter_map(|shard| shard.problem.clone()).collect()
    }
}

impl ShardOutput {
    fn closed(shard: ShardId, problem: String) -> ShardOutput {
        ShardOutput {
            shard: shard.0,
            epoch: 0,
            partitions_loaded: 0,
            cache_bytes: 0,
            log_bytes_unsynced: 0,
            intents: 0,
            orphans: 0,
            problem: Some(problem),
        }
    }
}

/// The recorded server, with the status of its shards from the server.
fn ask(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    record: ServerRecord,
    approach: &Approach,
) -> Result<ServerStatus> {
    let mut config = ClientConfig::new(volume.clone());
    approach.apply(&mut config);
    let process = record.process();
    let workers = record.workers.into_iter().map(WorkerOutput::of).collect();
    let ((shards, open_files), problem) = match shards(config, settings) {
        Ok(reported) => (reported, None),
        Err(failure) => (Default::default(), Some(failure.to_string())),
    };
    let (host, pid, embedded) = (record.host, record.pid, record.embedded);
    Ok(ServerStatus { host, pid, process, embedded, workers, open_files, problem, shards })
}

/// The status of all shards, and the number of files open at the server: the sum over the shards that answer.
fn shards(mut config: ClientConfig, settings: &VolumeSettings) -> varve_client::Result<(Vec<ShardOutput>, u64)> {
    config.purpose = Purpose::Observe;
    config.deadline = ANSWER_DEADLINE;
    config.read_only = true;
    let file_system = FileSystem::connect(config)?;
    let mut open_files = 0;
    let asked = settings.shards.all().map(|shard| {
        let status = match varve_client::block_on(file_system.shard_status(shard)) {
            Ok(status) => status,
            // The server answers, but this shard does not.
            Err(Failure {
                errno: Errno::EIO | Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS,
                message: Some(problem),
                ..
            }) => {
                return Ok(ShardOutput::closed(shard, problem.into()));
            }
            Err(failure) => return Err(failure),
        };
        open_files += status.open_files;
        Ok(ShardOutput {
            shard: status.shard,
            epoch: status.epoch,
            partitions_loaded: status.partitions_loaded,
            cache_bytes: status.cache_bytes,
            log_bytes_unsynced: status.log_bytes_unsynced,
            intents: status.intents,
            orphans: status.orphans,
            problem: None,
        })
    });
    let shards = asked.collect::<varve_client::Result<Vec<ShardOutput>>>()?;
    varve_client::block_on(file_system.shutdown())?;
    Ok((shards, open_files))
}

fn text(status: &StatusOutput, each_shard: bool) -> String {
    let volume = &status.volume;
    let mut rows = vec![
        ("volume", volume.name.clone()),
        ("id", volume.id.clone()),
        ("store", status.store.display().to_string()),
        ("owner", format!("user {}", volume.owner_uid)),
        ("shards", volume.shards.to_string()),
        ("split threshold", format!("{} entries", volume.split_threshold)),
        ("inline limit", Bytes(volume.inline_limit_bytes.into()).to_string()),
        ("sync interval", Span(Duration::from_millis(volume.sync_interval_ms)).to_string()),
        ("acknowledged when", volume.ack.to_owned()),
    ];
    let full = status.full.then(|| ("problem", FULL.to_owned()));
    let Some(server) = &status.server else {
        rows.push(("server", "none".to_owned()));
        rows.extend(full);
        return columns(&rows);
    };
    let kind = if server.embedded { "a mount" } else { "a server" };
    let state = if server.problem.is_some() { "does not answer: " } else { "" };
    rows.push(("server", format!("{state}{kind}, {} on {}", server.process, server.host)));
    for worker in &server.workers {
        let place = |listener: &Listener| format!("{} ({})", listener.address, listener.protection);
        let places = worker.listeners.iter().map(place).collect::<Vec<_>>();
        rows.push(("worker", places.join(", ")));
    }
    rows.extend(full);
    rows.extend(server.problems().into_iter().map(|problem| ("problem", problem)));
    if server.problem.is_some() {
        return columns(&rows);
    }
    let sum = |count: fn(&ShardOutput) -> u64| server.shards.iter().map(count).sum::<u64>();
    rows.extend([
        ("partitions loaded", sum(|shard| shard.partitions_loaded).to_string()),
        ("cached", Rounded(sum(|shard| shard.cache_bytes)).to_string()),
        ("open files", server.open_files.to_string()),
        ("not yet fsynced", format!("{} of log", Rounded(sum(|shard| shard.log_bytes_unsynced)))),
        ("intents", sum(|shard| shard.intents).to_string()),
        ("orphans", sum(|shard| shard.orphans).to_string()),
    ]);
    let table = if each_shard { shard_table(&server.shards) } else { String::new() };
    columns(&rows) + &table
}

fn shard_table(shards: &[ShardOutput]) -> String {
    let mut lines = format!(
        "\n{:>5} {:>6} {:>10} {:>12} {:>10} {:>7} {:>7}\n",
        "shard", "epoch", "partitions", "cached B", "unsynced B", "intents", "orphans"
    );
    for shard in shards {
        lines += &format!(
            "{:>5} {:>6} {:>10} {:>12} {:>10} {:>7} {:>7}\n",
            shard.shard,
            shard.epoch,
            shard.partitions_loaded,
            shard.cache_bytes,
            shard.log_bytes_unsynced,
            shard.intents,
            shard.orphans
        );
    }
    lines
}
