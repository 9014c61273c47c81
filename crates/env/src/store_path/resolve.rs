//! openat2(2): lookups that stay beneath a directory and follow no link.

use super::StorePath;
use crate::disk::{FileOptions, Location};
use crate::printable::printable_path;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// The kernel asks for a retry if a lookup races with a rename or a mount.
const ATTEMPTS_MAX: u32 = 64;
/// Retries for a file that others remove and create while it is opened.
const CREATIONS_MAX: u32 = 64;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Opens `below`, a relative path, from `directory`. A mount point on the way must not be a FUSE mount: its server may
/// belong to another user and never reply.
pub(super) fn beneath(directory: impl AsFd, below: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let directory = directory.as_fd();
    match open(directory, below, flags, mode, BENEATH | ResolveFlags::NO_XDEV) {
        Err(Errno::XDEV) => {
            super::part::refuse_fuse(directory, below)?;
            Ok(open(directory, below, flags, mode, BENEATH)?)
        }
        Err(Errno::NOSYS) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel has no openat2, which Varve needs to open a store safely: use Linux 5.6 or later",
        )),
        opened => Ok(opened?),
    }
}

pub(super) fn open(
    directory: impl AsFd,
    below: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let directory = directory.as_fd();
    for _ in 0..ATTEMPTS_MAX {
        match rustix::fs::openat2(directory, below, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a file, which must be regular. A created file has the mode of the options, regardless of the process's umask.
pub(super) fn open_regular(path: &StorePath, options: &FileOptions) -> io::Result<File> {
    let flags = options.access() | OFlags::NONBLOCK;
    let made = |result: io::Result<OwnedFd>| result.map(|opened| (opened, true));
    let create = || path.open_as(flags | OFlags::CREATE | OFlags::EXCL, options.mode_or(crate::disk::FILE_MODE));
    let found = || path.open_as(flags, 0).map(|opened| (opened, false));
    let opened = match options.creates() {
        _ if options.creates_new() => made(create()),
        false => found(),
        true => open_or_create(found, || made(create())),
    };
    let (opened, is_new) = opened.map_err(|error| path.explained(error))?;
    let file = File::from(opened);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(not_regular(path.path(), &metadata));
    }
    // Clears O_NONBLOCK, which some file systems take as a request not to wait for content on tape.
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    if is_new {
        let mode = options.mode_or(crate::disk::FILE_MODE);
        if metadata.mode() & 0o7777 != mode {
            file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        }
    } else if options.truncates() && metadata.len() > 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

fn open_or_create(
    found: impl Fn() -> io::Result<(OwnedFd, bool)>,
    create: impl Fn() -> io::Result<(OwnedFd, bool)>,
) -> io::Result<(OwnedFd, bool)> {
    for _ in 0..CREATIONS_MAX {
        match found() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created,
        }
    }
    Err(Errno::AGAIN.into())
}

impl StorePath {
    /// Replaces `error` if the kernel's text does not explain it: a link or a special file is in the way.
    pub(super) fn explained(&self, error: io::Error) -> io::Error {
        let code = error.raw_os_error().map(Errno::from_raw_os_error);
        match code {
            Some(Errno::LOOP) => link_refused(self.path()),
            // The error of a FIFO without a reader, a socket, or a device without a driver.
            Some(Errno::NXIO | Errno::NODEV) => match self.look() {
                Ok(found) if !found.is_file() => not_regular(self.path(), &found),
                _ => error,
            },
            // The error of a link in place of a directory.
            Some(Errno::NOTDIR) if self.look().is_ok_and(|found| found.is_symlink()) => link_refused(self.path()),
            _ => error,
        }
    }
}

pub(super) fn link_refused(path: &Path) -> io::Error {
    let shown = printable_path(path);
    let what = format!(
        "a symlink is at or on the way to {shown}, and none is followed inside of a store: replace it with a regular \
         file or directory"
    );
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

fn not_regular(path: &Path, found: &std::fs::Metadata) -> io::Error {
    let kind = kind_of(found);
    let error = if found.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
    let what =
        format!("{} is {kind}, and must be a regular file: remove it or move it elsewhere", printable_path(path));
    io::Error::new(error, what)
}

fn kind_of(found: &std::fs::Metadata) -> &'static str {
    let kind = found.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symlink",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "no regular file",
    }
}
