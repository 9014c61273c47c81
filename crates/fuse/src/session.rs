//! A mount from its first request to its last: the request loop between kernel and frontend, and unmounting.

#![allow(clippy::disallowed_types, reason = "the socket on which fusermount3 waits for this process to end")]

use crate::attach::{self, Attached};
use crate::detach::detach;
use crate::error::{Error, Result};
use crate::frontend::FuseFrontend;
use crate::invalidation::{InvalidatorThread, KernelInvalidator};
use crate::mounts::MountLocation;
use crate::numbers::NodeNumbers;
use crate::options::{Access, MountOptions};
use crate::unmount::MountHolder;
use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use varve_client::FileSystem;

/// A transport for requests between the kernel and a file system. It is created when the mount exists and the first
/// request (FUSE_INIT) is answered. One implementation reads requests from `/dev/fuse`; io_uring, which the kernel
/// offers since 6.14, is planned as a second.
pub(crate) trait RequestLoop: Send {
    /// Serves until the file system is unmounted, then notifies the file system.
    fn run(self: Box<Self>) -> io::Result<()>;
}

/// Requests by read(2) and replies by write(2) on `/dev/fuse`, on several threads.
struct DeviceLoop<F: Filesystem>(Session<F>);

impl<F: Filesystem> RequestLoop for DeviceLoop<F> {
    fn run(self: Box<Self>) -> io::Result<()> {
        match self.0.run() {
            // An alternative to ENODEV, which is the usual end: the kernel took the mount away between a thread's
            // choice of a request and its copy of it. No caller waits for a reply to that request.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            ended => ended,
        }
    }
}

impl<F: Filesystem> DeviceLoop<F> {
    fn new(file_system: F, device: OwnedFd, options: &MountOptions) -> io::Result<Self> {
        let access = match options.access {
            Access::Owner => SessionACL::Owner,
            Access::OwnerAndRoot => SessionACL::RootAndOwner,
            Access::Everyone => SessionACL::All,
        };
        let mut config = Config::default();
        config.n_threads = Some(options.threads);
        // One descriptor per thread avoids lock contention on a single queue of pending replies. It requires the right
        // to open the device, which a user whose descriptor came from the helper may lack.
        config.clone_fd = File::options().read(true).write(true).open(attach::DEVICE).is_ok();
        config.acl = access;
        Session::from_fd(file_system, device, access, config).map(DeviceLoop)
    }
}

/// The result of closing the volume, set by the frontend.
pub(crate) type CloseOutcome = Arc<OnceLock<std::result::Result<(), String>>>;

/// Number of calls of the kernel for whose replies programs wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallsInProgress(Arc<AtomicUsize>);

/// Counts one call until dropped.
pub(crate) struct CallInProgress<'c>(&'c CallsInProgress);

impl CallsInProgress {
    pub fn enter(&self) -> CallInProgress<'_> {
        self.0.fetch_add(1, Relaxed);
        CallInProgress(self)
    }

    pub fn any(&self) -> bool {
        self.0.load(Relaxed) > 0
    }
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// A mount that is being served. Dropping it unmounts at once (files still open on it fail with ENOTCONN when this
/// process ends); [`MountSession::unmount`] is the orderly way.
pub struct MountSession {
    unmounter: Unmounter,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Closing it makes fusermount3 unmount (`auto_unmount`), so it lives as long as the mount.
    _helper: Option<UnixStream>,
}

/// Mounts a volume at a directory and serves it until it is unmounted.
///
/// # Errors
/// If the directory cannot be a mount point, `/dev/fuse` or fusermount3 refuses, the kernel is too old, or the store
/// does not answer.
pub fn mount(fs: Arc<FileSystem>, target: &Path, options: &MountOptions) -> Result<MountSession> {
    let closed = CloseOutcome::default();
    let store = fs.store().root();
    let ask = |source| Error::Store { store: store.to_owned(), source };
    let owner = store.metadata().map_err(ask)?.uid();
    let trusted = owner == 0 && rustix::process::geteuid().is_root();
    let frontend = FuseFrontend::new(Arc::clone(&fs), options, trusted, Arc::clone(&closed));
    let mut options = options.clone();
    if owner != 0 {
        // The owner can write any content to the store's tables, including set-user-id bits and devices.
        options.flags |= MountFlags::NOSUID | MountFlags::NODEV;
    }
    // The store may lie in a volume of another user, whose tables can claim that it is root's.
    let beneath = rustix::fs::statvfs(store).map_err(|errno| ask(errno.into()))?.f_flag;
    if beneath.contains(StatVfsMountFlags::NOSUID) {
        options.flags |= MountFlags::NOSUID;
    }
    if beneath.contains(StatVfsMountFlags::NODEV) {
        options.flags |= MountFlags::NODEV;
    }
    let calls = frontend.calls().clone();
    start(frontend, target, &options, closed, Some((&fs, calls)))
}

