//! The token that a service requires of its clients. It is generated at each start unless the administrator gives one,
//! and published in the user's runtime directory, where programs of the same user find it by the address they connect
//! to.
//!
//! Order of a start: bind, publish, listen. A client first connects and then reads the token. The token therefore
//! belongs to the process it is connected to, or to a dead one: another user who has taken the port of a dead service
//! learns nothing useful.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;
use varve_env::identity::is_nobody;

/// Size of a generated token; too large to guess.
const RANDOM_BYTES: usize = 32;
/// Allowed length of a token.
const BYTES: std::ops::RangeInclusive<usize> = 8..=1024;
/// Permission bits that give other users access, and those that let them write.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read the token in {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the token file {} is a symbolic link: give the file itself", path.display())]
    Link { path: PathBuf },
    #[error("the token file {} is not a regular file: give a regular file", path.display())]
    NoFile { path: PathBuf },
    #[error("the token file {} belongs to user {owner}, not to this user ({user}) or root: use a file of your own", path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("others may read the token in {}: run chmod 600 on it, and make a new token if others have read it", path.display())]
    Mode { path: PathBuf },
    #[error("the token in {} has {bytes} bytes: use 8 to 1024, as from `openssl rand -hex 32`", path.display())]
    Length { path: PathBuf, bytes: usize },
    #[error("the token in {} has characters other than visible ASCII: make one with `openssl rand -hex 32`", path.display())]
    Characters { path: PathBuf },
    #[error("no private directory to publish the token in ({}): set XDG_RUNTIME_DIR to a directory of your own, or \
        give --token-file FILE", tried.join("; "))]
    Nowhere { tried: Vec<String> },
    #[error("cannot publish the token in {}: {source}; give --token-file FILE", path.display())]
    Publish { path: PathBuf, source: io::Error },
}

/// Generates a token.
pub fn random() -> String {
    varve_env::random::bytes::<RANDOM_BYTES>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares a client's token with the service's. The duration reveals nothing but the length.
pub fn matches(own: &str, given: &str) -> bool {
    own.as_bytes().ct_eq(given.as_bytes()).into()
}

/// Reads a token from a file that belongs to this user or root and that nobody else may read.
///
/// # Errors
/// If the path is a symbolic link or not a regular file, belongs to another user, is accessible to others, or contains
/// no valid token.
pub fn read(path: &Path) -> Result<String, TokenError> {
    let failed = |source: Errno| match source {
        Errno::LOOP => TokenError::Link { path: path.to_owned() },
        source => TokenError::Read { path: path.to_owned(), source: source.into() },
    };
    // Without O_NONBLOCK, opening a FIFO would block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(TokenError::NoFile { path: path.to_owned() });
    }
    let user = rustix::process::geteuid().as_raw();
    if !is_trusted(stat.st_uid, user) {
        return Err(TokenError::Owner { path: path.to_owned(), owner: stat.st_uid, user });
    }
    if stat.st_mode & OTHERS != 0 {
        return Err(TokenError::Mode { path: path.to_owned() });
    }
    let mut text = Vec::new();
    File::from(file)
        .take(*BYTES.end() as u64 + 2)
        .read_to_end(&mut text)
        .map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    let token = text.trim_ascii();
    if !BYTES.contains(&token.len()) {
        return Err(TokenError::Length { path: path.to_owned(), bytes: token.len() });
    }
    // The token is sent in an HTTP header.
    match std::str::from_utf8(token) {
        Ok(token) if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(TokenError::Characters { path: path.to_owned() }),
    }
}

fn is_trusted(owner: u32, user: u32) -> bool {
    owner == 0 || owner == user && !is_nobody(owner)
}

