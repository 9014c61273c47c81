//! Keys of hosts: `STORE/keys/<id>.toml`, one file per key, mode 0600, owned by the store's owner.
//!
//! A host that cannot read `STORE/key`, or whose access may be revoked separately, gets a key file of its own
//! ([`KeyFile`]) with the same content and the volume's id. A key is valid for as long as its file is in the store.
//!
//! No file is opened by its full path: from the store's directory on, each step refuses links, and each opened file
//! must belong to the store's owner or to root, and be inaccessible to other users.

use super::{KEY_BYTES, VolumeDir};
use crate::clock::{Clock, RealClock};
use crate::disk::Location;
use crate::identity::is_nobody;
use crate::store_path::StorePath;
use crate::{random, toml_text};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use varve_types::VolumeId;

/// Maximum number of keys of one volume: far above the number of hosts at a site, and a bound on the memory for their
/// list.
pub const HOST_KEYS_MAX: usize = 1024;

const NAME_BYTES_MAX: usize = 64;

/// A key's file has about 200 bytes.
const FILE_BYTES_MAX: u64 = 4096;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY).union(OFlags::NONBLOCK);

/// The key of a host.
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey {
    /// Never 0, which is the volume's own key.
    pub id: u64,
    pub name: String,
    pub secret: [u8; KEY_BYTES],
    /// In UTC, in the format of RFC 3339.
    pub created: String,
}

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostKey({:016x}, {:?})", self.id, self.name)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    id: String,
    name: String,
    secret: String,
    created: String,
}

/// The file that a host gets: a key and the id of its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    pub volume: VolumeId,
    pub key: HostKey,
}

impl KeyFile {
    /// Reads a file that `varve key add` has written. It must belong to this user or to root, and be inaccessible to
    /// other users.
    pub fn read(path: &Path) -> io::Result<KeyFile> {
        let text = open_key(CWD, path, path)
            .and_then(|(file, found)| {
                let own = rustix::process::geteuid().as_raw();
                check_owner(&found, own, path)?;
                read_text(file)
            })
            .map_err(|error| io::Error::new(error.kind(), format!("cannot use the key file: {error}")))?;
        let (volume, key) = parse(&text, path)?;
        let volume = volume.ok_or_else(|| {
            invalid(format!(
                "{} names no volume: use the file that `varve key add --out FILE` has written",
                path.display()
            ))
        })?;
        let volume =
            volume.parse().map_err(|_| invalid(format!("{}: {volume:?} is no volume's id", path.display())))?;
        Ok(KeyFile { volume, key })
    }

    /// Writes a new file with mode 0600; fails if it exists.
    pub fn write_new(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).map_err(at(path))?;
        let written = write_text(&file, &text_of(&self.key, Some(self.volume.to_string()))?);
        if written.is_err() {
            // A partial key is useless.
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
        }
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

impl VolumeDir {
    /// The directory of host keys. It is created with the first key.
    pub fn host_keys_directory(&self) -> StorePath {
        self.inside("keys")
    }

    /// All keys, by name.
    pub fn host_keys(&self) -> io::Result<Vec<HostKey>> {
        let Some(directory) = self.open_host_keys()? else { return Ok(Vec::new()) };
        let mut keys = Vec::new();
        for entry in Dir::read_from(&directory.fd)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().ok().and_then(id_of_name) else { continue };
            keys.extend(self.read_host_key(&directory, id)?);
        }
        keys.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(keys)
    }

    /// The key with this id; `None` if it does not exist or was revoked.
    pub fn host_key(&self, id: u64) -> io::Result<Option<HostKey>> {
        match self.open_host_keys()? {
            Some(directory) => self.read_host_key(&directory, id),
            None => Ok(None),
        }
    }

