//! `varve umount DIR`: returns when everything is durable and the mount's process has ended, or reports the holders of
//! the mount.

use crate::detach::{self, MountPoint};
use crate::error::{Error, Result};
use crate::mounts::{self, MountEntry, TYPE};
use crate::virtual_xattrs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use varve_client::StaleSizes;
use varve_env::clock::{Clock, RealClock};
use varve_env::trusted_path;

/// A process that has just ended closes its last descriptor slightly later. An unmount that fails with EBUSY while no
/// holder is found is retried this many times.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Time limit of the search for holders.
const SEARCH_MAX: Duration = Duration::from_secs(2);
/// A longer list does not help the user.
const HOLDERS_MAX: usize = 32;
/// A command must fit on one line of a terminal.
const COMMAND_CHARACTERS_MAX: usize = 80;

/// A user of a mount that keeps it busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountHolder {
    Process {
        pid: u32,
        command: String,
        how: HolderUse,
    },
    /// Another mount below this one.
    Mount(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderUse {
    WorkingDirectory,
    RootDirectory,
    Program,
    OpenFile,
    MappedFile,
}

impl fmt::Display for MountHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountHolder::Mount(path) => write!(f, "another mount at {}", path.display()),
            MountHolder::Process { pid, command, how } => {
                let how = match how {
                    HolderUse::WorkingDirectory => "its working directory is there",
                    HolderUse::RootDirectory => "its root directory is there",
                    HolderUse::Program => "it is a program from there",
                    HolderUse::OpenFile => "it has a file open there",
                    HolderUse::MappedFile => "it has a file mapped from there",
                };
                write!(f, "process {pid} ({command}): {how}")
            }
        }
    }
}

/// Policy for a mount that cannot write all its data to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// It stays mounted.
    Keep,
    /// It is unmounted; the unwritten data is lost.
    GiveUp,
}

/// The result of an unmount.
#[derive(Debug, Default)]
pub struct UnmountOutcome {
    /// The write error that was ignored, with [`Unwritten::GiveUp`].
    pub given_up: Option<io::Error>,
    /// Sizes of closed files that the mount could not record: the server did not allow it before the mount's deadline.
    /// The next client that opens such a file determines its size.
    pub size_stale: Option<StaleSizes>,
}

/// A stage of an unmount.
#[derive(Debug)]
pub enum UnmountProgress {
    /// The mount's process and its server answer.
    Answering,
    /// It waits until these sizes can be recorded, which is known to take long.
    AwaitingSizes(StaleSizes),
}

