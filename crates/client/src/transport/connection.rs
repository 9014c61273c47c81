//! One blocking connection to a worker: the handshake, then one request and its response at a time, through memory while
//! both sides look (`varve_world::mailbox`), else by the socket.

#![expect(clippy::disallowed_types, reason = "this is where the client's sockets are")]

use super::FindError;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use varve_types::{SessionId, VolumeId};
use varve_wire::frame;
use varve_wire::handshake::{Greeting, Hello, Purpose, Side, VolumeKey, Welcome, WorkerAddress};
use varve_world::mailbox::{Answer, Asking};
use varve_world::patience::{LOOK, Look, Patience};
use varve_world::random;

/// A worker of the same host or network takes a connection within this time or is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The server allows itself as much for the whole handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a waiting thread looks at its deadline. It bounds nothing else: a broken connection is noticed at once.
pub(super) const WAIT_SLICE: Duration = Duration::from_secs(1);

/// A host that has vanished does not close its connections: TCP asks after so long without a word, and gives up
/// unacknowledged data after as long.
const TCP_SILENCE: Duration = Duration::from_secs(20);

/// Looks into a mailbox after which the socket is asked, too: a server that is killed says nothing in memory.
const SOCKET_EVERY: u32 = 16;

/// Room for most responses; larger ones make the buffer grow.
const INPUT_BYTES: usize = 16 * 1024;

/// Buffers that grew beyond this (large listings, inline files) are given back after the call.
const BUFFER_BYTES_KEPT: usize = 256 * 1024;

/// Who this client is and what it expects of a server.
#[derive(Clone)]
pub(super) struct Identity {
    pub volume: VolumeId,
    pub key: VolumeKey,
    pub session: SessionId,
    pub purpose: Purpose,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

pub(super) struct Connection {
    stream: Stream,
    /// Once the server has shared it.
    mailbox: Option<Asking>,
    input: Vec<u8>,
    output: Vec<u8>,
    patience: Patience,
    /// For the answer to what was sent last, if it is to be looked for.
    look: Option<Look>,
    /// Looks at hand.
    looks: u32,
    /// The longest wait for bytes before [`Connection::receive`] asks whether to give up.
    wait: Duration,
}

impl Connection {
    /// Connects to `address`: by its Unix socket if that is on this host, and in sight, else by TCP.
    pub fn open(address: &WorkerAddress, local: bool) -> io::Result<Connection> {
        let stream = match (&address.unix, &address.tcp) {
            (Some(path), tcp) if local => match (open_unix(path), tcp) {
                (Ok(stream), _) => Stream::Unix(stream),
                // As from within a container, which has another directory by that name.
                (Err(error), Some(tcp)) if error.kind() == io::ErrorKind::NotFound => {
                    let neither =
                        |by_tcp: io::Error| io::Error::new(by_tcp.kind(), format!("{path}: {error}; {tcp}: {by_tcp}"));
                    let stream = open_tcp(tcp).map_err(neither)?;
                    tracing::info!("there is no {path} here: connected to {tcp}");
                    Stream::Tcp(stream)
                }
                (Err(error), _) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
            },
            (_, Some(tcp)) => Stream::Tcp(open_tcp(tcp)?),
            _ => return Err(io::Error::other("the worker has no address that can be reached from this host")),
        };
        let (input, output) = (Vec::with_capacity(INPUT_BYTES), Vec::with_capacity(INPUT_BYTES));
        Ok(Connection {
            stream,
            mailbox: None,
            input,
            output,
            patience: Patience::default(),
            look: None,
            looks: 0,
            wait: HANDSHAKE_TIMEOUT,
        })
    }

