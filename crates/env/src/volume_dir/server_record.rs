//! `servers/NUMBER.toml`: the same for one of several servers that have joined; NUMBER has 16 hexadecimal digits.
//!
//! `servers/NUMBER.dead`: the record of such a server that others took for dead while its process may live, stopped for
//! example. Clients do not read it; it tells processes of its host who has the lock.
//!
//! `servers/current.toml`: the process that serves the volume, and its addresses. The lock's holder writes it. When the
//! server stops, the file becomes `servers/stopped.toml`, or `servers/left.toml` if clients had files open. After a
//! crash the record is stale until the next server replaces it, so a client that cannot connect to that server reads it
//! again.

use super::rights::Readers;
use super::{VolumeDir, VolumeLock};
use crate::disk::{self, WriterId};
use crate::mount_table::{MountEntry, has_mounted};
use crate::printable::printable;
use crate::reserve::is_for_want_of_room;
use crate::store_path::{StoreEntry, StorePath};
use crate::toml_text;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SERVERS_MODE: u32 = 0o755;

/// Suffixes of the records of servers that have joined.
const JOINED: &str = ".toml";
const TAKEN_FOR_DEAD: &str = ".dead";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRecord {
    pub host: String,
    /// The kernel's boot id: a pid is meaningless on another boot.
    pub boot_id: String,
    pub pid: u32,
    /// The PID namespace (pid_namespaces(7)) of this pid, as its inode number, for example a container's. None for the
    /// host's initial namespace and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
    /// The server runs inside a mount and serves only that mount.
    pub embedded: bool,
    /// The store's directory, for messages: it may have been moved since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The device and inode number of that directory. Earlier versions write neither `store` nor `store_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_id: Option<String>,
    /// Where an embedded server mounts the volume, if the mount has another source than the store (`-o fsname`). It
    /// identifies the mount in a mount table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_point: Option<String>,
    /// An embedded server that began while clients of the previous server might have had files open: those clients do
    /// not connect to it, and it leaves them to the next server.
    #[serde(default, skip_serializing_if = "is_false")]
    pub after_open_files: bool,
    /// The writer of this server's temporary files ([`WriterId`]). Earlier versions do not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
    /// The number of a server that has joined others, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// The acknowledgement level at which this server began. Earlier versions do not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<String>,
    #[serde(default, rename = "worker")]
    pub workers: Vec<WorkerRecord>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Addresses of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerRecord {
    /// Path of the Unix socket, for clients of the same host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<String>,
    /// `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
}

impl ServerRecord {
    /// The record of this process, which serves `volume`.
    pub fn of_this_process(volume: &VolumeDir, embedded: bool, workers: Vec<WorkerRecord>) -> io::Result<ServerRecord> {
        let store = std::path::absolute(volume.root())?.to_string_lossy().into_owned();
        let store_id = volume.store_id()?;
        Ok(ServerRecord {
            host: host_name(),
            boot_id: boot_id()?,
            pid: std::process::id(),
            pid_namespace: pid_namespace(),
            embedded,
            store: Some(store),
            store_id: Some(store_id),
            mount_point: None,
            after_open_files: false,
            writer: Some(WriterId::of_this_process().to_string()),
            number: None,
            ack: None,
            workers,
        })
    }

    /// Refuses a record that was copied together with the store: its server has the original, and clients of that
    /// server would change the original. Device numbers of other hosts and earlier boots are not comparable with those
    /// here.
    pub fn check_store(&self, volume: &VolumeDir) -> Result<(), OtherStore> {
        let (Some(wanted), true) = (&self.store_id, self.is_of_this_boot()) else { return Ok(()) };
        match volume.store_id() {
            Ok(found) if found != *wanted => Err(OtherStore {
                record: volume.server_file().into(),
                store: volume.root().to_owned(),
                other: self.store.as_deref().map_or_else(|| "another directory".to_owned(), printable),
            }),
            // If the directory cannot be examined, a later access reports that.
            _ => Ok(()),
        }
    }

    /// Whether the record was certainly copied together with the store: its server has the original.
    fn is_of_original(&self, store_id: Option<&str>) -> bool {
        let ids = self.store_id.as_deref().zip(store_id);
        self.is_of_this_boot() && ids.is_some_and(|(original, copy)| are_other_stores(original, copy))
    }

    /// Whether the record was written on this host since its boot: only then are its Unix sockets meaningful here.
    pub fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|id| id == self.boot_id)
    }

    /// Whether its pid is meaningful here.
    pub fn is_of_our_processes(&self) -> bool {
        self.is_of_this_boot() && self.pid_namespace == pid_namespace()
    }

    /// Its process, for messages. A pid of another PID namespace refers to a different process here.
    pub fn process(&self) -> String {
        let elsewhere =
            if self.is_of_this_boot() && !self.is_of_our_processes() { " of another PID namespace" } else { "" };
        format!("process {}{elsewhere}", self.pid)
    }

    /// Whether its process has certainly ended: a process in our PID namespace that has ended, or one from before the
    /// host booted. The state of processes on other hosts and in containers is not known.
    pub fn is_of_the_dead(&self) -> bool {
        match boot_id() {
            Ok(id) if id == self.boot_id => self.is_of_our_processes() && is_gone(self.pid),
            Ok(_) => self.host == host_name(),
            Err(_) => false,
        }
    }

    /// Whether its process, in our PID namespace, was killed or is exiting, and has not ended yet.
    pub fn is_of_one_that_ends(&self) -> bool {
        self.is_of_our_processes() && is_ending(self.pid) && !is_gone(self.pid)
    }

    /// Whether its process, another one in our PID namespace, serves a mount that is in no mount table: it was unmounted,
    /// perhaps lazily, or is not mounted yet.
    pub fn is_of_an_unmounted_mount(&self) -> bool {
        let Some(store) = self.store.as_deref().filter(|_| self.embedded && self.is_of_our_processes()) else {
            return false;
        };
        // Another user's process may hide its table.
        let shown = ["/proc/self".into(), PathBuf::from(format!("/proc/{}", self.pid))];
        let mount_point = self.mount_point.as_deref().map(Path::new);
        let is_ours = |mount: &MountEntry| match mount_point {
            Some(mount_point) => mount.target == mount_point,
            None => mount.source == Path::new(store),
        };
        let mounted = |process: &PathBuf| has_mounted(process, is_ours) == Some(true);
        self.pid != std::process::id() && !shown.iter().any(mounted)
    }
}