/// Unmounts the volume at `target` and waits for its process to end. Each takes at most `wait`, except for the time
/// that the kernel itself waits. `tell` is called at each stage.
///
/// # Errors
/// [`Error::Busy`] with the holders of the mount; [`Error::NotDurable`] if the store refuses data that is not yet on
/// disk (the volume then stays mounted); [`Error::StillRunning`] and [`Error::Unwatched`] if the volume is unmounted
/// but its process is not known to have ended.
pub fn unmount(
    target: &Path,
    wait: Duration,
    unwritten: Unwritten,
    tell: &dyn Fn(UnmountProgress),
) -> Result<UnmountOutcome> {
    let clock = RealClock::new();
    let end = clock.monotonic().after(wait);
    let MountEntry { target, id, device, .. } = find(target)?;
    // All requests go to the mount that was found, even if its path leads elsewhere by now.
    let point = MountPoint::open(&target, id).map_err(|source| Error::Unmount { target: target.clone(), source })?;
    // A volume whose process died has nothing left to write.
    let alive = !matches!(rustix::fs::statfs(point.path()), Err(Errno::NOTCONN | Errno::CONNABORTED));
    let process = if alive { server_of(point.path()) } else { Ok(None) };
    // Only the server can describe the root directory. An error is an answer too.
    if alive && !process.as_ref().is_err_and(is_timeout) && virtual_xattrs::is_answered(point.path()) {
        tell(UnmountProgress::Answering);
    }
    let written = match &process {
        _ if !alive => Ok(()),
        // The server was unreachable for as long as the mount waits for it. A sync would wait as long, and fail as
        // well.
        Err(error) if is_timeout(error) => {
            Err(io::Error::new(error.kind(), format!("its server does not answer: {error}")))
        }
        _ => sync(point.path()),
    };
    let given_up = match (written, unwritten) {
        (Ok(()), _) => None,
        (Err(source), Unwritten::Keep) => return Err(Error::NotDurable { target, source }),
        (Err(source), Unwritten::GiveUp) => Some(source),
    };
    let size_stale = if alive && given_up.is_none() { record_sizes(point.path()) } else { None };
    match detach(&target, Some(id)) {
        // Callers that wait for the mount in the kernel hold it, and /proc does not show by what.
        Err(Error::Busy { holders, .. }) if holders.is_empty() && given_up.is_some() => {
            detach::force(&target, id, device).map_err(|source| Error::Unmount { target: target.clone(), source })?;
        }
        detached => detached?,
    }
    if let Some(awaited) = size_stale.filter(|size_stale| size_stale.awaited) {
        tell(UnmountProgress::AwaitingSizes(awaited));
    }
    let unmounted = UnmountOutcome { given_up, size_stale: size_stale.filter(|size_stale| !size_stale.awaited) };
    match process {
        Ok(None) => Ok(unmounted),
        Ok(Some((pid, process))) if ended(&process, end.since(clock.monotonic())).map_err(unwatched(&target))? => {
            tracing::debug!(pid, "the mount's process has ended");
            Ok(unmounted)
        }
        // The process did not identify itself, and has nothing left to do.
        Err(_) if unmounted.given_up.is_some() => Ok(unmounted),
        Ok(Some((pid, _))) => Err(Error::StillRunning { target, pid, waited: wait }),
        Err(source) => Err(unwatched(&target)(source)),
    }
}

/// Whether the mount's server was unreachable for as long as the mount waits for it.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIMEDOUT | libc::EHOSTDOWN))
}

/// Detaches the volume at `target` whose process has not answered. Sends no request to the process, gives up unwritten
/// data, and ends the calls that wait for a reply. `asker`: a process that waits for one, and is killed.
///
/// # Errors
/// [`Error::Busy`] with the other holders of the mount.
pub fn take_away(target: &Path, asker: u32) -> Result<()> {
    let Some(MountEntry { target, id, device, .. }) = find_unasked(target) else {
        return Err(Error::NotMounted(target.to_owned()));
    };
    let mut holders = holders(&target);
    let own = std::process::id();
    holders.retain(|holder| !matches!(holder, MountHolder::Process { pid, .. } if *pid == own || *pid == asker));
    if !holders.is_empty() {
        return Err(Error::Busy { target, holders });
    }
    detach::force(&target, id, device).map_err(|source| Error::Unmount { target, source })
}

/// Whether a volume is mounted at `target`, as far as this can be determined without a request to its process.
pub fn is_mounted(target: &Path) -> bool {
    find_unasked(target).is_some()
}

/// The volume that is mounted at `target`. The last component of `target` is not followed if it is a symbolic link.
fn find_unasked(target: &Path) -> Option<MountEntry> {
    let absolute = std::path::absolute(target).ok()?;
    let resolved = trusted_path::resolve(absolute.parent()?).ok()?.join(absolute.file_name()?);
    mounts::at(&mounts::table().ok()?, &resolved).filter(|mount| mount.kind == TYPE)
}

fn unwatched(target: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Unwatched { target: target.to_owned(), source }
}

/// Unmounts the mount `id` unless it is busy.
pub(crate) fn detach(target: &Path, id: Option<u32>) -> Result<()> {
    for _ in 0..BUSY_TRIES {
        match detach::detach(target, id, false) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let Search { found: mut holders, ended } = search_in_time(target);
                if holders.len() > 1 {
                    // This process holds the mount only by its working directory or by this search; the other holders
                    // are the cause.
                    let this = std::process::id();
                    holders.retain(|holder| !matches!(holder, MountHolder::Process { pid, .. } if *pid == this));
                }
                if !holders.is_empty() || !ended {
                    return Err(Error::Busy { target: target.to_owned(), holders });
                }
                #[allow(clippy::disallowed_methods, reason = "the kernel tells nobody when a mount is no longer busy")]
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(source) => return Err(Error::Unmount { target: target.to_owned(), source }),
        }
    }
    Err(Error::Busy { target: target.to_owned(), holders: Vec::new() })
}

