//! Errors of benchmarks.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense; nothing was started.
    #[error("{0}")]
    Usage(String),
    #[error("interrupted")]
    Interrupted,
    /// An operation of the workload failed at a target.
    #[error("{via}: cannot {operation} {path}: {source}")]
    Operation { via: String, operation: &'static str, path: String, source: io::Error },
    /// A target gave a reply that no file system may give; its rates would mean nothing.
    #[error("{via}: wrong answer: {what}")]
    WrongAnswer { via: String, what: String },
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("the ceiling {name} cannot be measured: {reason}")]
    Ceiling { name: &'static str, reason: String },
    /// The run is over, but its files remain.
    #[error("{}cannot remove {path} of {via}, remove it by hand: {source}", after(first))]
    Leftover { via: String, path: String, source: io::Error, first: Option<Box<Error>> },
    #[error("a benchmark's report is damaged: {0}")]
    Report(#[from] serde_json::Error),
    /// A rank's process or host is gone, or gives no answer.
    #[error("rank {rank}{} is lost: {reason}", on_host(host))]
    RankLost { rank: usize, host: String, reason: String },
    /// A rank in another process failed.
    #[error("rank {rank}{} failed: {reason}", on_host(host))]
    RankFailed { rank: usize, host: String, reason: String },
    /// Some ranks never connected.
    #[error("cannot start the ranks: {0}")]
    RanksMissing(String),
    #[error("a client thread panicked: {0}")]
    Panic(String),
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

fn on_host(host: &str) -> String {
    if host.is_empty() { String::new() } else { format!(" on {host}") }
}

fn after(first: &Option<Box<Error>>) -> String {
    first.as_ref().map_or(String::new(), |first| format!("{first}; then "))
}
