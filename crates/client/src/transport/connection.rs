//! One blocking connection to a worker: the handshake, then one call at a time, in the messages of `varve_rpc::wire`. They
//! go through shared memory while both sides poll (`varve_env::shm_slot`), and else through the socket.

#![expect(clippy::disallowed_types, reason = "this is where the client's sockets are")]

mod dial;
mod greet;
mod remote;

pub(super) use self::dial::{Reach, Untrusted};
pub(super) use self::greet::Identity;

use self::dial::Dialled;
use self::remote::RemoteStream;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::net::RecvFlags;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use varve_env::shm_slot::{ClientSide, SlotReply};
use varve_env::spin::{SpinBudget, SpinWait};
use varve_proto::frame;
use varve_proto::handshake::ANSWER_BYTES_MAX;
use varve_rpc::wire::{self, Decoder, Message};
use varve_types::WorkerAddress;

/// A worker on the same host or network accepts a connection within this time, or is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The server uses the same timeout for the whole handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a waiting thread checks its deadline. A broken connection is noticed at once, independently of this.
pub(super) const WAIT_SLICE: Duration = Duration::from_secs(1);

/// A host that has vanished does not close its connections: TCP sends keepalive probes after this time, and gives up
/// unacknowledged data after the same time.
const TCP_SILENCE: Duration = Duration::from_secs(20);

/// Number of polls of a shared-memory slot after which the socket is polled, too: a killed server leaves no mark in the
/// slot.
const SOCKET_EVERY: u32 = 16;

/// Large enough for most responses; larger ones grow the buffer.
const INPUT_BYTES: usize = 16 * 1024;

/// Buffers that grew beyond this (large listings, inline files) are freed after the call.
const BUFFER_BYTES_KEPT: usize = 256 * 1024;

enum SocketStream {
    Unix(UnixStream),
    Tcp(RemoteStream),
}

pub(super) struct ServerConnection {
    stream: SocketStream,
    /// Set once the server has shared it.
    shm_slot: Option<ClientSide>,
    /// Bytes of a message of the handshake.
    greeted: Vec<u8>,
    input: Decoder,
    output: Vec<u8>,
    /// Calls made. The last one's number is this.
    calls: u64,
    spin_budget: SpinBudget,
    /// Spins for the reply to the last request, if spinning is enabled.
    spin: Option<SpinWait>,
    /// Number of polls without blocking.
    spins: u32,
    /// The longest wait for bytes before [`ServerConnection::receive`] calls `give_up`.
    wait: Duration,
    /// The server is authenticated: messages of calls come.
    open: bool,
}

impl ServerConnection {
    /// Connects to `address`. Accepts a peer of a Unix socket only if it runs as root or as the store's owner.
    pub fn open(address: &WorkerAddress, reach: Reach) -> io::Result<ServerConnection> {
        let stream = match dial::dial(address, reach)? {
            Dialled::Unix(stream) => SocketStream::Unix(stream),
            Dialled::Tcp(stream) => SocketStream::Tcp(RemoteStream::new(stream)),
        };
        Ok(ServerConnection::on(stream))
    }

    fn on(stream: SocketStream) -> ServerConnection {
        ServerConnection {
            stream,
            shm_slot: None,
            greeted: Vec::new(),
            input: Decoder::default(),
            output: Vec::with_capacity(INPUT_BYTES),
            calls: 0,
            spin_budget: SpinBudget::default(),
            spin: None,
            spins: 0,
            wait: HANDSHAKE_TIMEOUT,
            open: false,
        }
    }

    /// Sends a request whose caller waits for `wait`. `spin`: how long the thread spins for the reply before it sleeps.
    pub fn send<M: serde::Serialize>(&mut self, request: &M, wait: Duration, spin: Duration) -> io::Result<()> {
        self.spin = self.spin_budget.spin_for(spin);
        self.send_request(request, wait)
    }

    /// Sends a request, whose reply [`ServerConnection::receive_at_hand`] polls for.
    pub fn send_and_go<M: serde::Serialize>(&mut self, request: &M, wait: Duration) -> io::Result<()> {
        self.spin = Some(SpinWait::begin(Duration::MAX));
        self.send_request(request, wait)
    }

    fn send_request<M: serde::Serialize>(&mut self, request: &M, wait: Duration) -> io::Result<()> {
        let body = frame::body_of(request).map_err(io::Error::other)?.into();
        self.calls += 1;
        self.output.clear();
        Message::Request { call: self.calls, deadline: wait, body }.encode(&mut self.output);
        self.write()
    }

    /// Writes the message in the buffer.
    fn write(&mut self) -> io::Result<()> {
        let posted = self.shm_slot.as_ref().is_some_and(|shm_slot| shm_slot.ask(&self.output, self.spin.is_some()));
        let written = match &mut self.stream {
            _ if posted => Ok(()),
            SocketStream::Unix(stream) => stream.write_all(&self.output),
            SocketStream::Tcp(stream) => stream.write(&self.output),
        };
        self.output.shrink_to(BUFFER_BYTES_KEPT);
        written
    }

    /// Waits for the reply; calls `give_up` whenever [`WAIT_SLICE`] passes without a byte. `None`: given up. `sleeps`
    /// is called before the thread sleeps.
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

