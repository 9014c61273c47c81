//! Reception from EPICS: a subscription to an NTNDArray, as areaDetector's pva plugin serves it. Each acquisition becomes a
//! run: frames are numbered by `uniqueId` from the run's first, and a run ends when the numbers start again, when type or
//! shape change, or when no frame has come for a while.
//!
//! pvAccess has no acknowledgements. A server drops frames while its queue is full, and they are missing in the file.

mod intake;

pub use intake::PvaSource;

use super::shared::ServiceShared;
use super::threads::named;
use intake::PvaIntake;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varve_detector_pva::channel::{Credentials, Subscription, Update, check_name};
use varve_detector_pva::message::ECHO;
use varve_detector_pva::{nt_ndarray, search};

/// Pause between connection attempts, while the IOC or its network starts up.
const RETRY: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// How long a search waits for replies.
const SEARCH: Duration = Duration::from_secs(1);
/// A peer that pauses in the middle of a message for this long is lost. Between messages, it may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// How soon a waiting thread notices a stop of the service, or the end of a run.
const GLANCE: Duration = Duration::from_millis(200);
/// Servers disconnect a client that has been silent for 40 s.
const ECHO_INTERVAL: Duration = Duration::from_secs(10);
/// The largest frame that a run accepts, with its attributes.
const MESSAGE_BYTES_MAX: u64 = (1 << 30) + (1 << 20);
/// Only one of this many consecutive connection failures is logged.
const FAILURES_PER_LOG: u64 = 60;

/// A PV to subscribe to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PvaTarget {
    pub pv: String,
    pub server: PvaServer,
    /// A run without frames for this long is finished.
    pub idle: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PvaServer {
    /// HOST:PORT.
    At(String),
    /// Found by a search, which goes to these addresses, as HOST:PORT.
    Searched(Vec<String>),
}

impl PvaServer {
    /// The port of servers, unless another program has it.
    pub const PORT: u16 = 5075;
    /// The port of searches, unless a site has changed it.
    pub const SEARCH_PORT: u16 = search::PORT;
}

/// Starts the thread that receives from the PV.
pub(super) fn start(shared: &Arc<ServiceShared>, target: PvaTarget) -> io::Result<JoinHandle<()>> {
    let mine = Arc::clone(shared);
    named("pva", move || {
        if let Some(intake) = PvaIntake::resume(&mine, &target) {
            PvaReceiver { shared: mine, target, intake }.run();
        }
    })
}

struct PvaReceiver {
    shared: Arc<ServiceShared>,
    target: PvaTarget,
    intake: PvaIntake,
}

impl PvaReceiver {
    fn run(mut self) {
        let mut failures = 0_u64;
        while !self.shared.is_stopping() {
            let received = self.receive(&mut failures);
            let pv = &self.target.pv;
            match received {
                Ok(()) if self.shared.is_stopping() => return,
                Ok(()) => tracing::warn!(pv, "the server ended the subscription to a PV, retrying"),
                Err(_) if self.shared.is_stopping() => return,
                Err(error) if failures.is_multiple_of(FAILURES_PER_LOG) => {
                    tracing::warn!(pv, "cannot receive from a PV, retrying: {error}");
                }
                Err(_) => {}
            }
            failures += 1;
            let until = Instant::now() + RETRY;
            while Instant::now() < until && !self.shared.is_stopping() {
                std::thread::sleep(GLANCE);
                self.intake.end_if_idle();
            }
        }
    }

    /// Receives until the server ends the subscription.
    fn receive(&mut self, failures: &mut u64) -> io::Result<()> {
        let address = match &self.target.server {
            PvaServer::At(address) => address.clone(),
            PvaServer::Searched(addresses) => find(&self.target.pv, addresses)?.to_string(),
        };
        let stream = connect(&address)?;
        let now = Instant::now();
        let mut stream =
            PatientSocket { stream, shared: &self.shared, intake: &mut self.intake, heard: None, sent: now };
        let uname = rustix::system::uname();
        let credentials = Credentials {
            user: std::env::var("USER").unwrap_or_else(|_| "varve".to_owned()),
            host: uname.nodename().to_string_lossy().into_owned(),
        };
        let mut subscription = Subscription::open(&mut stream, &self.target.pv, &credentials)?;
        tracing::info!(pv = self.target.pv, address, "subscribed to a PV");
        *failures = 0;
        // The server sends the present value first. It may be from long ago, unless it continues a run.
        let mut is_first = true;
        loop {
            // During an acquisition, reads do not time out.
            if self.shared.is_stopping() {
                return Ok(());
            }
            stream.heard = None;
            if subscription.next(&mut stream, MESSAGE_BYTES_MAX)? == Update::Ended {
                return Ok(());
            }
            let taken = nt_ndarray::take(&Arc::clone(&subscription.structure), &mut subscription.value);
            match taken {
                Ok(Some(frame)) if !is_first || stream.intake.continues(&frame) => stream.intake.take(frame),
                Ok(_) => {}
                Err(error) => stream.intake.refuse(&error.to_string()),
            }
            is_first = false;
        }
    }
}

/// Searches for the server of a PV.
fn find(pv: &str, addresses: &[String]) -> io::Result<SocketAddr> {
    check_name(pv).map_err(io::Error::other)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_broadcast(true)?;
    socket.set_read_timeout(Some(GLANCE))?;
    let id = u32::from_le_bytes(varve_env::random::bytes());
    let request = search::request(pv, socket.local_addr()?.port(), id);
    let mut sent = Err(io::Error::new(io::ErrorKind::NotFound, "there is no address to search at"));
    for address in addresses {
        // One unreachable network does not prevent the search in others.
        let one = socket.send_to(&request, address);
        sent = sent.or(one);
    }
    sent?;
    let deadline = Instant::now() + SEARCH;
    let mut datagram = [0; search::DATAGRAM_BYTES_MAX];
    while Instant::now() < deadline {
        let (length, sender) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        match search::reply(&datagram[..length], sender.ip(), id) {
            Ok(Some(address)) => return Ok(address),
            Ok(None) => {}
            Err(error) => tracing::debug!(pv, "reply to a search ignored: {error}"),
        }
    }
    let text = format!(
        "no server replies to a search at {}; set EPICS_PVA_ADDR_LIST, or give the server's address",
        addresses.join(", ")
    );
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name does not resolve to an address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(GLANCE))?;
                stream.set_write_timeout(Some(SILENCE))?;
                // A host that loses power sends nothing; keepalive lets the kernel detect it.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A stream whose reads wait without limit between messages, until the service stops. Meanwhile it keeps the connection
/// alive and ends a run without frames.
struct PatientSocket<'s> {
    stream: TcpStream,
    shared: &'s ServiceShared,
    intake: &'s mut PvaIntake,
    /// When bytes of the current message last arrived.
    heard: Option<Instant>,
    sent: Instant,
}

impl Read for PatientSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.shared.is_stopping() {
                return Err(io::Error::other("the service is stopping"));
            }
            if self.sent.elapsed() > ECHO_INTERVAL {
                self.write_all(&ECHO)?;
            }
            match self.stream.read(buffer) {
                Ok(count) => {
                    self.heard = Some(Instant::now());
                    return Ok(count);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.heard.is_some_and(|heard| heard.elapsed() > SILENCE) {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "a message ended early"));
                    }
                    self.intake.end_if_idle();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Write for PatientSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent = Instant::now();
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
