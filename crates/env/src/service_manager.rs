//! The service manager that started this process: systemd's notifications (sd_notify(3)) and journal.
//!
//! A notification is one datagram to the socket that the environment names. Nothing else of systemd's library is needed.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

/// A change of state that the manager learns of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceState<'a> {
    /// The service answers. The text is shown by `systemctl status`.
    Ready(&'a str),
    Stopping,
}

/// Reports `state`. Does nothing without a manager that waits for it; a failed report is only logged, since the manager
/// then ends the start itself.
pub fn notify(state: &ServiceState<'_>) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(socket.as_bytes(), &message(state)) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

fn message(state: &ServiceState<'_>) -> String {
    match state {
        // A line break would begin another assignment.
        ServiceState::Ready(status) => format!("READY=1\nSTATUS={}\n", status.replace(char::is_control, " ")),
        ServiceState::Stopping => "STOPPING=1\n".to_owned(),
    }
}

fn send(socket: &[u8], message: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(Path::new(OsStr::from_bytes(socket)))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

/// Whether stderr goes to the journal: its device and inode are those that systemd has put into the environment.
pub fn logs_to_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", stderr.dev(), stderr.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the manager gets the state at the socket that it names.
    #[test]
    fn manager_receives_the_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), &message(&ServiceState::Ready("serving /a\nSTOPPING=1"))).unwrap();
        let mut bytes = [0; 256];
        let received = manager.recv(&mut bytes).unwrap();
        assert_eq!(std::str::from_utf8(&bytes[..received]), Ok("READY=1\nSTATUS=serving /a STOPPING=1\n"));
        assert!(send(b"/nonexistent/notify", "READY=1").is_err());
    }
}
