//! Directories of a store that may be on another disk, behind a link or a mount point.

use super::StoreRoot;
use super::resolve::{self, link_refused};
use crate::identity::is_nobody;
use crate::mount_table;
use crate::printable::{printable, printable_path};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, readlinkat, statx};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens the directory `name` of `around`, or the target of a link by that name. The link and the directory must belong
/// to root or to the store's owner, and no other user may have write access to the directory: otherwise another user
/// could change its content.
pub(super) fn open(around: &StoreRoot, name: &OsStr, shown: &Path) -> io::Result<OwnedFd> {
    let store = around.directory()?;
    match resolve::beneath(&*store, Path::new(name), PLACE | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Err(error) if is_no_directory(&error) => {}
        opened => return opened,
    }
    let link = resolve::beneath(&*store, Path::new(name), PLACE | OFlags::NOFOLLOW, Mode::empty())?;
    let (found, owner) = (fstat(&link)?, fstat(&*store)?.st_uid);
    if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
        return Err(Errno::NOTDIR.into());
    }
    let target = readlinkat(&link, c"", Vec::new())?;
    let target = Path::new(OsStr::from_bytes(target.to_bytes()));
    let leads = || format!("{} is a link to {}", printable_path(shown), printable_path(target));
    let refused = |what: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{}, {what}", leads())));
    if !belongs(&found, owner) {
        return refused(format!(
            "of user {}: such a link is followed if it belongs to root or to the store's owner, user {owner} \
             (chown -h {owner} {})",
            found.st_uid,
            printable_path(shown)
        ));
    }
    let opened = resolve::open(&*store, target, PLACE | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    let opened = opened.map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}, which cannot be opened: {error}", leads()))
    })?;
    refuse_if_fuse(&opened, target)?;
    let directory = fstat(&opened)?;
    if !belongs(&directory, owner) {
        return refused(format!(
            "a directory of user {}: it must belong to root or to the store's owner, user {owner}",
            directory.st_uid
        ));
    }
    if directory.st_mode & 0o022 != 0 {
        return refused(format!(
            "a directory that other users may write to (mode {:04o}): close it with `chmod go-w {}`",
            directory.st_mode & 0o7777,
            printable_path(target)
        ));
    }
    Ok(opened)
}

fn belongs(found: &Stat, owner: u32) -> bool {
    found.st_uid == 0 || (found.st_uid == owner && !is_nobody(owner))
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOTDIR | Errno::LOOP))
}

/// Fails if the path from `directory` to `below` meets a FUSE mount. It sends no request to such a mount, because the
/// kernel itself provides the mount's number.
pub(super) fn refuse_fuse(directory: BorrowedFd<'_>, below: &Path) -> io::Result<()> {
    let flags = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let mut at: Option<OwnedFd> = None;
    for part in below.components() {
        let from = at.as_ref().map_or(directory, AsFd::as_fd);
        let name = Path::new(part.as_os_str());
        let next = match resolve::open(from, name, PLACE | OFlags::NOFOLLOW, Mode::empty(), flags) {
            Err(Errno::XDEV) => {
                let flags = flags.difference(ResolveFlags::NO_XDEV);
                let opened = resolve::open(from, name, PLACE | OFlags::NOFOLLOW, Mode::empty(), flags)?;
                refuse_if_fuse(&opened, name)?;
                opened
            }
            // The caller meets the same error again when it opens the path.
            Err(Errno::LOOP) => return Err(link_refused(below)),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            opened => opened?,
        };
        at = Some(next);
    }
    Ok(())
}

fn refuse_if_fuse(mount: &OwnedFd, name: &Path) -> io::Result<()> {
    let found = statx(mount, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)?;
    let table = mount_table::read()?;
    let Some(mount) = table.iter().find(|mount| u64::from(mount.id) == found.stx_mnt_id) else { return Ok(()) };
    if !mount.kind.starts_with("fuse") {
        return Ok(());
    }
    let what = format!(
        "{} is a mount point of {}, whose server may never answer: unmount it; a store must not contain FUSE mounts",
        printable_path(name),
        printable(&mount.kind)
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
