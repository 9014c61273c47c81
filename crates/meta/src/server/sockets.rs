//! The Unix sockets of the workers.

use super::{ServerError, doing, listener};
use std::path::{Path, PathBuf};
use varve_env::runtime_dir;
use varve_env::volume_dir::VolumeDir;
use varve_types::VolumeSettings;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum length of a Unix socket path (`sun_path` has 108 bytes, the last of which is a NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Hexadecimal digits that identify a store in the names of sockets.
const STORE_DIGITS: usize = 16;

/// The names of the workers' sockets: `<store>.<process>.<worker>.sock`. Neither a copy of the volume nor a server that
/// is just ending gets in the way. `<store>` is a hash of the volume's id and of the directory: servers of two copies
/// in two PID namespaces may have the same process number.
pub struct Sockets {
    directory: PathBuf,
    prefix: String,
    pub mode: u32,
}

impl Sockets {
    pub fn prepare(directory: &Path, volume: &VolumeDir, settings: &VolumeSettings) -> Result<Sockets, ServerError> {
        let directory_mode = if settings.owner_uid == 0 { 0o755 } else { 0o700 };
        // Only mounts connect, and they run as the owner or as root.
        let mode = 0o600;
        runtime_dir::prepare(directory, directory_mode)?;
        remove_dead_sockets(directory);
        let store_id = volume.store_id().map_err(doing(format!("cannot look at {}", volume.root().display())))?;
        let store = xxh3_64(format!("{} {store_id}", settings.id).as_bytes());
        let prefix = format!("{store:0STORE_DIGITS$x}.{}", std::process::id());
        let sockets = Sockets { directory: directory.to_owned(), prefix, mode };
        let longest = sockets.of_peers();
        if longest.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(ServerError::Config(format!(
                "{} is too long for a socket's path, which has at most {SOCKET_PATH_BYTES_MAX} bytes: choose a shorter \
                 directory for the sockets",
                longest.display()
            )));
        }
        Ok(sockets)
    }

    /// The socket for calls of other servers.
    pub fn of_peers(&self) -> PathBuf {
        self.directory.join(format!("{}.peers.sock", self.prefix))
    }

    pub fn path(&self, worker: usize) -> PathBuf {
        self.directory.join(format!("{}.{worker}.sock", self.prefix))
    }
}

/// Removes the sockets of dead servers, of this volume or another. A socket that cannot be removed does no harm.
fn remove_dead_sockets(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(parts) = name.to_str().map(|name| name.split('.').collect::<Vec<_>>()) else { continue };
        let [store, pid, _, "sock"] = parts[..] else { continue };
        let ours = store.len() == STORE_DIGITS && store.bytes().all(|digit| digit.is_ascii_hexdigit());
        let dead = pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        // A server in another PID namespace has no entry in `/proc` here, but accepts connections.
        if ours && dead && listener::nobody_listens(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
