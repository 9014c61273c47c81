//! Sockets are bound first, then the token that connecting clients look up is published, then the sockets listen.

use super::config::{Config, ServiceError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};
use varve_detector_stream::token::{self, Published};

/// Same as in the standard library.
const BACKLOG: i32 = 4096;

pub struct Listening {
    pub frames: TcpListener,
    pub http: Option<TcpListener>,
    /// Withdrawn when dropped.
    pub published: Vec<Published>,
}

/// Listens at the addresses of `config`. A token that is to be published is published before.
///
/// # Errors
/// If an address is in use, or the token cannot be published.
pub fn listen(config: &Config) -> Result<Listening, ServiceError> {
    let failed = |address| move |source| ServiceError::Listen { address, source };
    let frames = bind(config.listen).map_err(failed(config.listen))?;
    let http = config.http.map(|address| bind(address).map_err(failed(address))).transpose()?;
    let mut published = Vec::new();
    for listener in std::iter::once(&frames).chain(&http) {
        let address = listener.local_addr().map_err(failed(config.listen))?;
        match &config.token {
            Some(token) if config.protection.publish => published.push(Published::new(address, token)?),
            _ => token::withdraw(address),
        }
    }
    for listener in std::iter::once(&frames).chain(&http) {
        rustix::net::listen(listener, BACKLOG).map_err(|error| failed(config.listen)(error.into()))?;
    }
    Ok(Listening { frames, http, published })
}

/// A bound socket that does not accept connections yet.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(TcpListener::from(socket))
}
