//! The one place where a failure of the client becomes an `int`, and where bytes from the kernel are refused.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use varve_client::{Failure, FileSystem, Result};
use varve_env::stages::{self, Stage};
use varve_types::{Errno, Name, NameError};

/// Runs a handler and says with which errno the kernel is answered if it does not do what it says.
///
/// A failure that has more to say than its errno is logged here, for here it is handled. A panic is a broken rule of
/// ours: it costs this one call (EIO) and is logged, and the mount goes on, for the thousand other files in use did
/// nothing wrong. The client's locks do not poison, and what they guard is changed in steps that each leave it whole.
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

/// [`answer`] to a request whose outcome may be there later and on another thread, which takes it by `done`. Should one of
/// them panic, the reply that `done` holds is dropped, which answers EIO.
pub(crate) fn answer_later<T: 'static>(
    fs: &FileSystem,
    what: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
    done: impl FnOnce(std::result::Result<T, fuser::Errno>) + Send + 'static,
) {
    let frontend = stages::enter(Stage::Frontend);
    fs.async_op(work, move |result| {
        drop(frontend);
        done(result.map_err(|failure| refused(what, &failure)));
    });
}

/// With which errno the kernel is told of a failure, which is logged if it has more to say than that.
fn refused(what: &'static str, failure: &Failure) -> fuser::Errno {
    if failure.message.is_some() {
        tracing::warn!(call = what, "{failure}");
    }
    fuser::Errno::from_i32(failure.errno.number())
}

/// A name as it came from the kernel: every byte value is as good as any other.
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

    #[test]
    fn names_allow_any_byte_up_to_the_limit() {
        assert_eq!(name(OsStr::from_bytes(b"\xff\xfe\n\x01 ")).unwrap().as_bytes(), b"\xff\xfe\n\x01 ");
        let long = [b'n'; 256];
        assert_eq!(name(OsStr::from_bytes(&long)).unwrap_err().errno, Errno::ENAMETOOLONG);
        assert_eq!(name(OsStr::new("..")).unwrap_err().errno, Errno::EINVAL);
    }
}
