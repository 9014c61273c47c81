//! Shared fixture of tests with real mounts: a mount directory that is cleaned up in every case.

use crate::late::Late;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, FileSystem, Operation};
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_fuse::{MountOptions, MountSession, Unmounter};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{ShardCount, VolumeId, VolumeSettings};

/// Small enough that tests with a few hundred names have directories with many partitions.
const SPLIT_THRESHOLD: u64 = 8;
const INLINE_LIMIT: u32 = 16 * 1024;
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Whether this machine can mount at all. Only a missing device permits skipping a test.
pub fn can_mount() -> bool {
    let there = Path::new("/dev/fuse").exists();
    if !there {
        eprintln!("skipped: this machine has no /dev/fuse");
    }
    there
}

/// A directory to mount at. On drop it is unmounted (lazily, if a file is still open) and removed.
pub struct MountPoint {
    directory: Option<tempfile::TempDir>,
}

impl MountPoint {
    pub fn new() -> MountPoint {
        let directory = tempfile::Builder::new().prefix("varve-mount-").tempdir().expect("a temporary directory");
        MountPoint { directory: Some(directory) }
    }

    pub fn path(&self) -> &Path {
        self.directory.as_ref().expect("there until dropped").path()
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let directory = self.directory.take().expect("dropped once");
        while is_mounted(directory.path()) {
            if !detach(directory.path()) {
                // Removing the directory would remove the files mounted there.
                eprintln!("{} stays mounted", directory.keep().display());
                return;
            }
        }
    }
}

fn detach(path: &Path) -> bool {
    let by_helper = || Command::new("fusermount3").arg("-uz").arg(path).status().is_ok_and(|status| status.success());
    rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).is_ok() || by_helper()
}

pub fn is_mounted(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("proc is mounted");
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Gives a tree to `owner`. A server that works in it may remove its temporary files meanwhile.
fn give_away(path: &Path, owner: u32) {
    match std::os::unix::fs::lchown(path, Some(owner), None) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        given => given.expect("given away"),
    }
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a directory");
        entries.for_each(|entry| give_away(&entry.expect("an entry").path(), owner));
    }
}

/// Runs a shell command and returns its output; fails the test if it fails.
pub fn shell(command: &str, arguments: &[&Path]) -> String {
    let output = Command::new("sh").arg("-ec").arg(command).arg("sh").args(arguments).output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {text}{errors}");
    text
}

/// The volume's directory in its store.
const VOLUME: &str = "volume";

/// How long a child that another test forks may hold a mount: until it executes its program, it has all open files of
/// this process.
const HELD_BY_A_FORK: Duration = Duration::from_secs(10);

