//! Calls of etcd's JSON gateway: HTTP/1.1, with TLS and a login if they are configured. A call asks the endpoints in
//! turn until one answers; each attempt has a deadline.

use super::url::{EtcdAddress, Login};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long one endpoint may take to connect and answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// The longest answer, in bytes. etcd stores values of at most 1.5 MiB; base64 makes them longer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Connections that wait for the next call.
const IDLE_MAX: usize = 4;

/// The longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that may sign etcd's certificate.
    pub ca: PathBuf,
    /// Certificate and key by which etcd knows this client.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Why no endpoint carried out a call.
#[derive(Debug)]
pub(super) enum Failure {
    /// No answer, perhaps after the call was carried out.
    Unavailable(String),
    Refused(String),
}

pub(super) struct Client {
    endpoints: Vec<String>,
    tls: Option<TlsConnector>,
    login: Option<Login>,
    /// The endpoint that answered last.
    preferred: AtomicUsize,
    idle: Mutex<Vec<(usize, Sender)>>,
    /// The answer to the login.
    token: Mutex<Option<String>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

type Sender = SendRequest<Full<Bytes>>;

impl Client {
    /// An error if the files for TLS cannot be used.
    pub fn new(address: EtcdAddress) -> Result<Client, String> {
        let EtcdAddress { endpoints, tls, login } = address;
        let tls = tls.as_ref().map(connector).transpose()?;
        let (preferred, idle, token) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Ok(Client { endpoints, tls, login, preferred, idle, token })
    }

    pub async fn call(&self, path: &str, request: &serde_json::Value) -> Result<Bytes, Failure> {
        let (sender, response) = self.answered(path, request).await?;
        let endpoint = self.preferred.load(Relaxed);
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        match tokio::time::timeout(ANSWERED_WITHIN, body).await {
            Ok(Ok(body)) => {
                let mut idle = self.idle.lock().expect("nothing panics while it is held");
                if idle.len() < IDLE_MAX {
                    idle.push((endpoint, sender));
                }
                Ok(body.to_bytes())
            }
            Ok(Err(error)) => Err(Failure::Unavailable(format!("its answer was cut: {error}"))),
            Err(_) => Err(Failure::Unavailable(format!("its answer took more than {ANSWERED_WITHIN:?}"))),
        }
    }

