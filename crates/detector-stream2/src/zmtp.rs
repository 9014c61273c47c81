//! PUSH and PULL sockets of ZeroMQ over TCP: ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) with the NULL mechanism, which
//! every libzmq from 4.0 on supports. One connection, one direction; peers that require more are refused.
//!
//! Our own because the `zeromq` crate (0.7.0) has no limit on the size of a message: it reserves the length that a peer
//! claims, up to half the address space, before a byte of it has arrived, and it keeps any number of parts of one message.
//! [`receive`] allocates as bytes arrive and refuses a message above the caller's limit.

use std::io::{self, Read, Write};

/// Limit for commands; a peer that sends a longer one is not a ZeroMQ socket.
const COMMAND_BYTES_MAX: u64 = 64 << 10;
/// Memory for a message is allocated in steps as its bytes arrive, not by its claimed length.
const STEP_BYTES: usize = 16 << 20;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZmtpRole {
    Push,
    Pull,
}

impl ZmtpRole {
    fn name(self) -> &'static str {
        match self {
            ZmtpRole::Push => "PUSH",
            ZmtpRole::Pull => "PULL",
        }
    }
}

fn refuse<T>(why: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why.into()))
}

fn greeting() -> [u8; 64] {
    let mut bytes = [0; 64];
    // Signature, version 3.0, mechanism; the `as-server` flag stays 0.
    (bytes[0], bytes[8], bytes[9], bytes[10]) = (0xff, 1, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Exchanges greetings and verifies that the peer is the other end of `role`. The stream's own timeouts apply.
///
/// # Errors
/// If the peer is not a ZeroMQ socket, has the wrong type, or requires authentication.
pub fn handshake(stream: &mut (impl Read + Write), role: ZmtpRole) -> io::Result<()> {
    stream.write_all(&greeting())?;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs[..10])?;
    if theirs[0] != 0xff || theirs[9] & 1 == 0 {
        return refuse("the peer does not speak ZeroMQ's protocol");
    }
    stream.read_exact(&mut theirs[10..])?;
    if theirs[10] < 3 {
        return refuse(format!("the peer speaks version {} of ZeroMQ's protocol; 3 is needed (libzmq 4)", theirs[10]));
    }
    let mechanism = &theirs[12..32];
    if mechanism.strip_prefix(b"NULL").is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
        return refuse("the peer requires authentication; only ZeroMQ's mechanism NULL is supported");
    }
    let mut ready = b"\x05READY".to_vec();
    put_property(&mut ready, "Socket-Type", role.name());
    put_property(&mut ready, "Identity", "");
    write_frame(stream, COMMAND, &ready)?;
    let (flags, length) = read_head(stream)?;
    if flags & COMMAND == 0 {
        return refuse("the peer sends messages before its READY command");
    }
    let command = read_command(stream, length)?;
    let Some(properties) = command.strip_prefix(b"\x05READY") else {
        return refuse("the peer refuses the connection");
    };
    let (wanted, other) = match role {
        ZmtpRole::Push => (ZmtpRole::Pull.name(), "a PUSH"),
        ZmtpRole::Pull => (ZmtpRole::Push.name(), "a PULL"),
    };
    match property(properties, b"socket-type") {
        Some(kind) if kind == wanted.as_bytes() => Ok(()),
        _ => refuse(format!("the peer is not a {wanted} socket, which {other} socket needs")),
    }
}

fn put_property(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value.as_bytes());
}

/// The value of a property; names are compared case-insensitively.
fn property<'p>(mut properties: &'p [u8], wanted: &[u8]) -> Option<&'p [u8]> {
    loop {
        let (length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_at_checked(4)?;
        let length = u32::from_be_bytes(length.try_into().expect("4 bytes")) as usize;
        let (value, rest) = rest.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

fn read_head(stream: &mut impl Read) -> io::Result<(u8, u64)> {
    let mut flags = [0];
    stream.read_exact(&mut flags)?;
    let [flags] = flags;
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return refuse("a frame has invalid flags");
    }
    let mut length = [0; 8];
    stream.read_exact(if flags & LONG == 0 { &mut length[7..] } else { &mut length })?;
    Ok((flags, u64::from_be_bytes(length)))
}

fn read_command(stream: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    if length > COMMAND_BYTES_MAX {
        return refuse(format!("a command of {length} bytes"));
    }
    let mut command = vec![0; length as usize];
    stream.read_exact(&mut command)?;
    Ok(command)
}

fn write_frame(stream: &mut impl Write, flags: u8, body: &[u8]) -> io::Result<()> {
    let mut head = Vec::with_capacity(9);
    match u8::try_from(body.len()) {
        Ok(length) => head.extend_from_slice(&[flags, length]),
        Err(_) => {
            head.push(flags | LONG);
            head.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    stream.write_all(&head)?;
    stream.write_all(body)
}

/// Sends one message.
///
/// # Errors
/// Errors of the stream.
pub fn send(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    write_frame(stream, 0, message)
}

/// The kind of received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Message,
    /// A message of several parts, which stream2 does not use; it was skipped.
    Parts,
}

/// Receives one message into `message`, whose memory is reused. Replies to heartbeats meanwhile.
///
/// # Errors
/// Errors of the stream, or if a message has more than `bytes_max`.
pub fn receive(stream: &mut (impl Read + Write), message: &mut Vec<u8>, bytes_max: u64) -> io::Result<Received> {
    let mut in_parts = false;
    loop {
        let (flags, length) = read_head(stream)?;
        if flags & COMMAND != 0 {
            let command = read_command(stream, length)?;
            if let Some(context) = command.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
                write_frame(stream, COMMAND, &[b"\x04PONG", context].concat())?;
            }
            continue;
        }
        if length > bytes_max {
            return refuse(format!("a message has {length} bytes; at most {bytes_max} are allowed"));
        }
        if in_parts || flags & MORE != 0 {
            if io::copy(&mut Read::by_ref(stream).take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            in_parts = flags & MORE != 0;
            if in_parts {
                continue;
            }
            return Ok(Received::Parts);
        }
        let length = length as usize;
        // Existing content from an earlier message is overwritten without clearing it first.
        message.truncate(length);
        let mut at = 0;
        while at < length {
            let end = length.min(message.len().max(at + STEP_BYTES.min(length - at)));
            message.resize(end, 0);
            stream.read_exact(&mut message[at..end])?;
            at = end;
        }
        return Ok(Received::Message);
    }
}
