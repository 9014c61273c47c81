//! TLS 1.3 (rustls) for the frame stream and HTTP. Threads that receive and send frames keep using blocking sockets: a
//! small runtime relays between the TLS session and a socket pair, whose unencrypted end they use.
//!
//! Back-pressure works: the relay buffers at most [`RELAY_BYTES`] in each direction, besides the kernel's buffers of
//! the socket pair.

use crate::Socket;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Sixteen TLS records.
const RELAY_BYTES: usize = 256 << 10;
/// One thread encrypts more than a detector's link carries; several connections share these threads.
const RELAY_THREADS: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the certificates in {}: {source}", path.display())]
    Certificates { path: PathBuf, source: pem::Error },
    #[error("{} contains no certificate; give a PEM file", path.display())]
    NoCertificate { path: PathBuf },
    #[error("cannot read the private key in {}: {source}", path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("cannot use the certificate and key: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("cannot start the TLS threads: {0}")]
    Threads(#[source] io::Error),
}

/// The runtime of the relays. It outlives every connection that it serves.
struct Relays(Option<Runtime>);

impl Relays {
    fn start() -> Result<Arc<Relays>, TlsError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(RELAY_THREADS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("tls")
            .enable_all()
            .build()
            .map_err(TlsError::Threads)?;
        Ok(Arc::new(Relays(Some(runtime))))
    }

    /// Performs `handshake` on `socket` within `wait`, and returns the unencrypted end of the session.
    fn serve<S, H>(&self, socket: TcpStream, wait: Duration, handshake: H) -> io::Result<Socket>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: AsyncFnOnce(tokio::net::TcpStream) -> io::Result<S>,
    {
        let runtime = self.0.as_ref().expect("it is taken by drop alone");
        let (ours, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        runtime.block_on(async {
            let socket = tokio::net::TcpStream::from_std(socket)?;
            let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no TLS handshake within {wait:?}"));
            let mut session = tokio::time::timeout(wait, handshake(socket)).await.map_err(|_| late())??;
            let mut pair = tokio::net::UnixStream::from_std(theirs)?;
            tokio::spawn(async move {
                let relayed = copy_bidirectional_with_sizes(&mut session, &mut pair, RELAY_BYTES, RELAY_BYTES).await;
                if let Err(error) = relayed {
                    tracing::debug!("TLS session failed: {error}");
                }
            });
            Ok(Socket::Tls(ours))
        })
    }
}

impl Drop for Relays {
    /// The last owner may be a task of another runtime, which must not block.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A service's certificate and key.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    relays: Arc<Relays>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

impl ServerTls {
    /// Reads PEM files: the certificate with its chain, and its key.
    ///
    /// # Errors
    /// If a file cannot be read, or certificate and key do not match.
    pub fn read(certificate: &Path, key: &Path) -> Result<ServerTls, TlsError> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Key { path: key.to_owned(), source })?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), relays: Relays::start()? })
    }

    /// For connections that run on another runtime.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// # Errors
    /// If the peer does not complete the TLS handshake in time.
    pub fn accept(&self, socket: TcpStream, wait: Duration) -> io::Result<Socket> {
        self.relays.serve(socket, wait, async |socket| self.acceptor.accept(socket).await)
    }
}

/// The certificates that a client trusts, with its relays.
#[derive(Clone)]
pub struct ClientTls {
    connector: TlsConnector,
    relays: Arc<Relays>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}

impl ClientTls {
    /// Trusts only certificates signed by those in a PEM file.
    ///
    /// # Errors
    /// If the file cannot be read or has no certificate.
    pub fn trusting(ca: &Path) -> Result<ClientTls, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(ClientTls { connector: TlsConnector::from(Arc::new(config)), relays: Relays::start()? })
    }

    /// For connections that run on another runtime.
    pub(crate) fn connector(&self) -> TlsConnector {
        self.connector.clone()
    }

    /// Starts a session with the service at `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// If the service has no trusted certificate for HOST, or does not complete the handshake in time.
    pub fn connect(&self, socket: TcpStream, address: &str, wait: Duration) -> io::Result<Socket> {
        let name = server_name(address)?;
        let connected = async |socket| self.connector.connect(name, socket).await;
        self.relays.serve(socket, wait, connected).map_err(|error| explain(error, address))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Certificates { path: path.to_owned(), source };
    let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

/// The name required in the certificate: HOST of `HOST:PORT`.
pub(crate) fn server_name(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("`{host}` is not a valid name in a certificate"))
    })
}

/// Adds the address and the relevant flag to errors of the TLS library.
pub(crate) fn explain(error: io::Error, address: &str) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let why = match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!(
                "the certificate of {address} is not trusted ({why:?}): does --tls-ca name the file that signed it?"
            )
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            format!("{address} does not speak TLS: start the service with --tls-cert, or leave out --tls-ca")
        }
        Some(other) => format!("TLS with {address}: {other}"),
        None => return error,
    };
    io::Error::new(io::ErrorKind::InvalidData, why)
}