    /// Proves who both sides are. On success the connection is ready for requests.
    pub fn shake_hands(&mut self, identity: &Identity) -> Result<Welcome, FindError> {
        let broken = |error: io::Error| FindError::Absent(broken_handshake(&error));
        self.set_timeouts(HANDSHAKE_TIMEOUT).map_err(broken)?;
        let greeting: Greeting = self.receive_once().map_err(broken)?;
        if greeting.version != varve_wire::VERSION {
            return Err(FindError::Refused(format!(
                "the server speaks version {} of the protocol and this program version {}: use the same varve on both",
                greeting.version,
                varve_wire::VERSION
            )));
        }
        if greeting.volume != identity.volume.0 {
            // The socket of an earlier volume's server: the record will be replaced or removed.
            return Err(FindError::Absent(format!(
                "the server serves volume {}, not {}",
                VolumeId(greeting.volume),
                identity.volume
            )));
        }
        let nonce = random::bytes();
        let hello = Hello {
            version: varve_wire::VERSION,
            session: identity.session.0,
            purpose: identity.purpose,
            nonce,
            proof: identity.key.prove(Side::Client, &nonce, &greeting.nonce),
            mailbox: matches!(self.stream, Stream::Unix(_)),
        };
        self.send(&hello, LOOK).map_err(broken)?;
        if hello.mailbox {
            self.wait_for_bytes().and_then(|()| self.read_with_mailbox()).map_err(broken)?;
        }
        let welcome: Welcome = self.receive_once().map_err(broken)?;
        match &welcome {
            Welcome::Refused { reason } => return Err(FindError::Refused(reason.clone())),
            Welcome::Crowded { reason } => return Err(FindError::Absent(reason.clone())),
            Welcome::Accepted { proof, .. } => {
                if !identity.key.verify(Side::Server, &nonce, &greeting.nonce, proof) {
                    return Err(FindError::Refused("the server does not know the volume's key".into()));
                }
            }
        }
        self.set_timeouts(WAIT_SLICE).map_err(broken)?;
        Ok(welcome)
    }

    /// Writes one message. `look`: for how long its answer is looked for before the thread sleeps.
    pub fn send<M: serde::Serialize>(&mut self, message: &M, look: Duration) -> io::Result<()> {
        self.look = self.patience.look_for(look);
        self.write(message)
    }

    /// Writes one message, whose answer is looked for with [`Connection::receive_at_hand`].
    pub fn send_and_go<M: serde::Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.look = Some(Look::begin(Duration::MAX));
        self.write(message)
    }