/// The token to send to `peer`: `given` if it is not empty, else the one that a service of this user has published for
/// that address on this host. Empty if there is none.
///
/// # Errors
/// If the published token's file fails the checks of [`read`].
pub fn for_peer(given: &str, peer: SocketAddr) -> Result<String, TokenError> {
    if !given.is_empty() || !peer.ip().is_loopback() {
        return Ok(given.to_owned());
    }
    let name = file_name(peer);
    let newest = directories().into_iter().filter_map(|directory| {
        check(&open(&directory).ok()?).ok()?;
        let path = directory.join(&name);
        let changed = path.symlink_metadata().and_then(|found| found.modified()).ok()?;
        Some((changed, path))
    });
    newest.max().map_or(Ok(String::new()), |(_, path)| read(&path))
}

fn file_name(address: SocketAddr) -> String {
    format!("detector-{}-{}.token", address.ip(), address.port())
}

/// Possible directories for this user's tokens, best first. The environments of a service and of a session differ, so a
/// client searches all of them.
fn directories() -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()).map(PathBuf::from);
    let session = session.filter(|directory| directory.is_absolute()).map(|directory| directory.join("varve-detector"));
    let system = if user == 0 { "/run/varve-detector".into() } else { format!("/run/user/{user}/varve-detector") };
    let mut found: Vec<PathBuf> = session.into_iter().collect();
    found.extend([system, format!("/tmp/varve-detector-{user}")].map(PathBuf::from));
    found
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

/// Checks that only this user may create files there.
fn check(directory: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(directory)?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user || is_nobody(user) {
        return Err(io::Error::other(format!("it belongs to user {}", stat.st_uid)));
    }
    if stat.st_mode & OTHERS_WRITE != 0 {
        return Err(io::Error::other("others may write to it"));
    }
    Ok(())
}

/// The runtime directory of this user; created if necessary.
fn directory() -> Result<(PathBuf, OwnedFd), TokenError> {
    let mut tried = Vec::new();
    for path in directories() {
        // A umask can only remove rights of the owner; creating the first file then fails.
        let usable = match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open(&path).and_then(|directory| check(&directory).map(|()| directory)),
            Err(error) => Err(error.into()),
        };
        match usable {
            Ok(directory) => return Ok((path, directory)),
            Err(error) => tried.push(format!("{}: {error}", path.display())),
        }
    }
    Err(TokenError::Nowhere { tried })
}

/// Removes the token that an earlier service of this user has published for an address.
pub fn withdraw(address: SocketAddr) {
    for directory in directories().iter().filter_map(|path| open(path).ok()) {
        if check(&directory).is_ok() {
            // Usually there is none.
            let _ = rustix::fs::unlinkat(&directory, file_name(address), AtFlags::empty());
        }
    }
}

/// A published token, which programs of this user can find until it is dropped.
#[derive(Debug)]
pub struct Published {
    directory: OwnedFd,
    name: String,
    path: PathBuf,
    token: String,
}

impl Published {
    /// Publishes a token for clients of `address`, and replaces that of an earlier service.
    ///
    /// # Errors
    /// If no directory is suitable, or the token cannot be written.
    pub fn new(address: SocketAddr, token: &str) -> Result<Published, TokenError> {
        withdraw(address);
        let (path, directory) = directory()?;
        let name = file_name(address);
        let path = path.join(&name);
        let failed = |source: io::Error| TokenError::Publish { path: path.clone(), source };
        let temporary = format!(".{name}.{}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        // An earlier process with the same ID may have left it.
        let _ = rustix::fs::unlinkat(&directory, &temporary, AtFlags::empty());
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = rustix::fs::openat2(&directory, &temporary, flags, mode, resolve).map_err(|e| failed(e.into()))?;
        // Restores rights that the umask removed.
        rustix::fs::fchmod(&file, mode).map_err(|error| failed(error.into()))?;
        File::from(file).write_all(token.as_bytes()).map_err(failed)?;
        rustix::fs::renameat(&directory, &temporary, &directory, &name).map_err(|error| failed(error.into()))?;
        Ok(Published { directory, name, path, token: token.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Published {
    /// Removes the token unless a later service has replaced it.
    fn drop(&mut self) {
        if read(&self.path).is_ok_and(|found| matches(&found, &self.token)) {
            // A remaining file does no harm, because the token is no longer valid.
            let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests;