/// Unmounts and waits until the volume is closed; fails the test if that fails.
fn unmount(mounted: MountSession) {
    let deadline = Instant::now() + HELD_BY_A_FORK;
    loop {
        match mounted.unmounter().unmount_if_free() {
            Err(varve_fuse::Error::Busy { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(varve_fuse::Error::Busy { .. }) => return mounted.unmount().expect("unmounted"),
            unmounted => break unmounted.expect("unmounted"),
        }
    }
    mounted.join().expect("closed");
}

/// Copies a program that the test executes afterwards.
///
/// Another process writes the copy. If this one did, a child that another test forks would inherit the descriptor, and
/// the copy could not be executed (ETXTBSY) until that child executes its own program.
pub fn copy_program(from: &Path, to: &Path) {
    shell("cp --preserve=mode \"$1\" \"$2\"", &[from, to]);
}

/// A new volume, served by this process and mounted, as `varve mount` does for a store without a server.
pub struct Volume {
    pub point: MountPoint,
    mounted: Option<MountSession>,
    file_system: Arc<FileSystem>,
    server: Arc<Server>,
    _small: Option<SmallStore>,
    pub store: tempfile::TempDir,
}

impl Volume {
    pub fn new() -> Volume {
        Volume::with_options("")
    }

    /// `list`: as after `-o`.
    pub fn with_options(list: &str) -> Volume {
        Volume::joined(list, true, |joining, _| FileSystem::connect(joining))
    }

    /// A volume owned by another user.
    pub fn owned_by(uid: u32) -> Volume {
        Volume::joined_in(new_store(), None, uid, "", true, |joining, _| FileSystem::connect(joining))
    }

    /// A volume in a store of `mib` MiB. `None`: this process may not mount such a store.
    pub fn in_small_store(list: &str, mib: u64) -> Option<Volume> {
        let store = new_store();
        let small = SmallStore::mount(store.path(), mib)?;
        Some(Volume::joined_in(store, Some(small), own_uid(), list, true, |joining, _| FileSystem::connect(joining)))
    }

    /// A volume that is mounted twice, by two independent clients.
    pub fn mounted_twice(list: &str) -> (Volume, Beside) {
        let volume = Volume::joined(list, false, |joining, _| FileSystem::connect(joining));
        let directory = VolumeDir::new(volume.store.path().join(VOLUME));
        let (point, mounted, _) = mount(directory, list, FileSystem::connect);
        (volume, Beside { point, mounted })
    }

    /// A volume whose changes end as the returned [`Late`] determines.
    pub fn late() -> (Volume, Late) {
        let mut late = None;
        let volume = Volume::joined("", true, |joining, server| {
            let late = late.insert(Late::of(Arc::clone(server)));
            FileSystem::connect_within(joining, Arc::new(late.clone()))
        });
        (volume, late.expect("joined"))
    }

    fn joined(
        list: &str,
        embedded: bool,
        join: impl FnOnce(ClientConfig, &Arc<Server>) -> varve_client::Result<Arc<FileSystem>>,
    ) -> Volume {
        Volume::joined_in(new_store(), None, own_uid(), list, embedded, join)
    }

    fn joined_in(
        store: tempfile::TempDir,
        small: Option<SmallStore>,
        owner_uid: u32,
        list: &str,
        embedded: bool,
        join: impl FnOnce(ClientConfig, &Arc<Server>) -> varve_client::Result<Arc<FileSystem>>,
    ) -> Volume {
        let directory = VolumeDir::new(store.path().join(VOLUME));
        let settings = VolumeSettings {
            id: VolumeId(varve_env::random::bytes()),
            name: "test".into(),
            shards: ShardCount::new(8).expect("a power of two"),
            split_threshold: SPLIT_THRESHOLD,
            inline_limit: INLINE_LIMIT,
            sync_interval: Duration::from_millis(200),
            owner_uid,
        };
        varve_admin::format::format(&directory, &settings, FormatOver::Nothing).expect("formatted");
        let mut serving = ServerConfig::new(directory.clone());
        serving.workers = 2;
        serving.embedded = embedded;
        serving.unix_directory = Some(store.path().join("sockets"));
        let server = Arc::new(Server::start(serving).expect("served"));
        // The server of this process has root's rights, so its files are given away when they exist.
        give_away(directory.root(), owner_uid);
        let (point, mounted, file_system) = mount(directory, list, |joining| join(joining, &server));
        Volume { point, mounted: Some(mounted), file_system, server, _small: small, store }
    }

    pub fn path(&self) -> &Path {
        self.point.path()
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// The operations of this kind that the kernel requested until now.
    pub fn operations(&self, operation: Operation) -> u64 {
        self.file_system.counters().of(operation).calls
    }

    pub fn unmounter(&self) -> Unmounter {
        self.mounted.as_ref().expect("not closed").unmounter()
    }

    /// Drops the mount without unmounting it first.
    pub fn drop_mount(&mut self) {
        self.mounted = None;
    }

    /// Unmounts and stops the server, and fails the test if either fails.
    pub fn close(mut self) {
        if let Some(mounted) = self.mounted.take() {
            unmount(mounted);
        }
        self.server.stop(STOP_DEADLINE).expect("stopped");
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn new_store() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("varve-store-").tempdir().expect("a temporary directory")
}

/// A file system of `mib` MiB, mounted for as long as this lives.
struct SmallStore(PathBuf);

impl SmallStore {
    fn mount(at: &Path, mib: u64) -> Option<SmallStore> {
        let size = format!("size={mib}m,mode=755");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "varve-test"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| SmallStore(at.into()))
    }
}

impl Drop for SmallStore {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

/// The other mount of a volume.
pub struct Beside {
    point: MountPoint,
    mounted: MountSession,
}

impl Beside {
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// Unmounts, and fails the test if that fails.
    pub fn close(self) {
        unmount(self.mounted);
    }
}

fn mount(
    directory: VolumeDir,
    list: &str,
    join: impl FnOnce(ClientConfig) -> varve_client::Result<Arc<FileSystem>>,
) -> (MountPoint, MountSession, Arc<FileSystem>) {
    let mut options = MountOptions::new(directory.root().to_string_lossy());
    options.parse(list).expect("known options");
    let mut joining = ClientConfig::new(directory);
    joining.passthrough = options.passthrough;
    joining.direct_io = options.direct_io;
    joining.read_only = options.read_only();
    joining.deadline = Duration::from_secs(20);
    let file_system = join(joining).expect("connected");
    let point = MountPoint::new();
    let mounted = varve_fuse::mount(Arc::clone(&file_system), point.path(), &options).expect("mounted");
    (point, mounted, file_system)
}

/// A mounted volume; `None`, with a message, if this machine cannot mount.
pub fn volume() -> Option<Volume> {
    can_mount().then(Volume::new)
}
