//! One blocking connection to a worker: the handshake, then one request and its response at a time, through memory while
//! both sides look (`varve_env::shm_slot`), else by the socket.

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
use varve_proto::handshake::WorkerAddress;

/// A worker of the same host or network takes a connection within this time or is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The server allows itself as much for the whole handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a waiting thread looks at its deadline. It bounds nothing else: a broken connection is noticed at once.
pub(super) const WAIT_SLICE: Duration = Duration::from_secs(1);

/// A host that has vanished does not close its connections: TCP asks after so long without a word, and gives up
/// unacknowledged data after as long.
const TCP_SILENCE: Duration = Duration::from_secs(20);

/// Looks into a shared-memory slot after which the socket is asked, too: a server that is killed says nothing in
/// memory.
const SOCKET_EVERY: u32 = 16;

/// Room for most responses; larger ones make the buffer grow.
const INPUT_BYTES: usize = 16 * 1024;

/// Buffers that grew beyond this (large listings, inline files) are given back after the call.
const BUFFER_BYTES_KEPT: usize = 256 * 1024;

enum SocketStream {
    Unix(UnixStream),
    Tcp(RemoteStream),
}

pub(super) struct ServerConnection {
    stream: SocketStream,
    /// Once the server has shared it.
    shm_slot: Option<ClientSide>,
    input: Vec<u8>,
    output: Vec<u8>,
    spin_budget: SpinBudget,
    /// For the answer to what was sent last, if it is to be looked for.
    spin: Option<SpinWait>,
    /// Looks at hand.
    spins: u32,
    /// The longest wait for bytes before [`ServerConnection::receive`] asks whether to give up.
    wait: Duration,
    /// The longest message that is taken: less of a server that has proved nothing yet.
    message_bytes_max: usize,
}

impl ServerConnection {
    /// Connects to `address`; a server behind a Unix socket has been seen to be root's or the store's owner's.
    pub fn open(address: &WorkerAddress, reach: Reach) -> io::Result<ServerConnection> {
        let stream = match dial::dial(address, reach)? {
            Dialled::Unix(stream) => SocketStream::Unix(stream),
            Dialled::Tcp(stream) => SocketStream::Tcp(RemoteStream::new(stream)),
        };
        let (input, output) = (Vec::with_capacity(INPUT_BYTES), Vec::with_capacity(INPUT_BYTES));
        Ok(ServerConnection {
            stream,
            shm_slot: None,
            input,
            output,
            spin_budget: SpinBudget::default(),
            spin: None,
            spins: 0,
            wait: HANDSHAKE_TIMEOUT,
            message_bytes_max: frame::FRAME_BYTES_MAX,
        })
    }

    /// Writes one message. `spin`: for how long its answer is looked for before the thread sleeps.
    pub fn send<M: serde::Serialize>(&mut self, message: &M, spin: Duration) -> io::Result<()> {
        self.spin = self.spin_budget.spin_for(spin);
        self.write(message)
    }

    /// Writes one message, whose answer is looked for with [`ServerConnection::receive_at_hand`].
    pub fn send_and_go<M: serde::Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.spin = Some(SpinWait::begin(Duration::MAX));
        self.write(message)
    }

    fn write<M: serde::Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.output.clear();
        frame::encode(message, &mut self.output).map_err(io::Error::other)?;
        self.input.clear();
        let posted = self.shm_slot.as_ref().is_some_and(|shm_slot| shm_slot.ask(&self.output, self.spin.is_some()));
        let written = match &mut self.stream {
            _ if posted => Ok(()),
            SocketStream::Unix(stream) => stream.write_all(&self.output),
            SocketStream::Tcp(stream) => stream.write(&self.output),
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

    /// Reads what there is. The first bytes of a message are looked for before the thread sleeps.
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

    /// Reads what is there without waiting, from where it comes while this thread looks.
    fn read_at_hand(&mut self) -> io::Result<usize> {
        match self.shm_slot.as_ref().map(|shm_slot| (shm_slot, shm_slot.answer())) {
            Some((_, SlotReply::Awaited)) => Err(io::ErrorKind::WouldBlock.into()),
            Some((shm_slot, SlotReply::Here)) => {
                shm_slot.take(&mut self.input);
                let body = self.input.first_chunk().map(|header| frame::body_len(header).map_err(io::Error::other));
                match body.transpose()?.is_some_and(|body| frame::HEADER_BYTES + body <= self.input.len()) {
                    true => Ok(self.input.len()),
                    // The rest would not come.
                    false => Err(io::Error::other("the server answers with part of a message")),
                }
            }
            Some((_, SlotReply::BySocket)) | None => self.read_some(RecvFlags::DONTWAIT),
        }
    }

    /// Sleeps until there are bytes. Not in recv(2): a thread that waits there on a Unix socket is also woken when the
    /// peer takes what was sent before.
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
        let held = self.input.len();
        let wanted = match self.input.first_chunk() {
            Some(header) => {
                let body = frame::body_len(header).map_err(io::Error::other)?;
                if body > self.message_bytes_max {
                    let max = self.message_bytes_max;
                    return Err(io::Error::other(format!("a message of {body} bytes comes where {max} are the most")));
                }
                frame::HEADER_BYTES + body - held
            }
            // In the handshake no byte more: the next message may follow at once, or a record.
            None if self.message_bytes_max < frame::FRAME_BYTES_MAX => frame::HEADER_BYTES - held,
            None => INPUT_BYTES,
        };
        match &mut self.stream {
            SocketStream::Unix(stream) => {
                if self.message_bytes_max < frame::FRAME_BYTES_MAX {
                    return receive_at_most(stream, &mut self.input, wanted, flags);
                }
                self.input.reserve(wanted);
                let (_, received) = rustix::net::recv(stream, spare_capacity(&mut self.input), flags)?;
                Ok(received)
            }
            SocketStream::Tcp(stream) => stream.read(&mut self.input, wanted, flags),
        }
    }

    /// `wait`: see the field of that name. What is sent and not taken for as long as a handshake may take is given up.
    fn set_timeouts(&mut self, wait: Duration) -> io::Result<()> {
        self.wait = wait;
        match &self.stream {
            SocketStream::Unix(stream) => stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT)),
            SocketStream::Tcp(stream) => stream.socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT)),
        }
    }
}

/// Appends what has come to `input`, `wanted` bytes at most.
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