/// Mounts any file system on the same request loop. `volume`: the volume that it serves, if any.
pub(crate) fn start<F: Filesystem>(
    file_system: F,
    target: &Path,
    options: &MountOptions,
    closed: CloseOutcome,
    volume: Option<(&Arc<FileSystem>, CallsInProgress)>,
) -> Result<MountSession> {
    let target = attach::check_target(target)?;
    let Attached { device, helper } = attach::attach(&target, options)?;
    let number = crate::mounts::device_at(&target);
    let started = device.try_clone().and_then(|device_too| {
        let device_too = Arc::new(device_too);
        let unmounter = Unmounter { target: target.clone(), number, device: Arc::downgrade(&device_too), closed };
        let requests: Box<dyn RequestLoop> = Box::new(DeviceLoop::new(file_system, device, options)?);
        let reported = volume.map(|(volume, calls)| begin_beside(volume, calls, &device_too, options)).transpose()?;
        let thread = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            let _until_the_end = (reported, device_too);
            requests.run()
        })?;
        Ok((unmounter, thread))
    });
    match started {
        Ok((unmounter, thread)) => Ok(MountSession { unmounter, thread: Some(thread), _helper: helper }),
        Err(error) => {
            // The device is closed by now, so the mount is dead and no process can use it.
            let id =
                crate::mounts::table().ok().and_then(|table| crate::mounts::at(&table, &target)).map(|mount| mount.id);
            if let Err(left) = detach(&target, id, true) {
                tracing::warn!(target = %target.display(), error = %left, "a dead mount is left behind");
            }
            Err(Error::Session(error))
        }
    }
}

/// Starts the background work that needs the device of a volume's mount.
fn begin_beside(
    volume: &Arc<FileSystem>,
    calls: CallsInProgress,
    device: &Arc<OwnedFd>,
    options: &MountOptions,
) -> io::Result<InvalidatorThread> {
    let numbers = NodeNumbers::of_mount(options.inode32, volume.settings().shards);
    KernelInvalidator::of(volume, numbers).start(device.try_clone()?, calls)
}

impl MountSession {
    /// The directory where it was mounted, as the kernel names it.
    pub fn target(&self) -> &Path {
        self.unmounter.target()
    }

    /// Waits until the mount is unmounted (umount(8), `varve umount`, [`Unmounter`]) and the volume is closed.
    /// Everything that was acknowledged is then durable.
    ///
    /// # Errors
    /// If the volume could not be closed, or the request loop failed.
    pub fn join(mut self) -> Result<()> {
        self.wait()
    }

    /// Unmounts and waits until the volume is closed.
    ///
    /// # Errors
    /// As [`MountSession::join`]; [`Error::Unmount`] if the kernel refuses.
    pub fn unmount(mut self) -> Result<()> {
        self.unmounter.unmount()?;
        self.wait()
    }