/// Whether a process has ended, even if its parent has not waited for it. It keeps its locks as long as any of its
/// threads is still exiting.
fn is_gone(pid: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    if test_kill_process(number) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    // Other users' processes may be hidden; a process that accepts a signal but hides its threads exists.
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let has_ended = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['Z', 'X']));
    threads.flatten().all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(has_ended))
}

/// Whether a process has been killed or is exiting, or has ended without its parent waiting for it.
fn is_ending(pid: u32) -> bool {
    /// `PF_EXITING` in the flags of proc_pid_stat(5): the thread releases its resources.
    const EXITING: u32 = 4;
    /// SIGKILL in the signal masks of proc_pid_status(5), which are hexadecimal.
    const KILLED: u64 = 1 << 8;
    // An exiting process exits in all its threads, including the first one, which these files describe.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u32>().ok());
    if fields.starts_with(['Z', 'X']) || flags.is_some_and(|flags| flags & EXITING != 0) {
        return true;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    pending.filter_map(|signals| u64::from_str_radix(signals.trim(), 16).ok()).any(|signals| signals & KILLED != 0)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{} is of the server of {other}, which is another directory: {} is a copy of a volume that was served, as after a crash; \
     to use the copy by itself, check it with `varve fsck` and then serve or mount it, which replaces that record",
    record.display(), store.display()
)]
pub struct OtherStore {
    record: PathBuf,
    store: PathBuf,
    other: String,
}

/// Whether two [store ids](VolumeDir::store_id) of one boot are certainly of different directories. Two mounts of one file
/// system have different device numbers, and the same inode numbers.
pub fn are_other_stores(one: &str, other: &str) -> bool {
    let inode = |id: &str| id.rsplit_once('-').map(|(_, inode)| inode.to_owned());
    matches!((inode(one), inode(other)), (Some(one), Some(other)) if one != other)
}

/// The name of this host, as server records have it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// None for the host's initial namespace, or if it is unknown.
fn pid_namespace() -> Option<u64> {
    /// `PROC_PID_INIT_INO` in the kernel.
    const FIRST: u64 = 0xEFFF_FFFC;
    let found = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
    (found != FIRST).then_some(found)
}

/// The kernel's boot id of this host.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

impl VolumeDir {
    /// Identifies a directory of this host: bind mounts of it have the same id; copies and snapshots have others.
    pub fn store_id(&self) -> io::Result<String> {
        let found = self.at_root().metadata()?;
        // Strings, because TOML has no unsigned 64-bit numbers.
        Ok(format!("{:x}-{:x}", found.dev(), found.ino()))
    }

