//! Writers of temporary files: the name of such a file says whose it is.

use super::TEMPORARY_PREFIX;
use crate::random;
use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The random number of a process, in the names of its temporary files: `.~tmp.<writer>.<number>`, each with 16
/// hexadecimal digits. A server publishes it in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterId(u64);

const DIGITS: usize = 16;

impl WriterId {
    pub fn of_this_process() -> WriterId {
        static OWN: OnceLock<WriterId> = OnceLock::new();
        *OWN.get_or_init(|| WriterId(random::number()))
    }

    pub(super) fn temporary_name(self) -> String {
        format!("{TEMPORARY_PREFIX}{self}.{:016x}", random::number())
    }

    /// The writer of the temporary file `name`.
    pub(super) fn of_temporary(name: &OsStr) -> Option<WriterId> {
        let (writer, _number) = name.to_str()?.strip_prefix(TEMPORARY_PREFIX)?.split_once('.')?;
        writer.parse().ok()
    }
}

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for WriterId {
    type Err = String;

    fn from_str(text: &str) -> Result<WriterId, String> {
        let is_number = text.len() == DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_number.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(WriterId).ok_or_else(|| format!("a writer has {DIGITS} hexadecimal digits"))
    }
}