pub(crate) fn find(target: &Path) -> Result<MountEntry> {
    if let Some(mount) = find_unasked(target) {
        return Ok(mount);
    }
    let wrap = |source| Error::Unmount { target: target.to_owned(), source };
    let resolved = mounts::resolve(target).map_err(wrap)?;
    let table = mounts::table().map_err(wrap)?;
    match mounts::at(&table, &resolved) {
        Some(mount) if mount.kind == TYPE => Ok(mount),
        Some(mount) => Err(Error::NotVarve { target: resolved, kind: mount.kind }),
        None => {
            let around = resolved.ancestors().find_map(|ancestor| mounts::at(&table, ancestor));
            match around.filter(|mount| mount.kind == TYPE) {
                Some(mount) => Err(Error::InsideMount { target: resolved, mount: mount.target }),
                None => Err(Error::NotMounted(resolved)),
            }
        }
    }
}

/// Writes everything to disk while a failure can still be reported: after the unmount, only the process's log would
/// show it. First the kernel's dirty pages (written through shared mappings) are flushed, then the data that the volume
/// has acknowledged. A user who may not read the root directory relies on the process, which does the same when it
/// ends.
fn sync(target: &Path) -> io::Result<()> {
    let synced =
        File::open(target).and_then(|root| Ok(rustix::fs::syncfs(root)?)).and_then(|()| virtual_xattrs::sync(target));
    match synced {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// The mount does the same when it ends, but does not report the sizes that it could not record.
fn record_sizes(target: &Path) -> Option<StaleSizes> {
    virtual_xattrs::record_sizes(target).unwrap_or_else(|error| {
        tracing::debug!("cannot read from the mount which sizes are not recorded: {error}");
        None
    })
}

/// The process that serves the mount, as the mount itself reports it; `None` if it has just ended.
fn server_of(target: &Path) -> io::Result<Option<(u32, OwnedFd)>> {
    let stated = virtual_xattrs::process(target)?;
    if stated.namespace != virtual_xattrs::own_namespace()? {
        return Err(io::Error::other("it runs in another namespace of processes"));
    }
    let pid =
        i32::try_from(stated.pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("it has no number"))?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some((stated.pid, process))),
        Err(Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn ended(process: &OwnedFd, wait: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&timeout)))?;
    Ok(ready == 1)
}

/// The holders of the mount at `target`: every process whose /proc entry shows a path on it, and mounts below it.
/// Unless this process is root, other users' processes are not found. If the kernel does not answer for one process
/// within 2 s, the processes after it are not found either.
pub fn holders(target: &Path) -> Vec<MountHolder> {
    search_in_time(target).found
}

/// [`holders`] of the volume mounted at `target`, without a request to its process.
pub fn holders_unasked(target: &Path) -> Vec<MountHolder> {
    find_unasked(target).map(|mount| holders(&mount.target)).unwrap_or_default()
}

/// The holders that were found, at most [`HOLDERS_MAX`], and whether the search was complete.
struct Search {
    found: Vec<MountHolder>,
    ended: bool,
}

/// A search that does not end leaves its thread behind until the kernel answers it.
fn search_in_time(target: &Path) -> Search {
    let (searched, (found, finds)) = (target.to_owned(), mpsc::sync_channel(HOLDERS_MAX));
    // Reading the /proc entry of a hanging process can block, for example while a program is started from a mount whose
    // server is gone.
    let search = move || search(&searched, &|holder| found.send(holder).is_ok());
    if let Err(error) = std::thread::Builder::new().name("varve-holders".into()).spawn(search) {
        tracing::warn!("cannot search for the processes that use {}: {error}", target.display());
    }
    let clock = RealClock::new();
    let end = clock.monotonic().after(SEARCH_MAX);
    let mut found = Vec::new();
    while found.len() < HOLDERS_MAX {
        match finds.recv_timeout(end.since(clock.monotonic())) {
            Ok(holder) => found.push(holder),
            Err(why) => return Search { found, ended: why == mpsc::RecvTimeoutError::Disconnected },
        }
    }
    Search { found, ended: true }
}