    fn write<M: serde::Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.output.clear();
        frame::encode(message, &mut self.output).map_err(io::Error::other)?;
        self.input.clear();
        let posted = self.mailbox.as_ref().is_some_and(|mailbox| mailbox.ask(&self.output, self.look.is_some()));
        let written = match &mut self.stream {
            _ if posted => Ok(()),
            Stream::Unix(stream) => stream.write_all(&self.output),
            Stream::Tcp(stream) => stream.write_all(&self.output),
        };
        self.output.shrink_to(BUFFER_BYTES_KEPT);
        written
    }

    /// Waits for one message; asks `give_up` whenever [`WAIT_SLICE`] passes without a byte. `None`: given up. `sleeps`: called
    /// before the thread does so.
    pub fn receive<M: serde::de::DeserializeOwned>(
        &mut self,
        give_up: impl Fn() -> bool,
        sleeps: impl Fn(),
    ) -> io::Result<Option<M>> {
        loop {
            if let Some(message) = self.received()? {
                return Ok(Some(message));
            }
            match self.read_patiently(&sleeps) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => {
                    if give_up() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The message that is there; `None`: it is not, or not all of it.
    pub fn receive_at_hand<M: serde::de::DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        loop {
            let mut read = self.read_at_hand();
            self.looks = self.looks.wrapping_add(1);
            if matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
                && self.looks.is_multiple_of(SOCKET_EVERY)
            {
                read = self.read_some(RecvFlags::DONTWAIT);
            }
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if let Some(message) = self.received()? {
                return Ok(Some(message));
            }
        }
    }

    /// What was read, once it is a whole message.
    fn received<M: serde::de::DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some((message, len)) = frame::take(&self.input).map_err(io::Error::other)? else { return Ok(None) };
        if len != self.input.len() {
            return Err(io::Error::other("the server answers more than it was asked"));
        }
        self.input.clear();
        self.input.shrink_to(BUFFER_BYTES_KEPT);
        Ok(Some(message))
    }

    fn receive_once<M: serde::de::DeserializeOwned>(&mut self) -> io::Result<M> {
        self.receive(|| true, || ())?.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }

    /// Reads what there is. The first bytes of a message are looked for before the thread sleeps.
    fn read_patiently(&mut self, sleeps: &impl Fn()) -> io::Result<usize> {
        if let Some(mut look) = self.look.take() {
            loop {
                match self.read_at_hand() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => {
                        self.patience.succeeded();
                        return read;
                    }
                }
                if !look.again() {
                    break;
                }
            }
            self.patience.failed();
            if let Some(mailbox) = &self.mailbox
                && !mailbox.sleep()
            {
                return self.read_at_hand();
            }
        }
        sleeps();
        self.wait_for_bytes()?;
        self.read_some(RecvFlags::DONTWAIT)
    }

    /// Reads what is there without waiting, from where it comes while this thread looks.
    fn read_at_hand(&mut self) -> io::Result<usize> {
        match self.mailbox.as_ref().map(|mailbox| (mailbox, mailbox.answer())) {
            Some((_, Answer::Awaited)) => Err(io::ErrorKind::WouldBlock.into()),
            Some((mailbox, Answer::Here)) => {
                mailbox.take(&mut self.input);
                let body = self.input.first_chunk().map(|header| frame::body_len(header).map_err(io::Error::other));
                match body.transpose()?.is_some_and(|body| frame::HEADER_BYTES + body <= self.input.len()) {
                    true => Ok(self.input.len()),
                    // The rest would not come.
                    false => Err(io::Error::other("the server answers with part of a message")),
                }
            }
            Some((_, Answer::BySocket)) | None => self.read_some(RecvFlags::DONTWAIT),
        }
    }

    /// Reads the beginning of what there is, and takes the mailbox that comes with it, if one does.
    fn read_with_mailbox(&mut self) -> io::Result<()> {
        let Stream::Unix(stream) = &self.stream else { return Ok(()) };
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.input.extend_from_slice(&bytes[..received.bytes]);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for shared in descriptors {
                    // Without it all goes by the socket.
                    match Asking::open(&shared) {
                        Ok(mailbox) => self.mailbox = Some(mailbox),
                        Err(error) => tracing::debug!("the server's mailbox cannot be used: {error}"),
                    }
                }
            }
        }
        Ok(())
    }

    /// Sleeps until there are bytes. Not in recv(2): a thread that waits there on a Unix socket is also woken when the
    /// peer takes what was sent before.
    fn wait_for_bytes(&self) -> io::Result<()> {
        let mut watched = [match &self.stream {
            Stream::Unix(stream) => PollFd::new(stream, PollFlags::IN),
            Stream::Tcp(stream) => PollFd::new(stream, PollFlags::IN),
        }];
        let timeout = rustix::event::Timespec::try_from(self.wait).map_err(io::Error::other)?;
        match rustix::event::poll(&mut watched, Some(&timeout))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    fn read_some(&mut self, flags: RecvFlags) -> io::Result<usize> {
        let held = self.input.len();
        let wanted = match self.input.first_chunk() {
            Some(header) => frame::HEADER_BYTES + frame::body_len(header).map_err(io::Error::other)? - held,
            None => INPUT_BYTES,
        };
        self.input.reserve(wanted);
        let room = spare_capacity(&mut self.input);
        let (_, received) = match &self.stream {
            Stream::Unix(stream) => rustix::net::recv(stream, room, flags),
            Stream::Tcp(stream) => rustix::net::recv(stream, room, flags),
        }?;
        Ok(received)
    }

    /// `wait`: see the field of that name. What is sent and not taken for as long as a handshake may take is given up.
    fn set_timeouts(&mut self, wait: Duration) -> io::Result<()> {
        self.wait = wait;
        match &self.stream {
            Stream::Unix(stream) => stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT)),
            Stream::Tcp(stream) => stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT)),
        }
    }
}

/// What a handshake that was not done means for people.
fn broken_handshake(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the server closed the connection before the handshake was done: it stops, or has too many connections on \
             which nobody says who he is"
                .into()
        }
        _ if is_timeout(error) => format!(
            "the server has not answered the handshake within {} s: it hangs, or has too many connections",
            HANDSHAKE_TIMEOUT.as_secs()
        ),
        _ => format!("the handshake failed: {error}"),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Connects with a deadline: a server whose queue of connections is full would else hold the caller for ever.
fn open_unix(path: &str) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_TIMEOUT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn open_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other(format!("{address} has no address"));
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                rustix::net::sockopt::set_tcp_keepidle(&stream, TCP_SILENCE)?;
                rustix::net::sockopt::set_tcp_user_timeout(&stream, TCP_SILENCE.as_millis() as u32)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
#[path = "connection/tests.rs"]
mod tests;