    /// A handle to unmount from elsewhere, such as a signal's thread, while another thread is in
    /// [`MountSession::join`].
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    fn wait(&mut self) -> Result<()> {
        let thread = self.thread.take().expect("waited for once");
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the request loop panicked")));
        if ended.is_err()
            && let Err(error) = self.unmounter.detach_dead()
        {
            tracing::warn!("a dead mount is left behind: {error}");
        }
        ended.map_err(Error::Session)?;
        match self.unmounter.closed.get() {
            Some(Err(text)) => Err(Error::Closing(text.clone())),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

impl Drop for MountSession {
    fn drop(&mut self) {
        // Once the thread has ended the mount is gone, and another user's mount may be at the path.
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && !self.unmounter.has_ended()
            && let Err(error) = self.unmounter.detach_dead()
        {
            tracing::warn!("{error}");
        }
    }
}

/// Unmounts a mount at its present location: it may have been moved since it was made, or bound to more locations.
#[derive(Clone, Debug)]
pub struct Unmounter {
    /// The directory where it was mounted.
    target: PathBuf,
    /// [`crate::mounts::device_at`] the target when the mount was made.
    number: Option<(u32, u32)>,
    /// The descriptor that requests arrive on, as long as any can arrive.
    device: Weak<OwnedFd>,
    closed: CloseOutcome,
}

impl Unmounter {
    /// Unmounts if nothing is open on the mount. Does not wait for the volume to close: [`MountSession::join`] does.
    ///
    /// # Errors
    /// [`Error::Busy`] with the holders of the mount, if there are any.
    pub fn unmount(&self) -> Result<()> {
        self.unless_gone(|place| crate::unmount::detach(&place.target, place.id))
    }

    /// Like [`Unmounter::unmount`], but does not report the holders, which would require a scan of all processes.
    ///
    /// # Errors
    /// [`Error::Busy`] if something is open on the mount.
    pub fn unmount_if_free(&self) -> Result<()> {
        self.unless_gone(|place| match detach(&place.target, place.id, false) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                Err(Error::Busy { target: place.target.clone(), holders: Vec::new() })
            }
            done => done.map_err(unmounting(&place.target)),
        })
    }

    /// Removes the mount from the namespace at once (lazy unmount). Files open on it are still served; the volume is
    /// closed when the last of them is closed.
    ///
    /// # Errors
    /// [`Error::Unmount`] if the kernel refuses; [`Error::Busy`] if another mount covers it, or is in it.
    pub fn detach(&self) -> Result<()> {
        self.unless_gone(detach_lazily)
    }

    /// Unmounts a mount that is no longer served, and the mounts in it.
    fn detach_dead(&self) -> Result<()> {
        let places = crate::mounts::places_of(self.number, &self.target);
        places.iter().rev().filter(|place| place.covered.is_none()).try_for_each(detach_lazily)
    }

    fn unless_gone(&self, unmount: impl Fn(&MountLocation) -> Result<()>) -> Result<()> {
        let mut places = crate::mounts::places_of(self.number, &self.target);
        // Checked after the table was read: if it has not ended now, the device number was this mount's at that time.
        if self.has_ended() {
            return Ok(());
        }
        // An unmount would remove the other mounts with it, or instead of it.
        for place in &mut places {
            if let Some(mount) = place.covered.take().or(place.holds.take()) {
                return Err(Error::Busy { target: place.target.clone(), holders: vec![MountHolder::Mount(mount)] });
            }
        }
        // The location where it was made comes last, so that it stays usable there while it is busy elsewhere.
        places.iter().rev().try_for_each(|place| unmount(place).or_else(|error| self.unless_left(place, error)))
    }

    /// Ignores the error if the location no longer exists: the kernel removes some locations together with others.
    fn unless_left(&self, place: &MountLocation, error: Error) -> Result<()> {
        let left = crate::mounts::places_of(self.number, &self.target);
        if left.iter().any(|left| left.target == place.target) { Err(error) } else { Ok(()) }
    }

    /// Whether the mount no longer exists because it was unmounted. A mount at the same path is then another one.
    pub fn is_gone(&self) -> bool {
        self.has_ended() || crate::mounts::places_of(self.number, &self.target).is_empty()
    }

    /// No request can arrive any more, so the kernel may have given the device number to another mount.
    fn has_ended(&self) -> bool {
        self.closed.get().is_some() || self.device.upgrade().is_none_or(|device| has_hung_up(&device))
    }

    /// The directory where it was mounted.
    pub fn target(&self) -> &Path {
        &self.target
    }
}

/// Whether the connection to the kernel has ended.
pub(crate) fn has_hung_up(device: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(device, PollFlags::empty())];
    rustix::event::poll(&mut watched, Some(&Timespec::default()))
        .is_ok_and(|_| watched[0].revents().contains(PollFlags::ERR))
}

fn detach_lazily(place: &MountLocation) -> Result<()> {
    detach(&place.target, place.id, true).map_err(unmounting(&place.target))
}

fn unmounting(target: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Unmount { target: target.to_owned(), source }
}
