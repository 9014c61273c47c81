//! Places at which a test stops or kills a process that changes a store, as SIGSTOP or a crash would. Outside of this
//! crate's tests they are empty.

/// A place between two steps of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopPoint {
    /// The temporary file is complete; its name is not published.
    CreateWritten,
    /// The name is published by a link; the temporary name remains.
    CreateLinked,
    /// As [`StopPoint::CreateWritten`], of a file that replaces another one.
    ReplaceWritten,
    /// An update holds the lock and has compared the versions.
    UpdateCompared,
}

#[cfg(not(test))]
pub(crate) fn reach(_point: StopPoint) {}

/// Stops this process at the point that the environment variable names.
#[cfg(test)]
pub(crate) fn reach(point: StopPoint) {
    if std::env::var(VARIABLE).is_ok_and(|chosen| chosen == format!("{point:?}")) {
        // SAFETY: the call touches no memory. It sends the signal to this thread, which therefore goes no further.
        assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0, "a process may stop itself");
    }
}

#[cfg(test)]
pub(crate) const VARIABLE: &str = "VARVE_TEST_STOP_AT";
