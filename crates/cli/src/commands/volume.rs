//! `varve volume set STORE`: changes a setting of a volume.

use crate::commands::cluster::members;
use crate::commands::status;
use crate::identity::{self, Work};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;
use varve_cluster::map::{ClusterMap, ServerId};
use varve_env::printable::printable;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{ServerRecord, VolumeDir};
use varve_types::AckLevel;

/// Change the settings of a volume
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Change settings for the servers that start from here on
    ///
    /// Servers and mounts that run keep the former settings until they are restarted; the command names them. Servers that
    /// have joined can be restarted one after the other.
    Set {
        /// Store of the volume (a directory, or a file:// URL of one), or the directory that it is mounted on
        #[arg(value_name = "STORE|DIR")]
        store: StoreUrl,
        /// Meaning of a reply to a change: appended (in the log; survives the server's death) or synced (fsynced;
        /// survives a power loss)
        #[arg(long, value_name = "LEVEL")]
        ack: AckLevel,
    },
}

#[derive(Serialize)]
struct VolumeChanged {
    store: PathBuf,
    ack: &'static str,
    /// Processes that keep the former settings until they are restarted.
    restart: Vec<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let Command::Set { store, ack } = &arguments.command;
    let store = status::find(store.directory())?;
    let failed = || Problem::new(format!("cannot change the settings of {}", store.display()));
    identity::take(&store, Work::Store, failed)?;
    let volume = VolumeDir::new(&store);
    let settings = volume.read_settings().map_err(|error| failed().caused_by(&error))?;
    let former = volume.ack_level();
    if former != *ack {
        volume.set_ack_level(&settings, *ack).map_err(|error| failed().caused_by(&error))?;
    }
    let map = members::newest_map(&volume, settings.id);
    // A record that cannot be read is that of an earlier server.
    let running = volume.read_server_records().unwrap_or_default();
    let running = running
        .into_iter()
        .filter(|record| !record.is_of_the_dead() && needs_restart(record, map.as_ref(), former, *ack));
    let process = |record: ServerRecord| format!("{} on host {}", record.process(), printable(&record.host));
    let changed = VolumeChanged { store: store.clone(), ack: ack.name(), restart: running.map(process).collect() };
    output.result("volume set", &changed, text)?;
    Ok(Exit::Done)
}

/// Whether a server replies at another level than the new one until it is restarted. `former`: the level of the volume, for
/// a server that has published none.
fn needs_restart(record: &ServerRecord, map: Option<&ClusterMap>, former: AckLevel, new: AckLevel) -> bool {
    let number: Option<ServerId> = record.number.as_ref().and_then(|number| number.parse().ok());
    match map.zip(number).filter(|(map, server)| map.members.contains_key(server)) {
        Some((map, server)) => members::needs_restart(map, members::level_of(map, server), new),
        None => record.ack.as_ref().and_then(|ack| ack.parse().ok()).unwrap_or(former) != new,
    }
}

fn text(changed: &VolumeChanged) -> String {
    let mut text = format!("acknowledgement level: {}\n", changed.ack);
    for process in &changed.restart {
        text += &format!("{process} keeps the former level until it is restarted\n");
    }
    text
}
