//! A connection for messages: TCP itself, or one end of a socket pair whose other end a TLS session serves. Both are
//! kernel sockets, so deadlines, `recv` flags and `shutdown` work in the same way.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    /// The unencrypted side of a TLS session.
    Tls(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Socket {
        Socket::Tcp(socket)
    }
}

impl Socket {
    /// # Errors
    /// If no file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(socket) => socket.try_clone().map(Socket::Tcp),
            Socket::Tls(socket) => socket.try_clone().map(Socket::Tls),
        }
    }

    /// # Errors
    /// If the connection is already closed.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(how),
            Socket::Tls(socket) => socket.shutdown(how),
        }
    }

    /// # Errors
    /// If `wait` is zero.
    pub fn set_read_timeout(&self, wait: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.set_read_timeout(wait),
            Socket::Tls(socket) => socket.set_read_timeout(wait),
        }
    }

    /// # Errors
    /// Same as [`Socket::set_read_timeout`].
    pub fn set_write_timeout(&self, wait: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.set_write_timeout(wait),
            Socket::Tls(socket) => socket.set_write_timeout(wait),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Tls(socket) => socket.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).read(into),
            Socket::Tls(socket) => (&*socket).read(into),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Tls(socket) => socket.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write_vectored(parts),
            Socket::Tls(socket) => socket.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
