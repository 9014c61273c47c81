//! `varve doctor STORE`: checks what a store must be able to do.

use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use varve_env::clock::RealClock;
use varve_env::disk::{CLOCK_SKEW_S_MAX, Exclusive, store_clock_ahead_s};
use varve_env::store_path::StorePath;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{VolumeDir, VolumeFileError};

/// Check that a directory can be the store of a volume; for a volume, also correct what it records of its store
///
/// Two processes race for 1,000 names, to find the primitive with which a server creates a file that no other process
/// creates too. For a volume that is not in use, the primitive is recorded in its volume file; its servers use the
/// recorded one. This is needed after a volume was copied to another file system. The wall clock of this host is
/// compared with that of the store: with a difference above 60 s the exit code is 3. A volume may be served meanwhile.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Store to check: a directory, or a file:// URL of one
    store: StoreUrl,
}

#[derive(Serialize)]
struct Checked {
    store: PathBuf,
    /// The primitive that has one winner.
    exclusive_create: Exclusive,
    /// The one that the volume's servers use from now on; absent if the directory is no volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    exclusive_create_recorded: Option<Exclusive>,
    /// Seconds by which this host's clock is ahead of the store's.
    clock_ahead_s: i64,
}

impl Checked {
    fn has_right_clock(&self) -> bool {
        self.clock_ahead_s.unsigned_abs() <= CLOCK_SKEW_S_MAX
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let failed = || Problem::new(format!("cannot check {}", store.display()));
    identity::take(&store, Work::Store, failed)?;
    let volume = VolumeDir::new(&store);
    let checked = match volume.read_settings() {
        Ok(settings) => {
            let proven = match volume.lock() {
                Ok(lock) => volume.prove_exclusive(&lock, &settings),
                // In use, or on a store that this user may only read.
                Err(_) => Exclusive::prove(&volume.shards()),
            };
            proven.and_then(|proven| checked(&store, &volume.shards(), proven, volume.exclusive()))
        }
        Err(VolumeFileError::NoVolume { .. }) => {
            let directory = StorePath::from(store.clone());
            Exclusive::prove(&directory).and_then(|proven| checked(&store, &directory, proven, None))
        }
        Err(error) => return Err(failed().caused_by(&error)),
    };
    let checked = checked.map_err(|error| failed().caused_by(&error))?;
    output.result("doctor", &checked, text)?;
    Ok(if checked.has_right_clock() { Exit::Done } else { Exit::Degraded })
}

fn checked(
    store: &Path,
    directory: &StorePath,
    exclusive_create: Exclusive,
    exclusive_create_recorded: Option<Exclusive>,
) -> io::Result<Checked> {
    let clock_ahead_s = store_clock_ahead_s(directory, &RealClock::new())?;
    Ok(Checked { store: store.to_owned(), exclusive_create, exclusive_create_recorded, clock_ahead_s })
}

fn text(checked: &Checked) -> String {
    let recorded = match checked.exclusive_create_recorded {
        None => String::new(),
        Some(recorded) if recorded == checked.exclusive_create => " (recorded)".to_owned(),
        Some(recorded) => format!(" (recorded: {recorded}; stop the server and run this again)"),
    };
    let clock = if checked.has_right_clock() { "" } else { "; set both by NTP or PTP" };
    columns(&[
        ("store", checked.store.display().to_string()),
        ("exclusive create", format!("{}{recorded}", checked.exclusive_create)),
        ("clock", format!("{} s ahead of the store{clock}", checked.clock_ahead_s)),
    ])
}
