//! Targets of a measurement: one trait for a plain directory (a mount is one too) and for a volume's library.
//!
//! A target is opened once. Each client thread then opens a connection of its own, so that clients share nothing but
//! the target. Paths are relative to the target's root and have no leading slash.

mod directory;
mod library;
#[cfg(test)]
mod tests;
mod trusted;

pub use directory::DirectoryTarget;
pub use library::LibraryTarget;
pub(crate) use trusted::{check_for_root, check_trusted};

use crate::{Error, Result};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use varve_env::store_url::StoreUrl;

/// The access path to a target, as `--via` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// The volume in a store, through Varve's library.
    Library(String),
    /// A directory on a FUSE mount.
    Mount(PathBuf),
    /// A plain directory.
    Path(PathBuf),
}

impl Via {
    /// The word before the colon; `via` in the JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Via::Library(_) => "library",
            Via::Mount(_) => "mount",
            Via::Path(_) => "path",
        }
    }

    /// The part after the colon; `target` in the JSON.
    pub fn place(&self) -> String {
        match self {
            Via::Library(store) => store.clone(),
            Via::Mount(dir) | Via::Path(dir) => dir.display().to_string(),
        }
    }

    /// The directory whose file system lies beneath. For a library it is the directory of its store.
    pub fn directory(&self) -> PathBuf {
        match self {
            Via::Library(store) => match StoreUrl::parse(store) {
                Ok(url) => url.directory().to_owned(),
                Err(_) => PathBuf::from(store),
            },
            Via::Mount(dir) | Via::Path(dir) => dir.clone(),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.place())
    }
}

impl FromStr for Via {
    type Err = Error;

    fn from_str(text: &str) -> Result<Via> {
        match text.split_once(':') {
            Some((_, "")) => Err(Error::Usage(format!("{text:?} names no place after its colon"))),
            Some(("library", store)) => Ok(Via::Library(store.to_owned())),
            Some(("mount", dir)) => Ok(Via::Mount(PathBuf::from(dir))),
            Some(("path", dir)) => Ok(Via::Path(PathBuf::from(dir))),
            _ => Err(Error::Usage(format!(
                "{text:?} is no way to a target: use library:STORE, mount:DIR or path:DIR (a path:DIR may hold colons)"
            ))),
        }
    }
}

/// A target of a measurement.
pub trait BenchTarget: Send + Sync {
    /// The name in messages: `path:/mnt/x`.
    fn label(&self) -> String;

    /// Opens a connection for one client. Called on the thread that will use it.
    fn connect(&self) -> Result<Box<dyn TargetClient>>;
}

/// One client of a target, used by one thread. Operations take names in the most recently entered directory.
pub trait TargetClient {
    /// Sets the directory for later names. `directory` is relative to the target's root (empty: the root itself).
    fn enter(&mut self, directory: &str) -> io::Result<()>;

    /// open(2) with `O_CREAT | O_EXCL`, a write of `content` unless it is empty, close.
    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()>;

    /// lstat(2); returns the size in bytes.
    fn stat(&mut self, name: &str) -> io::Result<u64>;

    /// open, read to the end, close; returns the number of bytes.
    fn read(&mut self, name: &str, buffer: &mut [u8]) -> io::Result<u64>;

    /// open, read of as many bytes as `buffer` has, close. An empty buffer: only open and close.
    fn read_first(&mut self, name: &str, buffer: &mut [u8]) -> io::Result<()>;

    fn unlink(&mut self, name: &str) -> io::Result<()>;

    /// rename(2) of a file or directory to a new name.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Returns when the file system below has all changes. `false`: this kind of target has no such call.
    fn drain(&mut self) -> io::Result<bool>;

    fn make_directory(&mut self, name: &str) -> io::Result<()>;

    fn remove_directory(&mut self, name: &str) -> io::Result<()>;

    /// Removes `path`, relative to the target's root, and everything in it. A missing `path` is no error. Not measured.
    fn remove_tree(&mut self, path: &str) -> io::Result<()>;
}

/// Opens the target that `via` names and checks that it is of the stated kind, and that root may use it.
pub fn open(via: &Via) -> Result<Box<dyn BenchTarget>> {
    check_trusted(via)?;
    match via {
        Via::Library(store) => Ok(Box::new(LibraryTarget::open(store)?)),
        Via::Mount(dir) => {
            let mount = crate::environment::mount_of(dir).map_err(Error::io(format!("{}", dir.display())))?;
            if !mount.filesystem.starts_with("fuse") {
                return Err(Error::Usage(format!(
                    "mount:{} is not on a FUSE mount but on {}; is the volume mounted? (for a plain directory use \
                     path:{})",
                    dir.display(),
                    mount.filesystem,
                    dir.display()
                )));
            }
            Ok(Box::new(DirectoryTarget::open("mount", dir)?))
        }
        Via::Path(dir) => Ok(Box::new(DirectoryTarget::open("path", dir)?)),
    }
}

/// Names that a directory may have although a run wants it empty: mkfs makes the first, and ranks of this run meet in the
/// second.
const IGNORED_NAMES: [&str; 2] = ["lost+found", crate::ranks::RENDEZVOUS_NAME];

/// Refuses a directory that has files, the root of the system, and for root a directory of another user: a run removes what
/// it makes, and must never be near other files. `kept` is the directory that an earlier run left for this one.
///
/// # Errors
/// [`Error::Usage`], with the advice to make an empty directory.
pub fn check_fresh(via: &Via, kept: Option<&str>) -> Result<()> {
    let (Via::Mount(directory) | Via::Path(directory)) = via else { return Ok(()) };
    let resolved = directory.canonicalize().map_err(Error::io(via.to_string()))?;
    if resolved.parent().is_none() {
        return Err(Error::Usage(format!("{via} is the root of the system: make an empty directory and give that")));
    }
    check_trusted(via)?;
    if let Some(kept) = kept.map(|kept| directory.join(kept)).filter(|kept| kept.symlink_metadata().is_ok()) {
        check_for_root(&kept.display().to_string(), &kept)?;
    }
    for entry in std::fs::read_dir(&resolved).map_err(Error::io(via.to_string()))? {
        let name = entry.map_err(Error::io(via.to_string()))?.file_name();
        let name = name.to_string_lossy();
        if kept != Some(&*name) && !IGNORED_NAMES.iter().any(|ignored| name.starts_with(ignored)) {
            let what = format!("{via} is not empty, it has {name:?}: make an empty directory in it and give that");
            return Err(Error::Usage(what));
        }
    }
    Ok(())
}

fn missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn joined(directory: &Path, path: &str) -> PathBuf {
    if path.is_empty() { directory.to_owned() } else { directory.join(path) }
}