    /// The record of the server, or of one that ended without removing it; `None` if there is none.
    pub fn read_server_record(&self) -> io::Result<Option<ServerRecord>> {
        self.read_record(&self.server_file())
    }

    /// The records of the servers that may run now, the newest first: one that is alone, or those that have joined. A
    /// record that cannot be read is left out if there are others.
    pub fn read_server_records(&self) -> io::Result<Vec<ServerRecord>> {
        let joined = self.living_joined();
        match self.read_server_record() {
            Ok(alone) => Ok(alone.into_iter().chain(joined).collect()),
            Err(_) if !joined.is_empty() => Ok(joined),
            Err(error) => Err(error),
        }
    }

    /// The records of servers that have joined and may run, the newest first.
    pub fn living_joined(&self) -> Vec<ServerRecord> {
        let read = |path: StorePath| self.read_record(&path).ok().flatten();
        self.joined_files(JOINED).into_iter().filter_map(read).filter(|record| !record.is_of_the_dead()).collect()
    }

    /// The records of servers that have joined and may have the lock: also of a process of this host that others took
    /// for dead and that has not ended. A server of another host that was taken for dead is not known to live. Records that
    /// were copied with the store are those of the original's servers.
    pub fn joined_holders(&self) -> Vec<ServerRecord> {
        let store_id = self.store_id().ok();
        let read = |path: StorePath| self.read_record(&path).ok().flatten();
        let may_live = |record: &ServerRecord| record.is_of_our_processes() && !record.is_of_the_dead();
        let hidden = self.joined_files(TAKEN_FOR_DEAD).into_iter().filter_map(read).filter(may_live);
        let holders = self.living_joined().into_iter().chain(hidden);
        holders.filter(|record| !record.is_of_original(store_id.as_deref())).collect()
    }

    /// The files with this suffix, the newest first.
    fn joined_files(&self, suffix: &str) -> Vec<StorePath> {
        let written = |path: &StorePath| path.symlink_metadata().and_then(|found| found.modified()).ok();
        let entries = self.servers().read_dir().unwrap_or_default();
        let is_record = |entry: &StoreEntry| {
            let stem = entry.file_name().to_str().and_then(|name| name.strip_suffix(suffix));
            stem.is_some_and(|stem| stem.len() == 16 && stem.bytes().all(|digit| digit.is_ascii_hexdigit()))
        };
        let files = entries.into_iter().filter(is_record).map(StoreEntry::into_path);
        let mut files: Vec<_> = files.map(|path| (written(&path), path)).collect();
        files.sort_by_key(|(written, _)| std::cmp::Reverse(*written));
        files.into_iter().map(|(_, path)| path).collect()
    }

    /// The record of the server `number` that has joined.
    fn joined_file(&self, number: u64, suffix: &str) -> StorePath {
        self.servers().join(format!("{number:016x}{suffix}"))
    }

    /// Publishes the record of a server that has joined. A server that is alone after it expects open files.
    pub fn write_joined_record(&self, _lock: &VolumeLock, number: u64, record: &ServerRecord) -> io::Result<()> {
        let record = ServerRecord { number: Some(format!("{number:016x}")), ..record.clone() };
        let text = toml::to_string(&record).map_err(io::Error::other)?;
        self.make_servers()?;
        disk::replace(&self.left_server_file(), text.as_bytes())?;
        // Of a server that was alone and has ended.
        remove_if_there(&self.server_file())?;
        disk::replace(&self.joined_file(number, JOINED), text.as_bytes())
    }

    /// Publishes the record of a server that has joined again, if somebody removed it. Returns whether that was so.
    pub fn restore_joined_record(&self, number: u64, record: &ServerRecord) -> io::Result<bool> {
        let path = self.joined_file(number, JOINED);
        if path.try_exists()? {
            return Ok(false);
        }
        let record = ServerRecord { number: Some(format!("{number:016x}")), ..record.clone() };
        self.make_servers()?;
        disk::replace(&path, toml::to_string(&record).map_err(io::Error::other)?.as_bytes())?;
        Ok(true)
    }

    /// Removes the record of a server that has left; a missing record is no error.
    pub fn remove_joined_record(&self, number: u64) -> io::Result<()> {
        remove_if_there(&self.joined_file(number, JOINED))?;
        remove_if_there(&self.joined_file(number, TAKEN_FOR_DEAD))
    }

