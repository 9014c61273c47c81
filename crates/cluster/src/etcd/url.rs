//! The address of an etcd cluster, as users give it.

use super::http::TlsFiles;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// `etcd://HOST:PORT[,HOST:PORT…][?ca=FILE][&cert=FILE&key=FILE][&user=NAME&password-file=FILE]`
///
/// With `ca`, connections use TLS. A password stands in a file, because the command lines of processes are public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// `HOST:PORT` of each member of the etcd cluster.
    pub endpoints: Vec<String>,
    pub tls: Option<TlsFiles>,
    pub login: Option<Login>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password_file: PathBuf,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{url:?} is no address of an etcd cluster: {reason}. Give etcd://HOST:PORT[,HOST:PORT…], with TLS \
     ?ca=FILE[&cert=FILE&key=FILE], and with a user ?user=NAME&password-file=FILE"
)]
pub struct EtcdUrlError {
    url: String,
    reason: String,
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}", self.endpoints.join(","))
    }
}

impl EtcdAddress {
    /// The address with its options, as [`EtcdAddress::from_str`] reads it. It names files, but has no secret.
    pub fn to_url(&self) -> String {
        let file = |path: &PathBuf| path.display().to_string();
        let mut options = Vec::new();
        if let Some(TlsFiles { ca, client }) = &self.tls {
            options.push(("ca", file(ca)));
            if let Some((cert, key)) = client {
                options.extend([("cert", file(cert)), ("key", file(key))]);
            }
        }
        if let Some(Login { user, password_file }) = &self.login {
            options.extend([("user", user.clone()), ("password-file", file(password_file))]);
        }
        let options: Vec<_> = options.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        if options.is_empty() { self.to_string() } else { format!("{self}?{}", options.join("&")) }
    }
}

impl FromStr for EtcdAddress {
    type Err = EtcdUrlError;

    fn from_str(url: &str) -> Result<EtcdAddress, EtcdUrlError> {
        parse(url).map_err(|reason| EtcdUrlError { url: url.to_owned(), reason })
    }
}

fn parse(url: &str) -> Result<EtcdAddress, String> {
    let rest = url.strip_prefix("etcd://").ok_or("it does not begin with etcd://")?;
    let (hosts, options) = rest.split_once('?').map_or((rest, None), |(hosts, options)| (hosts, Some(options)));
    let endpoints: Vec<String> = hosts.trim_end_matches('/').split(',').map(str::to_owned).collect();
    for endpoint in &endpoints {
        let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(port)) if port > 0) {
            return Err(format!("{endpoint:?} is not HOST:PORT"));
        }
    }
    let (mut ca, mut cert, mut key, mut user, mut password_file) = (None, None, None, None, None);
    for option in options.into_iter().flat_map(|options| options.split('&')) {
        let (name, value) = option.split_once('=').ok_or_else(|| format!("option {option:?} has no value"))?;
        let option = match name {
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            "user" => &mut user,
            "password-file" => &mut password_file,
            _ => return Err(format!("there is no option {name:?}")),
        };
        if value.is_empty() || option.replace(value.to_owned()).is_some() {
            return Err(format!("option {name:?} is empty or given twice"));
        }
    }
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        (None, None) => None,
        _ => return Err("cert and key need each other".to_owned()),
    };
    let tls = match (ca, client) {
        (Some(ca), client) => Some(TlsFiles { ca: ca.into(), client }),
        (None, None) => None,
        (None, Some(_)) => return Err("cert and key need ca".to_owned()),
    };
    let login = match (user, password_file) {
        (Some(user), Some(file)) => Some(Login { user, password_file: file.into() }),
        (None, None) => None,
        _ => return Err("user and password-file need each other".to_owned()),
    };
    if login.is_some() && tls.is_none() {
        return Err("a password would be sent in the clear; use TLS (ca)".to_owned());
    }
    Ok(EtcdAddress { endpoints, tls, login })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_their_options_are_parsed() {
        let plain: EtcdAddress = "etcd://a:2379,[::1]:2380".parse().unwrap();
        assert_eq!(plain.endpoints, ["a:2379", "[::1]:2380"]);
        assert_eq!((&plain.tls, &plain.login), (&None, &None));
        assert_eq!(plain.to_string(), "etcd://a:2379,[::1]:2380");
        let full: EtcdAddress =
            "etcd://a:2379/?ca=/ca.pem&cert=/c.pem&key=/k.pem&user=varve&password-file=/p".parse().unwrap();
        let tls = full.tls.as_ref().unwrap();
        assert_eq!(
            (tls.ca.as_path(), tls.client.clone()),
            ("/ca.pem".as_ref(), Some(("/c.pem".into(), "/k.pem".into())))
        );
        assert_eq!(full.login, Some(Login { user: "varve".into(), password_file: "/p".into() }));
        assert_eq!(full.to_string(), "etcd://a:2379", "no file names, no user");
        assert_eq!((full.to_url().parse(), plain.to_url().parse()), (Ok(full), Ok(plain)));
    }

    #[test]
    fn bad_addresses_are_refused_with_a_reason() {
        for (url, reason) in [
            ("http://a:1", "does not begin"),
            ("etcd://", "not HOST:PORT"),
            ("etcd://a", "not HOST:PORT"),
            ("etcd://a:0", "not HOST:PORT"),
            ("etcd://a:1,", "not HOST:PORT"),
            ("etcd://a:1?ca", "no value"),
            ("etcd://a:1?ca=", "empty"),
            ("etcd://a:1?ca=x&ca=y", "twice"),
            ("etcd://a:1?color=red", "no option"),
            ("etcd://a:1?ca=x&cert=y", "need each other"),
            ("etcd://a:1?cert=x&key=y", "need ca"),
            ("etcd://a:1?user=x&password-file=y", "in the clear"),
        ] {
            let refused = url.parse::<EtcdAddress>().unwrap_err().to_string();
            assert!(refused.contains(reason), "{url}: {refused}");
        }
    }
}
