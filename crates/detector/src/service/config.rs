//! How a service is asked for, and why it does not start.

use super::WriterShareOptions;
use crate::stream::StreamRefusal;
use crate::tls::ServerTls;
use crate::token::TokenError;
use crate::writer::Settings;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Where control is answered; `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// Files are written beneath it alone.
    pub root: PathBuf,
    /// Clients must give it; `None`: the service asks for none.
    pub token: Option<String>,
    pub protection: Protection,
    /// Where the libraries lie of filters that runs may ask for; `None`: none may.
    pub plugins: Option<PathBuf>,
    /// Of each run.
    pub settings: Settings,
    pub runs_max: usize,
    pub connections_max: usize,
    /// Silence after which a connection is given up.
    pub idle: Duration,
}

/// Who can find the token, by which names HTTP is asked, and what protects both on their way.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Programs of the same user on this host find the token.
    pub publish: bool,
    /// Names of this host that requests over HTTP may use, beside those of loopback and the address that is listened at.
    pub hosts: Vec<String>,
    /// `None`: in clear.
    pub tls: Option<ServerTls>,
}

/// A share of another service's run.
#[derive(Clone, Debug)]
pub struct Joining {
    pub coordinator: WriterShareOptions,
    /// Clients that bring this share.
    pub sources: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("files cannot be kept beneath {path}: {source}; name a directory that exists and may be written to")]
    Root { path: PathBuf, source: io::Error },
    #[error(
        "{path} has a service already, {holder}: a directory has one; talk to that one, stop it first, or give this one \
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