    /// Hides the record of a server that others took for dead from clients, who would try it in vain. It stays for
    /// processes of its host as long as its own process has not ended: that one still has the lock.
    pub fn hide_joined_record(&self, number: u64) -> io::Result<()> {
        let [shown, hidden] = [JOINED, TAKEN_FOR_DEAD].map(|suffix| self.joined_file(number, suffix));
        match self.read_record(&shown) {
            Ok(Some(record)) if record.is_of_the_dead() => remove_if_there(&shown)?,
            _ => rename_if_there(&shown, &hidden)?,
        }
        for earlier in self.joined_files(TAKEN_FOR_DEAD) {
            if self.read_record(&earlier)?.is_some_and(|record| record.is_of_the_dead()) {
                remove_if_there(&earlier)?;
            }
        }
        Ok(())
    }

    fn read_record(&self, path: &StorePath) -> io::Result<Option<ServerRecord>> {
        let text = match self.open_own(path, Readers::Anybody).and_then(disk::text_of) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let what = format!("cannot read the server record {path}: {error}");
                return Err(io::Error::new(error.kind(), what));
            }
        };
        toml::from_str(&text).map(Some).map_err(|error| {
            let reason = toml_text::reason(&text, &error);
            io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not a server record: {}", printable(&reason)))
        })
    }

    /// Other writers of temporary files that may still run: this process must not remove their files.
    pub(super) fn living_writers(&self) -> Vec<WriterId> {
        let alone = self.read_server_record().ok().flatten().filter(|record| !record.is_of_the_dead());
        let living = alone.into_iter().chain(self.living_joined());
        let writers = living.filter_map(|record| record.writer?.parse().ok());
        writers.filter(|writer| *writer != WriterId::of_this_process()).collect()
    }

    /// Publishes the record of this server and replaces that of one that crashed.
    pub fn write_server_record(&self, lock: &VolumeLock, record: &ServerRecord) -> io::Result<()> {
        let text = toml::to_string(record).map_err(io::Error::other)?;
        self.make_servers()?;
        match disk::replace(&self.server_file(), text.as_bytes()) {
            // The record of a server that was stopped or killed is no longer needed, and its blocks are enough for this
            // one. They are reused and not freed first, because other writers could take them.
            Err(error) if is_for_want_of_room(&error) => {
                self.withdraw_server_record(lock, ShutdownState::OpenFiles)?;
                for room in [self.left_server_file(), self.stopped_server_file()] {
                    match disk::replace_into(&room, &self.server_file(), text.as_bytes()) {
                        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
                        written => return written,
                    }
                }
                Err(error)
            }
            written => written,
        }
    }

    /// Every user who may mount the volume reads this directory; only its owner writes there.
    pub(super) fn make_servers(&self) -> io::Result<()> {
        match disk::create_directory_with_mode(&self.servers(), SERVERS_MODE) {
            Ok(()) => disk::sync_directory(&self.at_root()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.servers().is_dir() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Withdraws the record; a missing record is no error. The file stays under another name, because the next record
    /// needs its blocks if the store is full by then.
    pub fn withdraw_server_record(&self, _lock: &VolumeLock, left: ShutdownState) -> io::Result<()> {
        let name = match left {
            ShutdownState::Nothing => self.stopped_server_file(),
            ShutdownState::OpenFiles => self.left_server_file(),
        };
        rename_if_there(&self.server_file(), &name)
    }

    /// The state that the last server left. The next server calls this before it publishes its own record; until then
    /// the result stays the same, across crashes too.
    pub fn left_by_server(&self, _lock: &VolumeLock) -> io::Result<ShutdownState> {
        rename_if_there(&self.left_server_file(), &self.server_file())?;
        // All servers that had joined have ended, because the lock is free.
        [JOINED, TAKEN_FOR_DEAD]
            .iter()
            .flat_map(|suffix| self.joined_files(suffix))
            .try_for_each(|it| remove_if_there(&it))?;
        Ok(match self.read_server_record() {
            Ok(None) => ShutdownState::Nothing,
            // Its only client has ended with it, because the lock is free; clients of the server before it may still
            // run.
            Ok(Some(record)) if record.embedded && !record.after_open_files => ShutdownState::Nothing,
            Ok(Some(_)) | Err(_) => ShutdownState::OpenFiles,
        })
    }
}

/// State of the clients of a server when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownState {
    Nothing,
    /// Clients may have open files, or files whose sizes are not recorded yet.
    OpenFiles,
}

fn remove_if_there(path: &StorePath) -> io::Result<()> {
    match disk::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn rename_if_there(from: &StorePath, to: &StorePath) -> io::Result<()> {
    match disk::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
