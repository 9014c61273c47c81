//! The client's end of a TCP connection: the handshake in the clear, and sealed records from then on.

use rustix::buffer::spare_capacity;
use rustix::net::RecvFlags;
use std::io::{self, Write};
use std::net::TcpStream;
use varve_proto::record::Records;

/// Bytes requested from the kernel by one recv(2).
const RECEIVED_AT_ONCE: usize = 64 * 1024;

/// Buffers that grew beyond this are freed after the call.
const BUFFER_BYTES_KEPT: usize = 256 * 1024;

pub(super) struct RemoteStream {
    pub socket: TcpStream,
    /// Set at the end of the handshake.
    records: Option<Records>,
    /// Bytes of incomplete records.
    received: Vec<u8>,
    sealed: Vec<u8>,
}

impl RemoteStream {
    pub fn new(socket: TcpStream) -> RemoteStream {
        RemoteStream { socket, records: None, received: Vec::new(), sealed: Vec::new() }
    }

    pub fn protect(&mut self, records: Records) {
        self.records = Some(records);
    }

    pub fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let Some(records) = &mut self.records else { return self.socket.write_all(frame) };
        self.sealed.clear();
        records.seal(frame, &mut self.sealed).map_err(io::Error::other)?;
        let written = self.socket.write_all(&self.sealed);
        self.sealed.shrink_to(BUFFER_BYTES_KEPT);
        written
    }

    /// Appends available bytes to `input`, after the handshake. Returns the number of bytes read from the socket; 0 at its
    /// end. [`io::ErrorKind::Interrupted`]: the bytes read are only part of a record.
    pub fn read(&mut self, input: &mut Vec<u8>, flags: RecvFlags) -> io::Result<usize> {
        let Some(records) = &mut self.records else {
            return Err(io::Error::other("the connection has no records"));
        };
        self.received.reserve(RECEIVED_AT_ONCE);
        let (_, received) = rustix::net::recv(&self.socket, spare_capacity(&mut self.received), flags)?;
        if received == 0 {
            return match self.received.len() {
                0 => Ok(0),
                part => Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the connection ended in the middle of a record, after {part} bytes"),
                )),
            };
        }
        let held = input.len();
        let opened = records.open_all(&mut self.received, input);
        opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if input.len() == held { Err(io::ErrorKind::Interrupted.into()) } else { Ok(received) }
    }
}
