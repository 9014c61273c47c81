//! A flock allows one service per directory, because two would take up each other's runs and overwrite each other's
//! records. The kernel releases the lock when the process ends, however it ends.

use super::config::ServiceError;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use varve_env::disk;
use varve_env::flock::Locked;

/// How long to wait for a service that was stopped or killed and is still ending.
const WAIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);

/// Exclusive right to serve a directory, until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: Locked,
}

impl Lock {
    /// Takes the lock of the service whose records are in `directory`.
    ///
    /// # Errors
    /// [`ServiceError::Held`] if another service has the lock and keeps it.
    pub fn take(directory: &Path, root: &Path) -> Result<Lock, ServiceError> {
        let path = directory.join("lock");
        let failed = |source| ServiceError::Root { path: path.clone(), source };
        let mut file = disk::open_lock_file(&path).map_err(failed)?;
        let deadline = Instant::now() + WAIT;
        let locked = loop {
            let another = file.try_clone().map_err(failed)?;
            match Locked::take(another, FlockOperation::NonBlockingLockExclusive) {
                Ok(locked) => break locked,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    // The holder's name only helps to find it; the lock is held in any case.
                    if file.read_to_string(&mut holder).is_err() || holder.is_empty() {
                        holder = "an unidentified process".into();
                    }
                    return Err(ServiceError::Held { path: root.to_owned(), holder });
                }
                Err(error) => return Err(failed(error.into())),
            }
        };
        if let Err(error) = sign(&mut file) {
            // A full store may not take the name, but runs can still be taken up on it.
            tracing::debug!("cannot write the holder's name to the lock of {}: {error}", root.display());
        }
        Ok(Lock { _file: locked })
    }
}

fn sign(file: &mut File) -> io::Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(format!("process {} on host {host}", std::process::id()).as_bytes())
}
