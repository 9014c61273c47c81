//! A connection that messages go over: TCP itself, or one end of a socket pair whose other end a TLS session serves. Both
//! are descriptors of the kernel, so deadlines, `recv` flags and `shutdown` mean the same.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    /// The plain side of a TLS session.
    Tls(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Socket {
        Socket::Tcp(socket)
    }
}

impl Socket {
    /// # Errors
    /// If no descriptor is left.
    pub fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(socket) => socket.try_clone().map(Socket::Tcp),
            Socket::Tls(socket) => socket.try_clone().map(Socket::Tls),
        }
    }

    /// # Errors
    /// If the connection is gone.
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
    /// As of [`Socket::set_read_timeout`].
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
