//! HTTP client for the service's control interface, as the commands use it.

use crate::tls::{self, ClientTls};
use crate::token;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// The statuses of a hundred runs are far below this limit.
const ANSWER_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot reach the service at {address}: {why}")]
    Unreachable { address: String, why: String },
    /// `code` is the stream protocol's name for the error.
    #[error("{text}")]
    Refused { code: String, text: String },
}

/// Escapes control characters in the service's text, so that a terminal can show it.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// A service, by its HTTP address.
#[derive(Clone, Debug)]
pub struct Control {
    pub address: String,
    /// `None`: the client uses the token that a service of this user has published on this host, if any.
    pub token: Option<String>,
    /// `None`: the service listens without TLS.
    pub tls: Option<ClientTls>,
}

impl Control {
    pub fn get(&self, path: &str, wait: Duration) -> Result<Value, ControlError> {
        self.ask(Method::GET, path, None, wait)
    }

    pub fn post(&self, path: &str, body: Option<Value>, wait: Duration) -> Result<Value, ControlError> {
        self.ask(Method::POST, path, body, wait)
    }

    fn unreachable(&self, why: impl ToString) -> ControlError {
        ControlError::Unreachable { address: self.address.clone(), why: why.to_string() }
    }

    fn ask(&self, method: Method, path: &str, body: Option<Value>, wait: Duration) -> Result<Value, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.unreachable(error))?;
        let asked = runtime.block_on(async { tokio::time::timeout(wait, self.exchange(method, path, body)).await });
        asked.map_err(|_| self.unreachable(format!("no reply within {} s", wait.as_secs_f64())))?
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, ControlError> {
        let connecting = tokio::net::TcpStream::connect(&self.address);
        let socket = tokio::time::timeout(CONNECT_WAIT, connecting).await.map_err(|error| self.unreachable(error))?;
        let socket = socket.map_err(|error| self.unreachable(error))?;
        let peer = socket.peer_addr().map_err(|error| self.unreachable(error))?;
        let token = token::for_peer(self.token.as_deref().unwrap_or_default(), peer)
            .map_err(|error| ControlError::Refused { code: "token".into(), text: error.to_string() })?;
        let Some(tls) = &self.tls else { return self.converse(socket, &token, (method, path, body)).await };
        let explain = |error| self.unreachable(tls::explain(error, &self.address));
        let name = tls::server_name(&self.address).map_err(explain)?;
        let connecting = tokio::time::timeout(CONNECT_WAIT, tls.connector().connect(name, socket));
        let session = connecting.await.map_err(|error| self.unreachable(error))?.map_err(explain)?;
        self.converse(session, &token, (method, path, body)).await
    }

    async fn converse<S>(
        &self,
        socket: S,
        token: &str,
        (method, path, body): (Method, &str, Option<Value>),
    ) -> Result<Value, ControlError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
            .await
            .map_err(|error| self.unreachable(error))?;
        let driven = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.address);
        if !token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.body(Full::new(bytes)).map_err(|error| self.unreachable(error))?;
        let answer = sender.send_request(request).await.map_err(|error| self.unreachable(error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.unreachable(error))?.to_bytes();
        driven.abort();
        self.read(status, &body)
    }

    fn read(&self, status: StatusCode, body: &[u8]) -> Result<Value, ControlError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| self.unreachable(format!("its reply is not from a detector service: {error}")))?;
        if status.is_success() {
            return Ok(value);
        }
        let word = |key: &str| printable(value[key].as_str().unwrap_or("unknown"));
        Err(ControlError::Refused { code: word("error"), text: word("text") })
    }
}
