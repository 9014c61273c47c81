//! Messages: a header of eight bytes, then the payload, which may come in several segments.

use crate::BadPva;
use crate::bytes::{ByteOrder, ByteWriter};
use std::io::{self, Read, Write};

const MAGIC: u8 = 0xca;
/// The version of the protocol that is sent. Differences between versions do not concern a subscription.
const VERSION: u8 = 2;
const CONTROL: u8 = 0x01;
const SEGMENT: u8 = 0x30;
const FIRST_SEGMENT: u8 = 0x10;
const LAST_SEGMENT: u8 = 0x20;
const BIG_ENDIAN: u8 = 0x80;
/// A payload is read in pieces of this size, so that a peer's claim alone takes no memory.
const PIECE_BYTES: usize = 16 << 20;

pub const SET_BYTE_ORDER: u8 = 2;
pub const ECHO_REQUEST: u8 = 3;
pub const ECHO_REPLY: u8 = 4;

/// An echo request in little-endian order. Servers disconnect clients that have been silent for 40 s.
pub const ECHO: [u8; 8] = [MAGIC, VERSION, 0, Command::Echo as u8, 0, 0, 0, 0];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    ConnectionValidation = 0x01,
    Echo = 0x02,
    Search = 0x03,
    SearchReply = 0x04,
    CreateChannel = 0x07,
    DestroyChannel = 0x08,
    ConnectionValidated = 0x09,
    Monitor = 0x0d,
    Message = 0x12,
}

/// A received message; its payload is in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub is_control: bool,
    pub command: u8,
    pub order: ByteOrder,
    /// The second half of a control message's header.
    pub data: u32,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, BadPva(why.into()))
}

/// Receives one message of at most `bytes_max` bytes into `payload`.
///
/// # Errors
/// If the stream fails or ends, or the peer does not speak pvAccess.
pub fn receive(stream: &mut impl Read, payload: &mut Vec<u8>, bytes_max: u64) -> io::Result<Received> {
    payload.clear();
    let mut first: Option<Received> = None;
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        let [magic, _version, flags, command, length @ ..] = header;
        if magic != MAGIC {
            return Err(invalid("the peer does not speak pvAccess"));
        }
        let order = if flags & BIG_ENDIAN == 0 { ByteOrder::Little } else { ByteOrder::Big };
        let data = match order {
            ByteOrder::Little => u32::from_le_bytes(length),
            ByteOrder::Big => u32::from_be_bytes(length),
        };
        let received = Received { is_control: flags & CONTROL != 0, command, order, data };
        if received.is_control {
            // Between segments only markers come, which need no reply.
            match first {
                Some(_) => continue,
                None => return Ok(received),
            }
        }
        if payload.len() as u64 + u64::from(data) > bytes_max {
            return Err(invalid(format!("a message has more than {bytes_max} bytes")));
        }
        read_into(stream, payload, data as usize)?;
        let segment = flags & SEGMENT;
        match &first {
            None if matches!(segment, 0) => return Ok(received),
            None if segment == FIRST_SEGMENT => first = Some(received),
            Some(begun) if segment != 0 && segment != FIRST_SEGMENT && begun.command == command => {
                if segment == LAST_SEGMENT {
                    return Ok(*begun);
                }
            }
            _ => return Err(invalid("a segment of a message is missing")),
        }
    }
}

fn read_into(stream: &mut impl Read, payload: &mut Vec<u8>, bytes: usize) -> io::Result<()> {
    let end = payload.len() + bytes;
    while payload.len() < end {
        let start = payload.len();
        payload.resize(end.min(start + PIECE_BYTES), 0);
        stream.read_exact(&mut payload[start..])?;
    }
    Ok(())
}

/// Sends one message.
///
/// # Errors
/// If the stream fails.
pub fn send(stream: &mut impl Write, order: ByteOrder, command: Command, payload: &[u8]) -> io::Result<()> {
    stream.write_all(&framed(order, 0, command as u8, payload.len() as u32, payload))
}

/// Sends a message that consists of its header.
///
/// # Errors
/// If the stream fails.
pub fn send_control(stream: &mut impl Write, order: ByteOrder, command: u8, data: u32) -> io::Result<()> {
    stream.write_all(&framed(order, CONTROL, command, data, &[]))
}

fn framed(order: ByteOrder, flags: u8, command: u8, data: u32, payload: &[u8]) -> Vec<u8> {
    let mut writer = ByteWriter::new(order);
    writer.u8(MAGIC);
    writer.u8(VERSION);
    writer.u8(if order == ByteOrder::Big { flags | BIG_ENDIAN } else { flags });
    writer.u8(command);
    writer.u32(data);
    writer.bytes.extend(payload);
    writer.bytes
}
