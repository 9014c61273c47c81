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
use varve_env::mount_table::{self, VARVE_TYPE};
use varve_env::reserve::is_for_want_of_room;
use varve_env::store_path::StorePath;
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::{VolumeDir, VolumeFileError};

/// Check that a directory can be the store of a volume; for a volume, also correct what it records of its store
///
/// Two processes race for 1,000 names, to find the primitive with which a server creates a file that no other process
/// creates too. For a volume that is not in use, the primitive is recorded in its volume file; its servers use the
/// recorded one. This is needed after a volume was copied to another file system. The wall clock of this host is
/// compared with that of the store. The last line is the verdict. Exit codes: 0: fit for Varve; 3: fit, but the clocks
/// differ by more than 60 s; 1: not fit, or it cannot be checked. A volume may be served meanwhile.
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
    /// [`FIT`] or [`FIT_CLOCK_APART`]. A store that is not fit is an error.
    verdict: &'static str,
}

const FIT: &str = "fit";
const FIT_CLOCK_APART: &str = "fit, but the clocks differ";

/// Free space that the check and a new volume need.
const FREE_BYTES_MIN: u64 = 1024 * 1024;
const FREE_FILES_MIN: u64 = 64;

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let store = std::path::absolute(arguments.store.directory())
        .map_err(|error| Problem::new("cannot find the current directory").caused_by(&error))?;
    let failed = || Problem::new(format!("cannot check {}", store.display()));
    let unfit = || Problem::new(format!("{} is not fit for Varve", store.display()));
    if is_varve_mount(&store).map_err(|error| failed().caused_by(&error))? {
        let next = "Check the volume's store, or another directory; `findmnt` shows the store.";
        return Err(unfit().because("a volume is mounted there, and its files are not a store").next(next));
    }
    let full = |lack: String| unfit().because(lack).next("Free space in its file system, and check again.");
    identity::take(&store, Work::Store, failed)?;
    let volume = VolumeDir::new(&store);
    if let Some(lack) = lacks_room(&volume) {
        return Err(full(lack));
    }
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
    let checked = checked.map_err(|error| match lacks_room(&volume) {
        Some(lack) => full(lack),
        None if is_for_want_of_room(&error) => unfit().caused_by(&error),
        None if error.kind() == io::ErrorKind::Unsupported => unfit().caused_by(&error),
        None => failed().caused_by(&error),
    })?;
    output.result("doctor", &checked, text)?;
    Ok(if checked.verdict == FIT { Exit::Done } else { Exit::Degraded })
}

/// Whether a volume is mounted at `store`.
fn is_varve_mount(store: &Path) -> io::Result<bool> {
    let store = store.canonicalize()?;
    Ok(mount_table::read()?.iter().any(|mount| mount.kind == VARVE_TYPE && mount.target == store))
}

/// Says which space is missing in the file system of the store.
fn lacks_room(volume: &VolumeDir) -> Option<String> {
    let space = volume.space().ok()?;
    let bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if bytes < FREE_BYTES_MIN {
        return Some(format!("no space is left: {bytes} bytes are free, and {FREE_BYTES_MIN} are needed"));
    }
    // Some file systems have no limit, and report no number.
    let files = space.f_favail;
    (space.f_files > 0 && files < FREE_FILES_MIN)
        .then(|| format!("no space is left: {files} files can be made, and {FREE_FILES_MIN} are needed"))
}

fn checked(
    store: &Path,
    directory: &StorePath,
    exclusive_create: Exclusive,
    exclusive_create_recorded: Option<Exclusive>,
) -> io::Result<Checked> {
    let clock_ahead_s = store_clock_ahead_s(directory, &RealClock::new())?;
    let verdict = if clock_ahead_s.unsigned_abs() <= CLOCK_SKEW_S_MAX { FIT } else { FIT_CLOCK_APART };
    Ok(Checked { store: store.to_owned(), exclusive_create, exclusive_create_recorded, clock_ahead_s, verdict })
}

fn text(checked: &Checked) -> String {
    let recorded = match checked.exclusive_create_recorded {
        None => String::new(),
        Some(recorded) if recorded == checked.exclusive_create => " (recorded)".to_owned(),
        Some(recorded) => format!(" (recorded: {recorded}; stop the server and run this again)"),
    };
    let clock = if checked.verdict == FIT { "" } else { "; set both by NTP or PTP" };
    columns(&[
        ("store", checked.store.display().to_string()),
        ("exclusive create", format!("{}{recorded}", checked.exclusive_create)),
        ("clock", format!("{} s ahead of the store{clock}", checked.clock_ahead_s)),
        ("verdict", checked.verdict.replacen(FIT, "fit for Varve", 1)),
    ])
}
