//! The error type of the library.

use std::fmt;
use std::io;
use std::path::Path;
use varve_types::Errno;

pub type Result<T> = std::result::Result<T, Failure>;

/// An errno for the application. Where the errno does not explain enough, a message: what happened, why, and what to do
/// next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub errno: Errno,
    pub message: Option<Box<str>>,
    /// Whether the operation may have taken effect, or may do so later.
    pub outcome_unknown: bool,
}

impl Failure {
    pub fn new(errno: Errno, message: impl Into<String>) -> Failure {
        Failure { errno, message: Some(message.into().into_boxed_str()), outcome_unknown: false }
    }

    pub(crate) fn outcome_unknown(self) -> Failure {
        Failure { outcome_unknown: true, ..self }
    }

    /// The failure of an operation on a file of the store. Errors without a Varve errno become `EIO` and keep their
    /// text.
    pub(crate) fn store(what: &str, error: &io::Error) -> Failure {
        let errno = match error.kind() {
            // A file that is missing in the store is missing although the volume has it.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::StaleNetworkFileHandle => {
                Errno::EIO
            }
            _ => error.raw_os_error().map_or(Errno::EIO, Errno::from_number),
        };
        // The error does not exclude that earlier steps took effect.
        Failure::new(errno, format!("{what}: {error}")).outcome_unknown()
    }

    /// The store's directory is not at its path.
    pub(crate) fn unreachable(root: &Path) -> Failure {
        Failure::new(
            Errno::EIO,
            format!("the store {} is unreachable, or was a moment ago; bring it back", root.display()),
        )
        .outcome_unknown()
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure { errno, message: None, outcome_unknown: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => write!(f, "{message} ({})", self.errno),
            None => write!(f, "{}", self.errno),
        }
    }
}

impl std::error::Error for Failure {}
