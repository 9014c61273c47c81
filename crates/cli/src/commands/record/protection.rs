//! Access control of the detector service: tokens and TLS, as flags of both sides.

use crate::problem::{Problem, Result};
use clap::Args;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use varve_detector_service::Protection;
use varve_detector_stream::tls::{ClientTls, ServerTls};
use varve_detector_stream::token;

/// Flags of a process that listens.
#[derive(Debug, Args)]
pub struct Listening {
    /// File with the token that clients must give; it belongs to this user or root, and nobody else may read it.
    /// Required to listen beyond this host [default: a new token, which programs of the same user find on this host]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Accept TLS connections only, with the certificate and its chain in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen beyond this host without TLS: anyone on the network path can read the token and the frames, and change
    /// them
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,
}

impl Listening {
    pub fn has_token_file(&self) -> bool {
        self.token_file.is_some()
    }

    /// The token to require, and the protection of the listeners, which are given as flags with their addresses.
    pub fn protect(&self, listeners: &[(&str, SocketAddr)]) -> Result<(String, Protection)> {
        let beyond = |(_, address): &&(&str, SocketAddr)| !address.ip().to_canonical().is_loopback();
        if let Some((flag, address)) = listeners.iter().find(beyond) {
            let open = || Problem::usage(format!("{flag} {address} is open to other hosts"));
            if self.tls_cert.is_none() && !self.insecure {
                return Err(open().because("token and frames would cross the network unencrypted").next(
                    "Give --tls-cert and --tls-key, or listen at 127.0.0.1 and use a tunnel. --insecure allows it \
                    unencrypted.",
                ));
            }
            if self.token_file.is_none() {
                return Err(open().because("clients on other hosts cannot find a token that is generated here").next(
                    "Give --token-file with a file from `openssl rand -hex 32`, and the same token to the \
                        clients.",
                ));
            }
            if self.tls_cert.is_none() {
                // A failed warning stops nothing: the administrator gave --insecure.
                let _ = writeln!(
                    std::io::stderr(),
                    "varve: warning: {flag} {address} is open to other hosts without TLS: anyone on the network path \
                    can read and change the token and the frames"
                );
            }
        }
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                let failed = |error| Problem::usage("cannot listen with TLS").caused_by(&error);
                Some(ServerTls::read(certificate, key).map_err(failed)?)
            }
            _ => None,
        };
        let token = read(self.token_file.as_ref())?;
        let publish = token.is_none();
        Ok((token.unwrap_or_else(token::random), Protection { publish, hosts: Vec::new(), tls }))
    }
}

/// Flags of a process that connects.
#[derive(Debug, Args)]
pub struct Trust {
    /// The service listens with TLS, and its certificate was signed by one in this PEM file
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl Trust {
    pub fn tls(&self) -> Result<Option<ClientTls>> {
        let failed = |error| Problem::usage("cannot connect with TLS").caused_by(&error);
        self.tls_ca.as_deref().map(ClientTls::trusting).transpose().map_err(failed)
    }
}

/// Flags of a client.
#[derive(Debug, Args)]
pub struct Asking {
    /// File with the service's token; it belongs to this user or root, and nobody else may read it [default: the token
    /// that a service of this user made on this host]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    trust: Trust,
}

impl Asking {
    pub fn has_ca(&self) -> bool {
        self.trust.tls_ca.is_some()
    }

    pub fn token(&self) -> Result<Option<String>> {
        read(self.token_file.as_ref())
    }

    pub fn tls(&self) -> Result<Option<ClientTls>> {
        self.trust.tls()
    }
}

fn read(file: Option<&PathBuf>) -> Result<Option<String>> {
    let unusable = |error| Problem::usage("--token-file").caused_by(&error);
    file.map(|file| token::read(file).map_err(unusable)).transpose()
}
