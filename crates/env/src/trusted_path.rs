//! Paths that nobody but this user and root can lead elsewhere.
//!
//! A symbolic link anywhere in a path sends the process that follows it to another directory. Root must not follow a link
//! of another user: that user could have root mount over, write to or read from a directory of root's. [`resolve`]
//! follows only links of root and of the effective user. The caller then opens the result without following links, so a
//! component that becomes a link afterwards is an error.

mod directory;

pub use directory::TrustedPlace;

use rustix::fs::{AtFlags, CWD, FileType, statat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links that are followed, as in Linux.
const LINKS_MAX: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum TrustedPathError {
    #[error(
        "{} is a symbolic link of user {owner}, who could redirect root with it; name the directory it leads to",
        crate::printable::printable_path(link)
    )]
    Link { link: PathBuf, owner: u32 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<TrustedPathError> for io::Error {
    fn from(error: TrustedPathError) -> io::Error {
        match error {
            TrustedPathError::Io(error) => error,
            link => io::Error::new(io::ErrorKind::PermissionDenied, link.to_string()),
        }
    }
}

/// The absolute path of `path` without symbolic links. The last components need not exist.
///
/// # Errors
/// [`TrustedPathError::Link`] if this process is root and a link on the way belongs to another user.
pub fn resolve(path: &Path) -> Result<PathBuf, TrustedPathError> {
    let is_root = rustix::process::geteuid().is_root();
    resolve_if(path, |owner| !is_root || owner == 0)
}

fn resolve_if(path: &Path, is_trusted: impl Fn(u32) -> bool) -> Result<PathBuf, TrustedPathError> {
    let mut rest = components(&std::path::absolute(path)?);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let found = match statat(CWD, &next, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                at = next;
                at.extend(rest);
                return Ok(at);
            }
            found => found.map_err(io::Error::from)?,
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            at = next;
            continue;
        }
        if !is_trusted(found.st_uid) {
            return Err(TrustedPathError::Link { link: next, owner: found.st_uid });
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(io::Error::from(Errno::LOOP).into());
        }
        let target = rustix::fs::readlinkat(CWD, &next, Vec::new()).map_err(io::Error::from)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        let mut of_link = components(&target);
        of_link.append(&mut rest);
        rest = of_link;
    }
    Ok(at)
}

fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests;
