//! Obtains a `/dev/fuse` descriptor whose other end is mounted at a directory. The process calls mount(2) itself where
//! it is allowed to. Otherwise the set-user-id helper fusermount3 mounts and passes the descriptor over a socket.
//!
//! `fuser` could do both. This module does it instead for three reasons: a mount of type `fuse.varve` must pass its
//! type to mount(2); the helper must be tried also where the user cannot open `/dev/fuse`; and at the end of its
//! session `fuser` unmounts whatever is mounted at the path, which may be another user's mount if the first one was
//! unmounted meanwhile.

#![allow(clippy::disallowed_types, reason = "fusermount3 hands the device over by a socket; nobody else is talked to")]

use crate::error::{Error, Result};
use crate::mounts::{self, TYPE};
use crate::options::MountOptions;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::geteuid;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use varve_env::identity::{as_process_user, file_user};
use varve_env::trusted_path;

pub(crate) const DEVICE: &str = "/dev/fuse";

/// A mounted file system that no request loop serves yet.
pub(crate) struct Attached {
    pub device: OwnedFd,
    /// With `auto_unmount`: fusermount3 waits at the other end and unmounts when this socket closes for any reason.
    pub helper: Option<UnixStream>,
}

/// Runs `work` with the file system identity of the user who started this process, and, if that fails with EACCES, with
/// the identity of the store's owner. Root's mount of another user's store has the owner's identity
/// (`varve_env::identity`), and the directory of a mount point may admit only one of the two.
pub(crate) fn as_starter<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match as_process_user(&work) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) && file_user() != geteuid().as_raw() => work(),
        done => done,
    }
}

/// The mount target as the kernel names it.
///
/// # Errors
/// If nothing can be mounted at `target`: it is no directory, or it is a Varve mount, live or dead.
pub fn check_target(target: &Path) -> Result<PathBuf> {
    let wrap = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOTCONN) => Error::DeadMount(target.to_owned()),
        _ => Error::Target { target: target.to_owned(), source },
    };
    let resolved = as_starter(|| Ok(trusted_path::resolve(target)?)).map_err(wrap)?;
    // The kernel may still report the root of a dead mount as a directory, but statfs(2) on it fails.
    match as_starter(|| rustix::fs::statfs(&resolved).map_err(io::Error::from)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => return Err(wrap(error)),
        _ if mounts::at(&mounts::table().map_err(wrap)?, &resolved).is_some_and(|mount| mount.kind == TYPE) => {
            return Err(Error::Mounted(resolved));
        }
        answer => answer.map_err(wrap)?,
    };
    match as_starter(|| resolved.metadata()).map_err(wrap)?.is_dir() {
        true => Ok(resolved),
        false => Err(Error::NotADirectory(resolved)),
    }
}

pub(crate) fn attach(target: &Path, options: &MountOptions) -> Result<Attached> {
    if options.auto_unmount || !rustix::process::geteuid().is_root() {
        return by_helper(target, options);
    }
    match by_mount(target, options) {
        // Root in a container may lack the right to mount; the helper may have it.
        Err(Error::Mount { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => by_helper(target, options),
        result => result,
    }
}

fn by_mount(target: &Path, options: &MountOptions) -> Result<Attached> {
    let device = as_starter(|| File::options().read(true).write(true).open(DEVICE)).map_err(Error::Device)?;
    let wrap = |source: io::Error| Error::Mount { target: target.to_owned(), source };
    // Held from here on: a directory that becomes a link to another one is not mounted over.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || Ok(rustix::fs::openat2(CWD, target, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?);
    let directory = as_starter(open).map_err(wrap)?;
    let mode = rustix::fs::fstat(&directory).map_err(|errno| wrap(errno.into()))?.st_mode;
    let held = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.kernel_data(),
    );
    let data = CString::new(data).expect("made of numbers and words");
    as_starter(|| {
        rustix::mount::mount(options.source.as_str(), &held, TYPE, options.flags, data.as_c_str())
            .map_err(io::Error::from)
    })
    .map_err(wrap)?;
    Ok(Attached { device: device.into(), helper: None })
}

fn by_helper(target: &Path, options: &MountOptions) -> Result<Attached> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Device)?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options.helper_list()).arg("--").arg(target);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let inherited = theirs.as_raw_fd();
    // SAFETY: between fork and exec the child calls only fcntl(2), which is async-signal-safe, on a descriptor that the
    // parent keeps open until the child is started.
    unsafe {
        command.pre_exec(move || match libc::fcntl(inherited, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(Error::HelperMissing)?;
    drop(theirs);
    let Some(device) = receive_descriptor(&ours).map_err(Error::Device)? else {
        let mut text = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut text).map_err(Error::HelperMissing)?;
        child.wait().map_err(Error::HelperMissing)?;
        return Err(Error::Helper(text.trim().trim_start_matches("fusermount3: ").to_owned()));
    };
    if options.auto_unmount {
        return Ok(Attached { device, helper: Some(ours) });
    }
    drop(ours);
    child.wait().map_err(Error::HelperMissing)?;
    Ok(Attached { device, helper: None })
}

/// The descriptor that the helper sends along with one byte; `None` if the helper ends without sending one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_directory_target_is_refused_before_mounting() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(matches!(check_target(&file), Err(Error::NotADirectory(_))));
        assert!(matches!(check_target(&directory.path().join("absent")), Err(Error::Target { .. })));
        assert!(check_target(directory.path()).unwrap().is_absolute());
    }
}
