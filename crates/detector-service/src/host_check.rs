//! Checks the host names in HTTP requests. After DNS rebinding, a page of another site sends its own name in `Host`,
//! and web pages send `Origin`; both kinds of requests are refused.

use hyper::header::{HOST, HeaderMap, ORIGIN};
use hyper::{StatusCode, Uri};
use std::net::IpAddr;

/// The longest DNS name.
const NAME_BYTES_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("the request does not have exactly one Host header: use an HTTP/1.1 client")]
    NoHost,
    #[error("`{0}` is not a host name of this service: use its address, or start it with --allow-host NAME")]
    Host(String),
    #[error("requests from web pages are refused")]
    Origin,
}

impl Denied {
    pub fn status(&self) -> StatusCode {
        match self {
            Denied::NoHost => StatusCode::BAD_REQUEST,
            Denied::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Denied::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// Error code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Denied::NoHost | Denied::Host(_) => "host",
            Denied::Origin => "origin",
        }
    }
}

/// Allowed names besides loopback and the address that a connection came to.
#[derive(Clone, Debug, Default)]
pub struct HostCheck {
    allowed: Vec<String>,
}

impl HostCheck {
    pub fn new(allowed: &[String]) -> HostCheck {
        HostCheck { allowed: allowed.iter().map(|name| plain(name)).collect() }
    }

    /// Checks a request that arrived at the address `local`.
    ///
    /// # Errors
    /// The reason for the refusal and the remedy.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Result<(), Denied> {
        if headers.contains_key(ORIGIN) {
            return Err(Denied::Origin);
        }
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return Err(Denied::NoHost) };
        let host = host.to_str().map_err(|_| Denied::Host(shown(host.as_bytes())))?;
        // A proxy request has the name in its request line.
        for name in std::iter::once(without_port(host)).chain(uri.host()) {
            if !self.is_own(name, local) {
                return Err(Denied::Host(shown(name.as_bytes())));
            }
        }
        Ok(())
    }

    fn is_own(&self, name: &str, local: IpAddr) -> bool {
        let inside = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = inside.parse::<IpAddr>() {
            let address = address.to_canonical();
            return address.is_loopback() || address == local.to_canonical() || self.has(inside);
        }
        name.eq_ignore_ascii_case("localhost") || self.has(name)
    }

    fn has(&self, name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX && self.allowed.contains(&plain(name))
    }
}

/// Normal form for comparison: lower case, without the root's dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Removes the port. It is not compared: a tunnel changes it, and the name alone identifies an attacker's request.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

fn shown(name: &[u8]) -> String {
    name[..name.len().min(NAME_BYTES_MAX)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
