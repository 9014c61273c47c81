//! Search for the server of a PV: one datagram asks, and the server that has it replies with its TCP address.

use crate::bytes::{ByteOrder, ByteReader, ByteWriter};
use crate::message::{self, Command};
use crate::{BadPva, bad};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The port on which servers listen for searches.
pub const PORT: u16 = 5076;
/// A reply to one search has less than 100 bytes.
pub const DATAGRAM_BYTES_MAX: usize = 1500;

/// The datagram that asks for `pv`. Replies go to the sender's address, at `port`, and repeat the number `id`.
pub fn request(pv: &str, port: u16, id: u32) -> Vec<u8> {
    const UNICAST: u8 = 0x80;
    let mut writer = ByteWriter::new(ByteOrder::Little);
    writer.u32(id);
    writer.u8(UNICAST);
    // Reserved bytes, then no address.
    writer.bytes.extend([0; 3 + 16]);
    writer.u16(port);
    writer.u8(1);
    writer.text("tcp");
    writer.u16(1);
    writer.u32(id);
    writer.text(pv);
    let mut datagram = Vec::new();
    message::send(&mut datagram, ByteOrder::Little, Command::Search, &writer.bytes).expect("a vector takes all bytes");
    datagram
}

/// The server's address from its reply to the request `id`, which came from `sender`; `None` if the datagram is another
/// message, or the server does not have the PV.
///
/// # Errors
/// If the datagram is damaged.
pub fn reply(mut datagram: &[u8], sender: IpAddr, id: u32) -> Result<Option<SocketAddr>, BadPva> {
    let mut payload = Vec::new();
    let received = message::receive(&mut datagram, &mut payload, DATAGRAM_BYTES_MAX as u64)
        .map_err(|error| BadPva(error.to_string()))?;
    if received.is_control || received.command != Command::SearchReply as u8 {
        return Ok(None);
    }
    let mut reader = ByteReader::new(&payload, received.order);
    let _guid = reader.take(12)?;
    // A host that does not see the request cannot answer it.
    if reader.u32()? != id {
        return Ok(None);
    }
    let address: [u8; 16] = reader.take(16)?.try_into().expect("it has this length");
    let port = reader.u16()?;
    let protocol = reader.text()?;
    let found = reader.u8()? != 0;
    if !found {
        return Ok(None);
    }
    if protocol != "tcp" {
        return bad(format!("the server speaks `{protocol}`, this client TCP without TLS"));
    }
    let address = Ipv6Addr::from(address).to_canonical();
    let address = if address.is_unspecified() { sender } else { address };
    Ok(Some(SocketAddr::new(address, port)))
}