    /// Creates a key. Fails with [`io::ErrorKind::AlreadyExists`] if one with this name exists.
    pub fn add_host_key(&self, name: &str) -> io::Result<HostKey> {
        check_name(name)?;
        let directory = match self.open_host_keys()? {
            Some(directory) => directory,
            None => self.make_host_keys()?,
        };
        directory.lock()?;
        let present = self.host_keys()?;
        if present.iter().any(|key| key.name == name) {
            let message = format!("there is a key {name} already: choose another name, or revoke that one first");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        if present.len() >= HOST_KEYS_MAX {
            return Err(io::Error::other(format!("the volume has {HOST_KEYS_MAX} keys already: revoke some first")));
        }
        let now = RealClock::new().now();
        let created = chrono::DateTime::from_timestamp(now.seconds, 0).unwrap_or_default();
        let created = created.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        let key = HostKey { id: random::number().max(1), name: name.to_owned(), secret: random::bytes(), created };
        let file_name = name_of_id(key.id);
        let temporary = format!(".~tmp.{file_name}");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory.fd, &temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(at(&directory.path.join(&temporary)))?;
        let published = write_text(&file, &text_of(&key, None)?).and_then(|()| {
            rustix::fs::renameat(&directory.fd, &temporary, &directory.fd, &file_name)?;
            Ok(rustix::fs::fsync(&directory.fd)?)
        });
        if published.is_err() {
            let _ = rustix::fs::unlinkat(&directory.fd, &temporary, AtFlags::empty());
        }
        published.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", directory.path.display())))?;
        Ok(key)
    }

    /// Removes a key, by its name or id. Servers end its sessions when they notice the removal.
    pub fn revoke_host_key(&self, name: &str) -> io::Result<HostKey> {
        let unknown = || {
            let message = format!("there is no key {name}: `varve key list` shows all keys");
            io::Error::new(io::ErrorKind::NotFound, message)
        };
        let directory = self.open_host_keys()?.ok_or_else(unknown)?;
        directory.lock()?;
        let mut keys = self.host_keys()?.into_iter();
        let key = keys.find(|key| key.name == name || format!("{:016x}", key.id) == name).ok_or_else(unknown)?;
        rustix::fs::unlinkat(&directory.fd, name_of_id(key.id), AtFlags::empty()).map_err(at(&directory.path))?;
        rustix::fs::fsync(&directory.fd)?;
        Ok(key)
    }

    fn open_host_keys(&self) -> io::Result<Option<Keys>> {
        let path = PathBuf::from(self.host_keys_directory());
        let owner = self.owner()?;
        let root = self.root.directory()?;
        let fd = match rustix::fs::openat(&root, "keys", DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(refused(format!("{} is no directory: remove it", path.display())));
            }
            Err(error) => return Err(at(&path)(error)),
        };
        check_owner(&rustix::fs::fstat(&fd)?, owner, &path)?;
        Ok(Some(Keys { fd, path, owner }))
    }

    fn make_host_keys(&self) -> io::Result<Keys> {
        let path = PathBuf::from(self.host_keys_directory());
        let root = self.at_root().open_directory()?;
        match rustix::fs::mkdirat(&root, "keys", Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(at(&path)(error)),
        }
        rustix::fs::fsync(&root)?;
        self.open_host_keys()?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn read_host_key(&self, directory: &Keys, id: u64) -> io::Result<Option<HostKey>> {
        let name = name_of_id(id);
        let path = directory.path.join(&name);
        let (file, found) = match open_key(&directory.fd, Path::new(&name), &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        check_owner(&found, directory.owner, &path)?;
        let (_, key) = parse(&read_text(file)?, &path)?;
        if key.id != id {
            return Err(invalid(format!("{} has the key {:016x}: it was copied or renamed", path.display(), key.id)));
        }
        Ok(Some(key))
    }
}

/// The open directory of host keys.
struct Keys {
    fd: OwnedFd,
    path: PathBuf,
    /// The store's owner.
    owner: u32,
}

impl Keys {
    /// Held for as long as the directory is open: serialises processes that add or revoke keys.
    fn lock(&self) -> io::Result<()> {
        match rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("another process changes the keys in {}: try again", self.path.display()),
            )),
            locked => Ok(locked?),
        }
    }
}

