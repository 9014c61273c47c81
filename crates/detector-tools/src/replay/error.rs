//! Errors of a replay.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: {why}")]
    Unfit { path: PathBuf, why: String },
}

pub fn unfit<T>(path: &Path, why: impl ToString) -> Result<T, ReplayError> {
    Err(ReplayError::Unfit { path: path.to_owned(), why: why.to_string() })
}
