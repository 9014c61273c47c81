//! How the ranks of other hosts find the coordinator: a file in a directory that all hosts share has its addresses and a
//! two secrets. Only the user of the run can read the file, so only that user's processes know them: a rank proves itself
//! with the token, and the coordinator with the answer. An address such as 127.0.0.1 or that of a bridge can lead to another
//! program on the rank's own host.

use crate::{Error, Result, interrupt};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The beginning of the file's name; the job of the launcher follows.
pub(crate) const FILE_NAME: &str = ".varve-bench.ranks.";
/// mpirun starts hundreds of processes in so many seconds.
pub(super) const START_MAX: Duration = Duration::from_secs(120);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);
/// The file names the addresses of one host.
const FILE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    pub addresses: Vec<String>,
    #[serde(flatten)]
    pub secrets: Secrets,
}

/// Texts that another process cannot guess.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// A rank sends it first.
    pub token: String,
    /// The coordinator's reply to the token.
    pub answer: String,
}

impl Secrets {
    pub(super) fn new() -> Secrets {
        let random = || varve_env::random::bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
        Secrets { token: random(), answer: random() }
    }
}

pub(super) fn file_of(directory: &Path, job: &str) -> PathBuf {
    let word: String =
        job.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(100).collect();
    directory.join(format!("{FILE_NAME}{word}"))
}

/// The published file. It is removed when this is dropped.
pub(super) struct Published(PathBuf);

impl Published {
    /// Replaces the file of an earlier run with the same job name.
    pub(super) fn publish(file: &Path, rendezvous: &Rendezvous) -> Result<Published> {
        let failed = || Error::io(format!("cannot write {} for the other ranks", file.display()));
        let json = serde_json::to_string(rendezvous)?;
        // The whole name: each job has an unfinished file of its own.
        let mut unfinished = file.as_os_str().to_owned();
        unfinished.push(".new");
        let unfinished = PathBuf::from(unfinished);
        let _ = std::fs::remove_file(&unfinished);
        let mut written =
            std::fs::File::options().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed())?;
        written.write_all(json.as_bytes()).and_then(|()| written.sync_all()).map_err(failed())?;
        std::fs::rename(&unfinished, file).map_err(failed())?;
        Ok(Published(file.to_owned()))
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Calls `connect` with what the file says until it succeeds: the file may be missing still, or be that of a dead run.
pub(super) fn wait_for<T>(file: &Path, mut connect: impl FnMut(&Rendezvous) -> io::Result<T>) -> Result<T> {
    let end = Instant::now() + START_MAX;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    loop {
        interrupt::check()?;
        match read(file).and_then(|rendezvous| connect(&rendezvous)) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = if error.kind() == io::ErrorKind::NotFound { last } else { error },
        }
        if Instant::now() > end {
            let what = format!(
                "rank 0 did not answer for {} s: its address is read from {} (is that directory shared by all hosts? \
                 --rendezvous names another one)",
                START_MAX.as_secs(),
                file.display()
            );
            return Err(Error::Io { what, source: last });
        }
        std::thread::sleep(LOOKED_AT_EVERY);
    }
}

/// Ranks do what the coordinator says, so only this user may name it: in a directory for everybody, another user could
/// place a file of this name.
pub(super) fn read(file: &Path) -> io::Result<Rendezvous> {
    let opened = std::fs::File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(file)?;
    let metadata = opened.metadata()?;
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 || !metadata.is_file() {
        return Err(io::Error::other("it does not belong to this user alone; use a directory of your own"));
    }
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(io::Error::other)
}

/// This host's addresses with the port. Those of the loopback come last: they work for ranks of the same host only.
pub(super) fn addresses(port: u16) -> Vec<String> {
    let mut all = interface_addresses();
    all.sort_by_key(|address| address.is_loopback());
    all.dedup();
    if !all.iter().any(IpAddr::is_loopback) {
        all.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    all.into_iter().map(|address| std::net::SocketAddr::new(address, port).to_string()).collect()
}

fn interface_addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills a list that stays valid until freeifaddrs. Each `ifa_addr` is null or points to a socket
    // address whose form its family names.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return found;
        }
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            at = entry.ifa_next;
            let Some(address) = entry.ifa_addr.as_ref() else { continue };
            match i32::from(address.sa_family) {
                libc::AF_INET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    found.push(IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))));
                }
                libc::AF_INET6 => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
                    // A link-local address is of use only with the name of the reader's own interface.
                    if !address.is_unicast_link_local() {
                        found.push(IpAddr::V6(address));
                    }
                }
                _ => {}
            }
        }
        libc::freeifaddrs(list);
    }
    found
}

/// The name of this host, for messages.
pub(super) fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the call writes at most the given length, and leaves the last byte 0.
    let result = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    match CStr::from_bytes_until_nul(&name) {
        Ok(name) if result == 0 => name.to_string_lossy().into_owned(),
        _ => "unknown".to_owned(),
    }
}
