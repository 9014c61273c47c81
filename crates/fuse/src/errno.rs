//! Converts client failures to errno values, and rejects names from the kernel that are not valid. No other module does
//! either.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use varve_client::{Failure, Result};
use varve_env::clock::{Clock, RealClock};
use varve_env::rate_limited_log::{RateLimitedLog, Suppressed};
use varve_env::stages::{self, Stage};
use varve_types::{Errno, Name, NameError};

/// Runs a handler and converts its failure to the errno for the kernel.
///
/// A failure with a message beyond its errno is logged here, because it is handled here. A panic is a bug: it fails
/// this one call with EIO and is logged. The mount continues, because the panic does not affect other open files: the
/// client's locks do not poison, and every step under them leaves the data consistent.
pub(crate) fn answer<T>(what: &'static str, call: impl FnOnce() -> Result<T>) -> std::result::Result<T, fuser::Errno> {
    let _frontend = stages::enter(Stage::Frontend);
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|failure| refused(what, &failure)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            tracing::error!(call = what, panic = text.unwrap_or("of unknown kind"), "a handler panicked; answered EIO");
            Err(fuser::Errno::EIO)
        }
    }
}

/// The errno for the kernel. A failure with a message beyond its errno is logged.
fn refused(what: &'static str, failure: &Failure) -> fuser::Errno {
    if failure.message.is_some()
        && let Some(suppressed) = log_is_due(what, failure)
    {
        tracing::warn!(call = what, "{failure}{suppressed}");
    }
    fuser::Errno::from_i32(failure.errno.number())
}

/// Whether a failure of `what` is to be logged now, and how many with its errno were not since the last one. A user can
/// repeat a call that fails as often as the mount answers, and the log belongs to the whole process.
pub(crate) fn log_is_due(what: &'static str, failure: &Failure) -> Option<Suppressed> {
    static REPORTED: LazyLock<(RateLimitedLog<(&str, Errno)>, RealClock)> = LazyLock::new(Default::default);
    let (error_log, clock) = &*REPORTED;
    error_log.due((what, failure.errno), clock.monotonic())
}

/// A name from the kernel. Every byte value is allowed except `/` and NUL.
pub(crate) fn name(bytes: &OsStr) -> Result<Name> {
    Name::new(bytes.as_bytes()).map_err(|error| {
        Failure::from(match error {
            NameError::TooLong => Errno::ENAMETOOLONG,
            NameError::Empty => Errno::ENOENT,
            NameError::ForbiddenByte | NameError::Dots => Errno::EINVAL,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panic in a handler costs one call, not the mount.
    #[test]
    fn panic_becomes_eio_and_failure_keeps_errno() {
        assert_eq!(answer("test", || Ok(7)), Ok(7));
        assert_eq!(answer::<()>("test", || Err(Errno::ENOTEMPTY.into())), Err(fuser::Errno::ENOTEMPTY));
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let panicked = answer::<()>("test", || panic!("a broken rule"));
        std::panic::set_hook(quiet);
        assert_eq!(panicked, Err(fuser::Errno::EIO));
    }

    /// Promise: a user cannot fill the log with calls that fail.
    #[test]
    fn repeated_failures_of_a_call_are_logged_once() {
        let refused = Failure::new(Errno::EFBIG, "the store refuses it");
        let logged = (0..1000).filter(|_| log_is_due("test of the log", &refused).is_some()).count();
        assert!((1..5).contains(&logged), "{logged}");
    }

    #[test]
    fn names_allow_any_byte_up_to_the_limit() {
        assert_eq!(name(OsStr::from_bytes(b"\xff\xfe\n\x01 ")).unwrap().as_bytes(), b"\xff\xfe\n\x01 ");
        let long = [b'n'; 256];
        assert_eq!(name(OsStr::from_bytes(&long)).unwrap_err().errno, Errno::ENAMETOOLONG);
        assert_eq!(name(OsStr::new("..")).unwrap_err().errno, Errno::EINVAL);
    }
}
