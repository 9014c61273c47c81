//! Validators for flags of the detector's commands. Each rejects meaningless values and names the allowed ones.

use crate::quantity::Bytes;
use std::net::SocketAddr;
use varve_detector_service::PvaServer;
use varve_detector_stream::hello::check_run_name;

/// The queue's minimum; a smaller one would hold hardly a frame of any detector.
const QUEUE_LEAST: Bytes = Bytes(1 << 20);
/// The stripe's minimum: pages of the processor and of most stores are no smaller.
const STRIPE_LEAST: Bytes = Bytes(4 << 10);
/// Far more than any machine has processors.
const THREADS_MAX: usize = 1024;

/// A valid name of a run.
pub fn run_name(text: &str) -> Result<String, String> {
    check_run_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

pub fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=THREADS_MAX).contains(threads))
        .ok_or_else(|| format!("give 1 to {THREADS_MAX}, or omit it for one thread per processor"))
}

/// A number of runs or connections.
pub fn some(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "give a number of at least 1".to_owned())
}

/// Frames a second. The limits exclude values that nobody can mean, such as a frame a year or a thousand million a
/// second.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-6..=1e9).contains(rate));
    rate.ok_or_else(|| "give frames per second, from 0.000001 to 1000000000".to_owned())
}

fn at_least(text: &str, least: Bytes) -> Result<Bytes, String> {
    match text.parse()? {
        bytes if bytes < least => Err(format!("{bytes} is too small; give at least {least}")),
        bytes => Ok(bytes),
    }
}

pub fn queue(text: &str) -> Result<Bytes, String> {
    at_least(text, QUEUE_LEAST)
}

pub fn stripe(text: &str) -> Result<Bytes, String> {
    at_least(text, STRIPE_LEAST)
}

/// HOST:PORT.
fn place(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    let inside = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
    // Colons are allowed only in bracketed addresses.
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || c == ':' && host != inside;
    let fits = !inside.is_empty() && inside.chars().all(is_name) && port.parse::<u16>().is_ok_and(|port| port > 0);
    fits.then_some(text)
}

fn without_scheme(text: &str) -> &str {
    text.strip_prefix("http://").map_or(text, |text| text.strip_suffix('/').unwrap_or(text))
}

/// The HTTP address of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpPlace {
    /// HOST:PORT.
    pub address: String,
    /// Whether it was given as `https://`.
    pub tls: bool,
}

/// An address as `varve record serve` prints it, or as HOST:PORT.
pub fn http(text: &str) -> Result<HttpPlace, String> {
    let wrong = || {
        format!(
            "`{text}` is not an HTTP address; give HOST:PORT, http://HOST:PORT or https://HOST:PORT, as in \
            127.0.0.1:7421"
        )
    };
    let (address, tls) = match text.strip_prefix("https://") {
        Some(rest) => (rest.strip_suffix('/').unwrap_or(rest), true),
        None => (without_scheme(text), false),
    };
    let address = place(address).map(str::to_owned).ok_or_else(wrong)?;
    Ok(HttpPlace { address, tls })
}

/// A name of this host, without a port.
pub fn host(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if text.is_empty() || text.len() > 255 || !text.chars().all(fits) || place(text).is_some() {
        return Err("give a host name as clients write it, without a port".to_owned());
    }
    Ok(text.to_owned())
}

/// An address to listen at.
pub fn http_listen(text: &str) -> Result<SocketAddr, String> {
    let wrong =
        |_| format!("`{text}` is not a listen address; give ADDRESS:PORT or http://ADDRESS:PORT, as in 127.0.0.1:7421");
    without_scheme(text).parse().map_err(wrong)
}

/// The address at which a detector sends stream2, as HOST:PORT.
pub fn stream2(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is not a stream address; give tcp://HOST:PORT, as in tcp://10.0.0.5:31001");
    place(text.strip_prefix("tcp://").unwrap_or(text)).map(str::to_owned).ok_or_else(wrong)
}

/// A PV of EPICS, and where its server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PvaPlace {
    pub pv: String,
    /// HOST:PORT; `None`: it is searched.
    pub server: Option<String>,
}

/// A PV as PV, PV=HOST or PV=HOST:PORT.
pub fn pva(text: &str) -> Result<PvaPlace, String> {
    let wrong =
        || format!("`{text}` is not a PV with its server; give PV or PV=HOST[:PORT], as in 13SIM1:Pva1:Image=10.0.0.5");
    let (pv, server) = text.split_once('=').map_or((text, None), |(pv, server)| (pv, Some(server)));
    if pv.is_empty() || pv.contains(char::is_whitespace) {
        return Err(wrong());
    }
    let server = match server {
        None => None,
        Some(server) => {
            let with_port = format!("{server}:{}", PvaServer::PORT);
            let address = place(server).or_else(|| place(&with_port)).ok_or_else(wrong)?;
            Some(address.to_owned())
        }
    };
    Ok(PvaPlace { pv: pv.to_owned(), server })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_or_refused() {
        for text in ["http://127.0.0.1:7421", "http://127.0.0.1:7421/", "127.0.0.1:7421"] {
            assert_eq!(http(text), Ok(HttpPlace { address: "127.0.0.1:7421".into(), tls: false }));
            assert_eq!(http_listen(text), Ok(([127, 0, 0, 1], 7421).into()));
        }
        assert_eq!(http("http://[::1]:80"), Ok(HttpPlace { address: "[::1]:80".into(), tls: false }));
        assert_eq!(http("https://daq:80/"), Ok(HttpPlace { address: "daq:80".into(), tls: true }));
        assert_eq!(stream2("tcp://dcu.example:31001").as_deref(), Ok("dcu.example:31001"));
        assert_eq!(stream2("10.0.0.5:31001").as_deref(), Ok("10.0.0.5:31001"));
        for text in
            ["", "x", ":1", "x:", "x:0", "x:70000", "x:1/y", "a b:1", "ftp://x:1", "udp://x:1", "[::1:1", "::1:1"]
        {
            assert!(http(text).is_err() && stream2(text).is_err(), "{text}");
        }
        let at = |server: &str| PvaPlace { pv: "13SIM1:Pva1:Image".into(), server: Some(server.into()) };
        assert_eq!(pva("13SIM1:Pva1:Image=10.0.0.5"), Ok(at("10.0.0.5:5075")));
        assert_eq!(pva("13SIM1:Pva1:Image=ioc.example:5085"), Ok(at("ioc.example:5085")));
        assert_eq!(pva("SIM:Image"), Ok(PvaPlace { pv: "SIM:Image".into(), server: None }));
        for text in ["", "=10.0.0.5", "a b", "PV=", "PV=a b", "PV=x:0"] {
            assert!(pva(text).is_err(), "{text}");
        }
        assert_eq!(host("daq.example").as_deref(), Ok("daq.example"));
        for text in ["", "daq.example:80", "a b", "http://daq", "x/y"] {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
