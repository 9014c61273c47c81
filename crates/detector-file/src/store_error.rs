//! Errors of a store: which mean that it is full, and the remedy.

use std::io;

/// Remedy for an error of a store, to be added to its text; empty if the text suffices.
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if is_full(error) => "; the store is full: free space there before the next run",
        io::ErrorKind::FileTooLarge => "; the file size limit is reached: raise it (`ulimit -f`) or use shorter runs",
        _ => "",
    }
}

pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
