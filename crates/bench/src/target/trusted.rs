//! Which directories root may measure in: those that no other user can redirect.
//!
//! A benchmark runs programs in its target, and writes and removes files there. In a directory of another user, that user
//! could replace a directory of the run by a link, and root would follow it.

use super::Via;
use crate::{Error, Result};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use varve_env::private_file::{PrivateFileError, check_directory};

/// Maximum number of symlinks that are followed, as in Linux.
const LINKS_MAX: usize = 40;

/// Refuses a directory for root if another user can replace a component of its path. Other users know with whom they share
/// a directory.
///
/// # Errors
/// [`Error::Usage`], with the advice to run as the owner; [`Error::Io`] if a component cannot be examined.
pub(crate) fn check_trusted(via: &Via) -> Result<()> {
    match via {
        Via::Mount(directory) | Via::Path(directory) => check_for_root(&via.to_string(), directory),
        Via::Library(_) => Ok(()),
    }
}

/// [`check_trusted`] for a directory that the messages call `name`.
pub(crate) fn check_for_root(name: &str, directory: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    check_path(directory).map_err(|error| match error {
        PrivateFileError::Io { source, .. } => Error::Io { what: name.to_owned(), source },
        error => Error::Usage(format!("root cannot use {name}: {error}; run it as the user who owns the directory")),
    })
}

/// Checks each directory and each link on the way with [`check_directory`]. The directories above a component are checked
/// first, so that nobody can replace it between the check and its use.
pub(super) fn check_path(directory: &Path) -> std::result::Result<(), PrivateFileError> {
    let failed = |source| PrivateFileError::Io { path: directory.to_owned(), source };
    let mut checked = PathBuf::from("/");
    check_directory(&checked)?;
    let mut rest = reversed(&std::path::absolute(directory).map_err(failed)?);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            checked.pop();
            continue;
        }
        let next = checked.join(name);
        check_directory(&next)?;
        let Ok(target) = std::fs::read_link(&next) else {
            checked = next;
            continue;
        };
        links += 1;
        if links > LINKS_MAX {
            return Err(failed(io::Error::from_raw_os_error(libc::ELOOP)));
        }
        if target.is_absolute() {
            checked = PathBuf::from("/");
        }
        rest.extend(reversed(&target));
    }
    Ok(())
}

/// The names of a path, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    let named = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|component| component.as_os_str().to_owned()).collect()
}
