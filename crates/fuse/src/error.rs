//! Errors of mounting and unmounting: each says what failed and what to do about it.

use crate::options::OptionError;
use crate::unmount::MountHolder;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error("cannot mount at {}: {source}", target.display())]
    Target { target: PathBuf, source: io::Error },
    #[error("cannot read the owner of the store {}: {source}; does it exist?", store.display())]
    Store { store: PathBuf, source: io::Error },
    #[error("cannot ask the mount about {}: {source}", path.display())]
    Ask { path: PathBuf, source: io::Error },
    #[error("{} is not on a mounted volume of Varve", .0.display())]
    NotOnVolume(PathBuf),
    #[error("no volume of Varve is mounted on {}", .0.display())]
    NotAMount(PathBuf),
    #[error("cannot mount at {}: it is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is a mount whose process has died; clear it with `varve umount {}` first", .0.display(), .0.display())]
    DeadMount(PathBuf),
    #[error("a volume is mounted on {} already; unmount it with `varve umount {}` first", .0.display(), .0.display())]
    Mounted(PathBuf),
    #[error(
        "cannot open /dev/fuse: {0}; is the kernel's module loaded (modprobe fuse), and may this user read and \
             write the device?"
    )]
    Device(io::Error),
    #[error("cannot mount at {}: mount(2): {source}", target.display())]
    Mount { target: PathBuf, source: io::Error },
    #[error("cannot run fusermount3, which mounts for users other than root: {0}; it comes with the package fuse3")]
    HelperMissing(io::Error),
    #[error("fusermount3 refused: {0}")]
    Helper(String),
    #[error("the kernel and the mount did not agree: {0}")]
    Session(io::Error),
    #[error("nothing is mounted at {}", .0.display())]
    NotMounted(PathBuf),
    #[error("{} is inside the mount at {}; give that", target.display(), mount.display())]
    InsideMount { target: PathBuf, mount: PathBuf },
    #[error("what is mounted at {} is of type {kind}, not a volume of Varve", target.display())]
    NotVarve { target: PathBuf, kind: String },
    #[error("{} is busy{}", target.display(), held_by(holders))]
    Busy { target: PathBuf, holders: Vec<MountHolder> },
    #[error("cannot write everything on {} to the store, so it stays mounted: {source}", target.display())]
    NotDurable { target: PathBuf, source: io::Error },
    #[error("cannot unmount {}: {source}", target.display())]
    Unmount { target: PathBuf, source: io::Error },
    #[error("cannot remount {}: what is mounted there is {}; give that", target.display(), mounted.display())]
    OtherSource { target: PathBuf, mounted: PathBuf },
    #[error("cannot remount {}: {}", target.display(), remount_refused(source))]
    Remount { target: PathBuf, source: io::Error },
    #[error("{} is unmounted, but its process {pid} is still at work in the store after {waited:?}", target.display())]
    StillRunning { target: PathBuf, pid: u32, waited: Duration },
    #[error("{} is unmounted, but its process cannot be watched from here: {source}", target.display())]
    Unwatched { target: PathBuf, source: io::Error },
    /// The frontend reported this error when it closed the volume.
    #[error("the volume was unmounted, but closing it failed: {0}")]
    Closing(String),
}

fn remount_refused(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "files are open for writing there (`fuser -vm DIR` shows by whom)".into(),
        Some(libc::EPERM) => "only root may do that".into(),
        _ => error.to_string(),
    }
}

fn held_by(holders: &[MountHolder]) -> String {
    if holders.is_empty() {
        let hint = if rustix::process::geteuid().is_root() { "" } else { ", or another user's: try as root" };
        return format!("; no process that uses it was found (it may hang or be just ending{hint})");
    }
    holders.iter().fold(String::from(", held by"), |text, holder| format!("{text}\n  {holder}"))
}