    /// Returns the reply if it has arrived; `None` if it has not arrived completely.
    pub fn receive_at_hand<M: serde::de::DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        loop {
            let mut read = self.read_at_hand();
            self.spins = self.spins.wrapping_add(1);
            if matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
                && self.spins.is_multiple_of(SOCKET_EVERY)
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

    /// Returns the reply to the last call, if it is complete.
    fn received<M: serde::de::DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some(message) = self.input.take().map_err(io::Error::other)? else { return Ok(None) };
        if !self.input.is_empty() {
            return Err(io::Error::other("the server sent more replies than there were requests"));
        }
        match message {
            Message::Reply { call, body } if call == self.calls => {
                frame::decode_body(&body).map(Some).map_err(io::Error::other)
            }
            Message::NotBegun { call, reason } if call == self.calls => {
                Err(io::Error::other(format!("the server did not begin the call: {reason}")))
            }
            _ => Err(io::Error::other("the server sent a message that answers no call")),
        }
    }

    /// Reads available bytes. Spins for the first bytes of a message before the thread sleeps.
    fn read_patiently(&mut self, sleeps: &impl Fn()) -> io::Result<usize> {
        if let Some(mut spin) = self.spin.take() {
            loop {
                match self.read_at_hand() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => {
                        self.spin_budget.succeeded();
                        return read;
                    }
                }
                if !spin.again() {
                    break;
                }
            }
            self.spin_budget.failed();
            if let Some(shm_slot) = &self.shm_slot
                && !shm_slot.sleep()
            {
                return self.read_at_hand();
            }
        }
        sleeps();
        self.wait_for_bytes()?;
        self.read_some(RecvFlags::DONTWAIT)
    }

    /// Reads available bytes without blocking, from the source that is used while this thread spins.
    fn read_at_hand(&mut self) -> io::Result<usize> {
        match self.shm_slot.as_ref().map(|shm_slot| (shm_slot, shm_slot.answer())) {
            Some((_, SlotReply::Awaited)) => Err(io::ErrorKind::WouldBlock.into()),
            Some((shm_slot, SlotReply::Here)) => {
                let input = self.input.input();
                shm_slot.take(input);
                match wire::is_complete(input).map_err(io::Error::other)? {
                    true => Ok(input.len()),
                    // The rest would not arrive.
                    false => Err(io::Error::other("the server sent an incomplete message")),
                }
            }
            Some((_, SlotReply::BySocket)) | None => self.read_some(RecvFlags::DONTWAIT),
        }
    }

    /// Sleeps until there are bytes. It uses poll(2), because a thread that waits in recv(2) on a Unix socket is also
    /// woken when the peer reads what was sent before.
    fn wait_for_bytes(&self) -> io::Result<()> {
        let mut watched = [match &self.stream {
            SocketStream::Unix(stream) => PollFd::new(stream, PollFlags::IN),
            SocketStream::Tcp(stream) => PollFd::new(&stream.socket, PollFlags::IN),
        }];
        let timeout = rustix::event::Timespec::try_from(self.wait).map_err(io::Error::other)?;
        match rustix::event::poll(&mut watched, Some(&timeout))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    fn read_some(&mut self, flags: RecvFlags) -> io::Result<usize> {
        if !self.open {
            return self.read_of_handshake(flags);
        }
        let input = self.input.input();
        match &mut self.stream {
            SocketStream::Unix(stream) => {
                input.reserve(INPUT_BYTES);
                let (_, received) = rustix::net::recv(stream, spare_capacity(input), flags)?;
                Ok(received)
            }
            SocketStream::Tcp(stream) => stream.read(input, flags),
        }
    }

    /// Reads no byte beyond the message, because a record may follow at once.
    fn read_of_handshake(&mut self, flags: RecvFlags) -> io::Result<usize> {
        let held = self.greeted.len();
        let wanted = match self.greeted.first_chunk() {
            Some(header) => {
                let body = frame::body_len(header).map_err(io::Error::other)?;
                if body > ANSWER_BYTES_MAX {
                    return Err(io::Error::other(format!(
                        "a message of {body} bytes exceeds the limit of {ANSWER_BYTES_MAX} bytes"
                    )));
                }
                frame::HEADER_BYTES + body - held
            }
            None => frame::HEADER_BYTES - held,
        };
        let socket = match &self.stream {
            SocketStream::Unix(stream) => stream.as_fd(),
            SocketStream::Tcp(stream) => stream.socket.as_fd(),
        };
        receive_at_most(socket, &mut self.greeted, wanted, flags)
    }

    /// `wait`: see the field of that name. Sent data that the peer does not accept within the handshake timeout is
    /// given up.
    fn set_timeouts(&mut self, wait: Duration) -> io::Result<()> {
        self.wait = wait;
        match &self.stream {
            SocketStream::Unix(stream) => stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT)),
            SocketStream::Tcp(stream) => stream.socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT)),
        }
    }
}

/// Appends available bytes to `input`, at most `wanted`.
fn receive_at_most(socket: impl AsFd, input: &mut Vec<u8>, wanted: usize, flags: RecvFlags) -> io::Result<usize> {
    let held = input.len();
    input.resize(held + wanted, 0);
    let received = rustix::net::recv(socket, &mut input[held..], flags).map(|(_, count)| count);
    input.truncate(held + received.unwrap_or_default());
    Ok(received?)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
#[path = "connection/tests.rs"]
mod tests;
