//! The sending end, as in a detector: a PUSH socket with one connected client.

use super::zmtp::{ZmtpRole, handshake, send};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A client that sends or accepts nothing for this long is lost.
const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

pub struct Push {
    listener: TcpListener,
    to: Option<TcpStream>,
}

impl Push {
    /// # Errors
    /// If the address is not available.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Push> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Push { listener, to: None })
    }

    /// # Errors
    /// If the socket has no address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if none connects within `wait`.
    pub fn accept(&mut self, wait: Duration) -> io::Result<()> {
        let deadline = Instant::now() + wait;
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(DEADLINE))?;
                    stream.set_write_timeout(Some(DEADLINE))?;
                    // A peer that is not a PULL socket is refused, and the next one is awaited.
                    match handshake(&mut stream, ZmtpRole::Push) {
                        Ok(()) => {
                            self.to = Some(stream);
                            return Ok(());
                        }
                        Err(error) => tracing::warn!("client of the stream refused: {error}"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(POLL),
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no client has connected"));
            }
        }
    }

    /// # Errors
    /// If the client is gone, or accepts nothing for too long.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match &mut self.to {
            Some(stream) => send(stream, message),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
