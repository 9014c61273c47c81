//! `varve key …`: the keys of hosts, one per host, each of which can be revoked.

use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use varve_env::identity::as_process_user;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{HostKey, KeyFile, VolumeDir};

/// List, add and revoke the keys of hosts
///
/// A client proves to a server that it holds a key. The volume's own key lies in the store and serves every host that
/// can read it there. A host needs a key of its own if the store's server squashes root, or if its access is to be
/// revocable on its own. It gives that key with --key-file FILE. A host that holds any key of a volume is trusted for
/// every user: its root can read and change everything in the volume.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the keys, without their secrets
    List {
        /// Store of the volume: a directory, or a file:// URL of one
        store: StoreUrl,
    },
    /// Make a key and write it to a file, to be copied to the host
    Add {
        /// Store of the volume: a directory, or a file:// URL of one
        store: StoreUrl,
        /// Name of the key, such as the host's
        name: String,
        /// File to write, mode 0600; it must not exist yet
        #[arg(long, short, value_name = "FILE")]
        out: PathBuf,
    },
    /// Revoke a key: servers end its connections within 5 s and its sessions within 10 s
    Revoke {
        /// Store of the volume: a directory, or a file:// URL of one
        store: StoreUrl,
        /// Name of the key, or its number
        name: String,
    },
}

#[derive(Serialize)]
struct Key {
    id: String,
    name: String,
    created: String,
}

impl From<HostKey> for Key {
    fn from(key: HostKey) -> Key {
        Key { id: format!("{:016x}", key.id), name: key.name, created: key.created }
    }
}

#[derive(Serialize)]
struct Listed {
    store: PathBuf,
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct Changed {
    store: PathBuf,
    #[serde(flatten)]
    key: Key,
    /// The file with the new key.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.command {
        Command::List { store } => {
            let (store, volume) = open(store)?;
            let keys = volume.host_keys().map_err(|error| failed(&error, "cannot list the keys of", &store))?;
            let listed = Listed { store, keys: keys.into_iter().map(Key::from).collect() };
            output.result("key list", &listed, list)?;
        }
        Command::Add { store, name, out } => {
            let (store, volume) = open(store)?;
            let changed = add(&volume, store, name, out)?;
            output.result("key add", &changed, |changed| {
                let file = changed.file.as_deref().unwrap_or(Path::new(""));
                format!(
                    "key {} ({}) is in {}: copy it to its host, where `--key-file` names it, and keep it from others\n",
                    changed.key.name,
                    changed.key.id,
                    file.display()
                )
            })?;
        }
        Command::Revoke { store, name } => {
            let (store, volume) = open(store)?;
            let revoked = volume.revoke_host_key(name);
            let key = revoked.map_err(|error| failed(&error, "cannot revoke a key of", &store))?.into();
            output.result("key revoke", &Changed { store, key, file: None }, |changed| {
                format!("key {} ({}) is revoked\n", changed.key.name, changed.key.id)
            })?;
        }
    }
    Ok(Exit::Done)
}

fn open(store: &StoreUrl) -> Result<(PathBuf, VolumeDir)> {
    let store = std::path::absolute(store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let failed = || Problem::new(format!("cannot use the keys of {}", store.display()));
    identity::take(&store, Work::Key, failed)?;
    let volume = VolumeDir::new(&store);
    volume.read_settings().map_err(|error| failed().caused_by(&error))?;
    Ok((store, volume))
}

fn add(volume: &VolumeDir, store: PathBuf, name: &str, out: &Path) -> Result<Changed> {
    let what = "cannot add a key to";
    let settings = volume.read_settings().map_err(|error| failed(&io::Error::other(error), what, &store))?;
    let file = std::path::absolute(out).map_err(|error| failed(&error, what, &store))?;
    // The file belongs to the starting user, and the key to the store's owner.
    if as_process_user(|| file.symlink_metadata()).is_ok() {
        return Err(Problem::new(format!("{what} {}", store.display()))
            .because(format!("{} is there already", file.display()))
            .next("Choose another file with --out, or remove that one."));
    }
    let key = volume.add_host_key(name).map_err(|error| failed(&error, what, &store))?;
    let for_host = KeyFile { volume: settings.id, key: key.clone() };
    if let Err(error) = as_process_user(|| for_host.write_new(&file)) {
        // A key that no host has must not stay valid.
        let _ = volume.revoke_host_key(name);
        return Err(failed(&error, what, &store));
    }
    Ok(Changed { store, key: key.into(), file: Some(file) })
}

fn failed(error: &io::Error, what: &str, store: &Path) -> Problem {
    let problem = Problem::new(format!("{what} {}", store.display())).because(error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => problem.next("Do it as the volume's owner or as root."),
        _ => problem,
    }
}

fn list(listed: &Listed) -> String {
    if listed.keys.is_empty() {
        return "no keys of hosts: `varve key add STORE NAME --out FILE` makes one\n".to_owned();
    }
    let rows: Vec<_> =
        listed.keys.iter().map(|key| (key.name.as_str(), format!("{}  {}", key.id, key.created))).collect();
    columns(&rows)
}
