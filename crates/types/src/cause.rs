//! Why something failed: the errno for callers, and the reason for the log.

use crate::Errno;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub errno: Errno,
    pub reason: String,
}

impl Cause {
    /// The same cause, with `doing` as context.
    pub fn met(self, doing: impl fmt::Display) -> Cause {
        Cause { errno: self.errno, reason: format!("{doing}: {}", self.reason) }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Errors that do not come from the store are EIO.
impl<T: Into<String>> From<T> for Cause {
    fn from(reason: T) -> Cause {
        Cause { errno: Errno::EIO, reason: reason.into() }
    }
}
