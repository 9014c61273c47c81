//! Places at which a test stops a process between two steps, as SIGSTOP at an unlucky time would. Release builds stop
//! nowhere.
//!
//! The variable [`VARIABLE`] has the name of a point, at which the process stops each time; or `POINT:FILE`: it stops at
//! its next pass once FILE is there, and removes FILE first, so that it stops once.

/// A place between two steps of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// The temporary file is complete; its name is not published.
    CreateWritten,
    /// The name is published by a link; the temporary name remains.
    CreateLinked,
    /// As [`StopPoint::CreateWritten`], of a file that replaces another one.
    ReplaceWritten,
    /// An update holds the lock and has compared the versions.
    UpdateCompared,
    /// The server may claim a shard's next epoch under its lease; it has not claimed it.
    ClaimAllowed,
    /// A batch of changes is decided; it is not appended to the log.
    AppendDue,
    /// The batch is appended; its callers have no reply.
    Appended,
    /// The log is fsynced; the server has not looked for a successor's fence.
    Fsynced,
    /// A backing file that is to be changed is open; the server has not asked its lease.
    BackingFileOpened,
    /// The server may reply under its lease; it has not sent the reply.
    ReplyAllowed,
}

pub const VARIABLE: &str = "VARVE_TEST_STOP_AT";

#[cfg(not(any(test, debug_assertions)))]
#[inline]
pub fn reach(_point: StopPoint) {}

/// Stops this process at the point that the environment variable names.
#[cfg(any(test, debug_assertions))]
pub fn reach(point: StopPoint) {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<(String, Option<std::path::PathBuf>)>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let chosen = std::env::var(VARIABLE).ok()?;
        Some(match chosen.split_once(':') {
            Some((point, file)) => (point.to_owned(), Some(file.into())),
            None => (chosen, None),
        })
    });
    let Some((name, file)) = chosen else { return };
    if *name == format!("{point:?}") && file.as_ref().is_none_or(|file| std::fs::remove_file(file).is_ok()) {
        // SAFETY: the call touches no memory. It sends the signal to this thread, which therefore goes no further.
        assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0, "a process may stop itself");
    }
}
