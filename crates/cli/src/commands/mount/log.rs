//! The log file of the background process: the requested file, or one in the user's directory for logs.
//!
//! Without a home directory, the log does not go to a directory that users share, because another user could plant a
//! link of its name there.

use crate::problem::{Problem, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use varve_env::identity::as_process_user;
use varve_env::private_file::{check_directory, make_directories, open_log};
use varve_env::runtime_dir;
use varve_types::VolumeSettings;

const NEXT: &str = "Choose another with --log-file FILE.";
const DIRECTORY_MODE: u32 = 0o700;

/// The log's path. When this returns, its directory exists.
pub fn path(asked_for: Option<&Path>, settings: &VolumeSettings) -> Result<PathBuf> {
    let failed = || Problem::new("cannot make a log file").next(NEXT);
    let path = match asked_for {
        Some(path) => std::path::absolute(path).map_err(|error| failed().caused_by(&error))?,
        None => directory().join(format!("mount-{}-{:.8}.log", settings.name, settings.id.to_string())),
    };
    let Some(directory) = path.parent() else { return Ok(path) };
    as_process_user(|| {
        make_directories(directory, DIRECTORY_MODE).map_err(|error| {
            let problem = Problem::new(format!("cannot make the log's directory {}", directory.display()));
            problem.caused_by(&error).next(NEXT)
        })?;
        // For a path that the user chose, only the file is checked.
        match asked_for {
            Some(_) => Ok(()),
            None => check_directory(directory).map_err(|error| failed().caused_by(&error).next(NEXT)),
        }
    })?;
    Ok(path)
}

/// The user's directory for logs.
fn directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/log/varve");
    }
    let set = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let home = || set("HOME").filter(|home| check_directory(home).is_ok()).map(|home| home.join(".local/state"));
    match set("XDG_STATE_HOME").or_else(home) {
        Some(base) => base.join("varve"),
        None => runtime_dir::default_directory(),
    }
}

/// Opens the log at `path`, as the user who started this process.
pub fn open(path: &Path) -> Result<File> {
    as_process_user(|| open_log(path))
        .map_err(|error| Problem::new(format!("cannot write the log {}", path.display())).caused_by(&error).next(NEXT))
}