/// Passes each of [`holders`] to `tell` until that returns false.
fn search(target: &Path, tell: &dyn Fn(MountHolder) -> bool) {
    let table = mounts::table().unwrap_or_default();
    let below = table.iter().filter(|mount| mount.target != target && mount.target.starts_with(target));
    if !below.map(|mount| MountHolder::Mount(mount.target.clone())).all(tell) {
        return;
    }
    let device = mounts::at(&table, target).map(|mount| mount.device);
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Some(how) = how_held(&process.path(), target, device)
            && !tell(MountHolder::Process { pid, command: command(&process.path()), how })
        {
            return;
        }
    }
}

fn how_held(process: &Path, target: &Path, device: Option<(u32, u32)>) -> Option<HolderUse> {
    let on_mount = |link: PathBuf| std::fs::read_link(link).is_ok_and(|path| path.starts_with(target));
    let links = [("cwd", HolderUse::WorkingDirectory), ("root", HolderUse::RootDirectory), ("exe", HolderUse::Program)];
    if let Some((_, how)) = links.into_iter().find(|(name, _)| on_mount(process.join(name))) {
        return Some(how);
    }
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    if open.into_iter().any(|descriptor| on_mount(descriptor.path())) {
        return Some(HolderUse::OpenFile);
    }
    let maps = std::fs::read(process.join("maps")).unwrap_or_default();
    let device = device?;
    let mapped = maps.split(|byte| *byte == b'\n').any(|line| maps_device(line) == Some(device));
    mapped.then_some(HolderUse::MappedFile)
}

/// The device number in a line of `maps`: `7f00-7f01 r-xp 00000000 fe:01 1234 /path`, its parts in hexadecimal.
fn maps_device(line: &[u8]) -> Option<(u32, u32)> {
    let field = line.split(|byte| *byte == b' ').nth(3)?;
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
}

fn command(process: &Path) -> String {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).filter(|w| !w.is_empty()).map(String::from_utf8_lossy).collect();
    let joined = words.join(" ");
    match joined.char_indices().nth(COMMAND_CHARACTERS_MAX) {
        Some((cut, _)) => format!("{}…", &joined[..cut]),
        None if joined.is_empty() => {
            let name = std::fs::read(process.join("comm")).unwrap_or_default();
            String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
        }
        None => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `varve umount` names the holders of a mount.
    #[test]
    fn this_process_is_found_by_its_open_file_and_its_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let own = |holders: Vec<MountHolder>| {
            holders.into_iter().find(|h| matches!(h, MountHolder::Process { pid, .. } if *pid == std::process::id()))
        };
        assert_eq!(own(holders(&path)), None);
        let file = File::create(path.join("open")).unwrap();
        let held = own(holders(&path)).expect("holds a file");
        assert!(matches!(held, MountHolder::Process { how: HolderUse::OpenFile, .. }), "{held}");
        drop(file);
        let program = std::env::current_exe().unwrap();
        assert!(own(holders(program.parent().unwrap())).is_some());
    }

    #[test]
    fn maps_are_searched_by_device() {
        assert_eq!(maps_device(b"7f00-7f01 r-xp 00000000 fe:1a 1234    /path"), Some((0xfe, 0x1a)));
        assert_eq!(maps_device(b""), None);
    }

    #[test]
    fn a_plain_directory_is_not_unmounted() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(
            unmount(directory.path(), Duration::ZERO, Unwritten::Keep, &|_| {}),
            Err(Error::NotMounted(_))
        ));
        assert!(matches!(
            unmount(Path::new("/proc"), Duration::ZERO, Unwritten::Keep, &|_| {}),
            Err(Error::NotVarve { .. })
        ));
    }
}