/// Opens a file that is not a link for reading. `path` is for messages.
fn open_key(directory: impl rustix::fd::AsFd, name: &Path, path: &Path) -> io::Result<(File, Stat)> {
    // Without NONBLOCK, opening a FIFO would block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Err(refused(format!("{} is a link: name the file itself", path.display()))),
        opened => opened.map_err(at(path))?,
    };
    let found = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(refused(format!("{} is no file", path.display())));
    }
    Ok((File::from(fd), found))
}

/// Refuses a key, or a directory of keys, that does not belong to `owner` or root, or that other users may read or
/// change.
fn check_owner(found: &Stat, owner: u32, path: &Path) -> io::Result<()> {
    let uid = found.st_uid;
    if uid != 0 && (uid != owner || is_nobody(uid)) {
        return Err(refused(format!(
            "{} belongs to user {uid} and not to user {owner} or root: its content is not trusted",
            path.display()
        )));
    }
    let open = Mode::from_raw_mode(found.st_mode) & Mode::from_raw_mode(0o077);
    match open.is_empty() {
        true => Ok(()),
        false => Err(refused(format!(
            "{} is open to other users (mode {:o}): close it with chmod go=",
            path.display(),
            found.st_mode & 0o7777
        ))),
    }
}

fn read_text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(invalid("it is too long for a key".into())) } else { Ok(text) }
}

fn write_text(fd: &OwnedFd, text: &str) -> io::Result<()> {
    let mut file = File::from(fd.try_clone()?);
    // The umask may have removed bits.
    rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR)?;
    file.write_all(text.as_bytes())?;
    Ok(rustix::fs::fsync(fd)?)
}

fn text_of(key: &HostKey, volume: Option<String>) -> io::Result<String> {
    let secret = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let (id, name, created) = (format!("{:016x}", key.id), key.name.clone(), key.created.clone());
    toml::to_string(&Stored { volume, id, name, secret, created }).map_err(io::Error::other)
}

fn parse(text: &str, path: &Path) -> io::Result<(Option<String>, HostKey)> {
    // Without the file's text, which may contain the secret.
    let no_key = |why: &str| invalid(format!("{} is no key of a host: {why}", path.display()));
    let stored: Stored = toml::from_str(text).map_err(|error| {
        let reason = toml_text::reason("", &error);
        no_key(reason.lines().next().unwrap_or_default())
    })?;
    let id = u64::from_str_radix(&stored.id, 16).ok().filter(|id| *id != 0 && stored.id.len() == 16);
    let id = id.ok_or_else(|| no_key("its id is not 16 hexadecimal digits, or 0"))?;
    let secret = hex_bytes(&stored.secret).ok_or_else(|| no_key("its secret is not 64 hexadecimal digits"))?;
    check_name(&stored.name)?;
    Ok((stored.volume, HostKey { id, name: stored.name, secret, created: stored.created }))
}

fn hex_bytes(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..KEY_BYTES).map(byte).collect();
    bytes?.try_into().ok()
}

fn check_name(name: &str) -> io::Result<()> {
    let sound = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char));
    match sound {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "key name {name:?}: use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', a letter or digit first, such \
                 as the host's name"
            ),
        )),
    }
}

fn name_of_id(id: u64) -> String {
    format!("{id:016x}.toml")
}

fn id_of_name(name: &str) -> Option<u64> {
    let id = u64::from_str_radix(name.strip_suffix(".toml")?, 16).ok()?;
    (name_of_id(id) == name).then_some(id)
}

fn at(path: &Path) -> impl Fn(Errno) -> io::Error {
    let path = path.display().to_string();
    move |error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{path}: {error}"))
    }
}

fn refused(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests;