    /// Starts a stream of events and waits for the first one. `false`: there is none within `wait`.
    pub async fn await_event(&self, path: &str, request: &serde_json::Value, wait: Duration) -> Result<bool, Failure> {
        let (_sender, response) = self.answered(path, request).await?;
        let mut body = response.into_body();
        let first_event = async {
            let mut received = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| Failure::Unavailable(format!("it ended a watch: {error}")))?;
                received.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                if received.len() > ANSWER_BYTES_MAX {
                    return Err(Failure::Refused(format!("it sent more than {ANSWER_BYTES_MAX} bytes of events")));
                }
                // The first message, which says that the watch is made, has no events.
                if received.windows(EVENTS.len()).any(|part| part == EVENTS) {
                    return Ok(true);
                }
            }
            Err(Failure::Unavailable("it ended a watch".to_owned()))
        };
        tokio::time::timeout(wait, first_event).await.unwrap_or(Ok(false))
    }

    /// Sends a request to the endpoints in turn, and logs in again if the login is over.
    async fn answered(&self, path: &str, body: &serde_json::Value) -> Result<(Sender, Response<Incoming>), Failure> {
        self.log_in_first().await?;
        match self.sent(path, body).await {
            Err(Failure::Refused(_)) if self.login.is_some() => {
                *self.token.lock().expect("nothing panics while it is held") = None;
                self.log_in_first().await?;
                self.sent(path, body).await
            }
            sent => sent,
        }
    }

    async fn log_in_first(&self) -> Result<(), Failure> {
        let Some(login) = &self.login else { return Ok(()) };
        if self.token.lock().expect("nothing panics while it is held").is_some() {
            return Ok(());
        }
        let password = password_of(&login.password_file).map_err(Failure::Refused)?;
        let request = json!({ "name": login.user, "password": password });
        let (_, response) = self.sent("/v3/auth/authenticate", &request).await?;
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let body = tokio::time::timeout(ANSWERED_WITHIN, body).await.ok().and_then(Result::ok);
        let reply: Option<serde_json::Value> = body.and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
        let token = reply.as_ref().and_then(|reply| reply["token"].as_str());
        let token = token.ok_or_else(|| Failure::Unavailable("it gave no token for the login".to_owned()))?;
        *self.token.lock().expect("nothing panics while it is held") = Some(token.to_owned());
        Ok(())
    }

    async fn sent(&self, path: &str, body: &serde_json::Value) -> Result<(Sender, Response<Incoming>), Failure> {
        let first = self.preferred.load(Relaxed);
        let mut reasons = Vec::new();
        for endpoint in (0..self.endpoints.len()).map(|turn| (first + turn) % self.endpoints.len()) {
            let sent = tokio::time::timeout(ANSWERED_WITHIN, self.sent_to(endpoint, path, body)).await;
            match sent.unwrap_or_else(|_| Err(Failure::Unavailable(format!("no answer within {ANSWERED_WITHIN:?}")))) {
                Ok(answered) => {
                    self.preferred.store(endpoint, Relaxed);
                    return Ok(answered);
                }
                Err(Failure::Unavailable(reason)) => reasons.push(format!("{}: {reason}", self.endpoints[endpoint])),
                Err(refused) => return Err(refused),
            }
        }
        Err(Failure::Unavailable(reasons.join("; ")))
    }

    async fn sent_to(
        &self,
        endpoint: usize,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<(Sender, Response<Incoming>), Failure> {
        let mut sender = self.connected(endpoint).await?;
        let mut request =
            Request::post(path).header(HOST, &self.endpoints[endpoint]).header(CONTENT_TYPE, "application/json");
        if let Some(token) = &*self.token.lock().expect("nothing panics while it is held") {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let request = request.map_err(|error| Failure::Refused(format!("the request is malformed: {error}")))?;
        let response = sender.send_request(request).await.map_err(|error| Failure::Unavailable(error.to_string()))?;
        match response.status() {
            StatusCode::OK => Ok((sender, response)),
            status => {
                let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
                let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
                Err(failure_of(status, &text))
            }
        }
    }

    async fn connected(&self, endpoint: usize) -> Result<Sender, Failure> {
        loop {
            let idle = {
                let mut idle = self.idle.lock().expect("nothing panics while it is held");
                idle.iter().position(|(to, _)| *to == endpoint).map(|at| idle.swap_remove(at).1)
            };
            let Some(mut sender) = idle else { break };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let address = &self.endpoints[endpoint];
        let unavailable = |error: std::io::Error| Failure::Unavailable(error.to_string());
        let stream = TcpStream::connect(address).await.map_err(unavailable)?;
        stream.set_nodelay(true).map_err(unavailable)?;
        let Some(tls) = &self.tls else { return begin(stream).await };
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| Failure::Refused(format!("{host} is no name for TLS: {error}")))?;
        begin(tls.connect(name, stream).await.map_err(unavailable)?).await
    }
}

/// Part of a watch's message that reports a change.
const EVENTS: &[u8] = b"\"events\"";

async fn begin<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static>(
    stream: S,
) -> Result<Sender, Failure> {
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| Failure::Unavailable(error.to_string()))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("a connection to etcd has ended: {error}");
        }
    });
    Ok(sender)
}

/// A member without a leader, or one that starts, is tried again. All else is a refusal.
fn failure_of(status: StatusCode, body: &str) -> Failure {
    let message = serde_json::from_str::<serde_json::Value>(body).ok();
    let message = message.as_ref().and_then(|body| body["error"].as_str().or(body["message"].as_str()));
    let reason = format!("{status}: {}", varve_env::printable::printable(message.unwrap_or(body)));
    if status.is_server_error() { Failure::Unavailable(reason) } else { Failure::Refused(reason) }
}

fn password_of(file: &Path) -> Result<String, String> {
    use std::io::Read;
    let cannot = |error: std::io::Error| format!("cannot read the password in {}: {error}", file.display());
    let mut password = String::new();
    let opened = std::fs::File::open(file).map_err(cannot)?;
    opened.take(PASSWORD_BYTES_MAX).read_to_string(&mut password).map_err(cannot)?;
    Ok(password.trim_end_matches(['\r', '\n']).to_owned())
}

fn connector(files: &TlsFiles) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots.add(certificate).map_err(|error| format!("cannot use {}: {error}", files.ca.display()))?;
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("TLS cannot be used: {error}"))?.with_root_certificates(roots);
    let config = match &files.client {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let read = PrivateKeyDer::from_pem_file(key);
            let read = read.map_err(|error| format!("cannot read the private key in {}: {error}", key.display()))?;
            config
                .with_client_auth_cert(chain, read)
                .map_err(|error| format!("cannot use {} and {}: {error}", certificate.display(), key.display()))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| format!("cannot read the certificates in {}: {error}", file.display()))?;
    if read.is_empty() { Err(format!("{} contains no certificate; give a PEM file", file.display())) } else { Ok(read) }
}
