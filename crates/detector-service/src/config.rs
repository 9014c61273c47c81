//! Configuration of the service, and errors that prevent its start.

use super::writer_share::WriterShareOptions;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::run_metadata::RunMetadata;
use varve_detector_stream::StreamRefusal;
use varve_detector_stream::tls::ServerTls;
use varve_detector_stream::token::TokenError;
use varve_detector_writer::Settings;

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Address of the HTTP interface; `None`: disabled.
    pub http: Option<SocketAddr>,
    /// The service writes files only below this directory.
    pub root: PathBuf,
    /// Token that clients must present; `None`: none is required.
    pub token: Option<String>,
    pub protection: Protection,
    /// Directory of the filter libraries that runs may load; `None`: runs may not load any.
    pub plugins: Option<PathBuf>,
    /// Metadata for the runs.
    pub metadata: Option<MetadataSource>,
    /// Writer settings of each run.
    pub settings: Settings,
    pub runs_max: usize,
    pub connections_max: usize,
    /// A connection that is silent for this long is closed.
    pub idle: Duration,
}

/// Metadata for every run that lacks them, read again when a run starts.
#[derive(Clone)]
pub struct MetadataSource(Arc<dyn Fn() -> Result<RunMetadata, String> + Send + Sync>);

impl MetadataSource {
    pub fn new(read: impl Fn() -> Result<RunMetadata, String> + Send + Sync + 'static) -> MetadataSource {
        MetadataSource(Arc::new(read))
    }

    /// `description` with the metadata that it lacks. If they cannot be read or do not fit, the run starts without
    /// them, and the log says why.
    pub fn complete(&self, run: &str, description: &DatasetSpec) -> DatasetSpec {
        let completed = (self.0)().and_then(|metadata| metadata.complete(description));
        completed.unwrap_or_else(|why| {
            tracing::error!(run, "run recorded without the metadata of the service: {why}");
            description.clone()
        })
    }
}

impl fmt::Debug for MetadataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetadataSource")
    }
}

/// Protection of the service: publication of the token, host names in HTTP requests, and TLS.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Whether programs of the same user on this host can find the token.
    pub publish: bool,
    /// Host names that HTTP requests may use besides those of loopback and the listening address.
    pub hosts: Vec<String>,
    /// `None`: connections are not encrypted.
    pub tls: Option<ServerTls>,
}

/// Settings for joining a share of another service's run.
#[derive(Clone, Debug)]
pub struct Joining {
    pub coordinator: WriterShareOptions,
    /// Number of clients that send this share.
    pub sources: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("cannot store files in {path}: {source}; give an existing, writable directory")]
    Root { path: PathBuf, source: io::Error },
    #[error(
        "{path} already has a service, {holder}: a directory has one; use that one, stop it first, or give this one \
        another directory"
    )]
    Held { path: PathBuf, holder: String },
    #[error("cannot join run `{run}`: {refusal}")]
    Join { run: String, refusal: StreamRefusal },
    #[error("cannot listen at {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Token(#[from] TokenError),
}
