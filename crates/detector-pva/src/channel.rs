//! The conversation of one subscription: the connection is validated, a channel is created, and a monitor is started. The
//! server sends at most [`QUEUE`] updates that were not acknowledged.

use crate::bytes::{ByteOrder, ByteReader, ByteWriter};
use crate::field::{FieldType, StructureType, TypeRegistry};
use crate::message::{self, Command, Received};
use crate::value::{PvValue, ValueReader};
use crate::{BadPva, bad};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Updates that the server may send ahead. It drops frames beyond its own queue, whose length follows this one.
pub const QUEUE: u32 = 32;
/// Messages that a server may send before the one that is waited for.
const MESSAGES_MAX: usize = 1024;
/// No message before the first update needs more.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The size of the receive buffer and the number of numbered types that this client states.
const BUFFER_BYTES: u32 = 1 << 16;
const TYPES: u16 = 0x7fff;
/// Numbers that this client chose for its only channel and its only request.
const CHANNEL: u32 = 1;
const REQUEST: u32 = 1;
const PV_NAME_BYTES_MAX: usize = 253;

const INIT: u8 = 0x08;
const START: u8 = 0x44;
const PIPELINE: u8 = 0x80;
const LAST: u8 = 0x10;

/// The credentials that servers with access rules see.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub user: String,
    pub host: String,
}

/// A running subscription.
#[derive(Debug)]
pub struct Subscription {
    order: ByteOrder,
    registry: TypeRegistry,
    /// The server's number of the channel.
    channel: u32,
    pub structure: Arc<StructureType>,
    /// The state after the last update. The caller may take parts out of it.
    pub value: PvValue,
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Changed,
    /// The server has ended the subscription.
    Ended,
}

fn invalid(why: BadPva) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Subscription {
    /// Subscribes to `pv` over a new connection.
    ///
    /// # Errors
    /// If the stream fails, or the server refuses. The error says why.
    pub fn open<S: Read + Write>(stream: &mut S, pv: &str, credentials: &Credentials) -> io::Result<Subscription> {
        check_name(pv).map_err(invalid)?;
        let mut conversation = Conversation { stream, order: ByteOrder::Little, payload: Vec::new() };
        conversation.validate(credentials)?;
        let channel = conversation.create(pv)?;
        let (registry, structure) = conversation.monitor(channel)?;
        let Conversation { order, payload, .. } = conversation;
        let value = PvValue::initial(&structure);
        Ok(Subscription { order, registry, channel, structure, value, payload })
    }

    /// Waits for the next update, applies it to the value, and acknowledges it.
    ///
    /// # Errors
    /// If the stream fails, or the server sends something else.
    pub fn next<S: Read + Write>(&mut self, stream: &mut S, bytes_max: u64) -> io::Result<Update> {
        loop {
            let received = message::receive(stream, &mut self.payload, bytes_max)?;
            if received.is_control {
                reply_to_echo(stream, received)?;
                continue;
            }
            if received.command == Command::DestroyChannel as u8 {
                return Ok(Update::Ended);
            }
            if received.command != Command::Monitor as u8 {
                continue;
            }
            let payload = std::mem::take(&mut self.payload);
            let update = self.update(ByteReader::new(&payload, received.order)).map_err(invalid)?;
            self.payload = payload;
            if update == Update::Changed {
                self.request(stream, PIPELINE, |writer| writer.u32(1))?;
            }
            return Ok(update);
        }
    }

    fn update(&mut self, mut reader: ByteReader<'_>) -> Result<Update, BadPva> {
        if reader.u32()? != REQUEST {
            return bad("an update belongs to another request");
        }
        let last = reader.u8()? & LAST != 0;
        if last {
            let status = status(&mut reader)?;
            if status.is_err() || reader.left() == 0 {
                return status.map(|()| Update::Ended);
            }
        }
        ValueReader::new(&mut self.registry, reader).update(&self.structure, &mut self.value)?;
        Ok(if last { Update::Ended } else { Update::Changed })
    }

    fn request(&self, stream: &mut impl Write, command: u8, rest: impl Fn(&mut ByteWriter)) -> io::Result<()> {
        send_request(stream, self.order, self.channel, command, rest)
    }
}

/// # Errors
/// If no PV can have this name.
pub fn check_name(pv: &str) -> Result<(), BadPva> {
    match pv.len() {
        1..=PV_NAME_BYTES_MAX => Ok(()),
        length => bad(format!("the PV's name has {length} bytes; give 1 to {PV_NAME_BYTES_MAX}")),
    }
}

fn reply_to_echo(stream: &mut impl Write, received: Received) -> io::Result<()> {
    match received.command {
        message::ECHO_REQUEST => message::send_control(stream, received.order, message::ECHO_REPLY, received.data),
        _ => Ok(()),
    }
}

fn send_request(
    stream: &mut impl Write,
    order: ByteOrder,
    channel: u32,
    command: u8,
    rest: impl Fn(&mut ByteWriter),
) -> io::Result<()> {
    let mut writer = ByteWriter::new(order);
    writer.u32(channel);
    writer.u32(REQUEST);
    writer.u8(command);
    rest(&mut writer);
    message::send(stream, order, Command::Monitor, &writer.bytes)
}

/// Reads a status; the inner error is the server's refusal.
fn read_status(reader: &mut ByteReader<'_>) -> Result<Result<(), String>, BadPva> {
    const OK_WITHOUT_TEXT: u8 = 0xff;
    const WARNING: u8 = 1;
    let kind = reader.u8()?;
    if kind == OK_WITHOUT_TEXT {
        return Ok(Ok(()));
    }
    let (text, _stack) = (reader.text()?, reader.text()?);
    Ok(if kind <= WARNING { Ok(()) } else { Err(text) })
}

fn status(reader: &mut ByteReader<'_>) -> Result<Result<(), BadPva>, BadPva> {
    Ok(read_status(reader)?.map_err(|text| BadPva(format!("the server refuses: {text}"))))
}

struct Conversation<'s, S> {
    stream: &'s mut S,
    order: ByteOrder,
    payload: Vec<u8>,
}

impl<S: Read + Write> Conversation<'_, S> {
    /// Waits for a message with this command and reads it.
    fn await_message<T>(
        &mut self,
        command: Command,
        mut read: impl FnMut(&mut ByteReader<'_>) -> Result<T, BadPva>,
    ) -> io::Result<T> {
        for _ in 0..MESSAGES_MAX {
            let received = message::receive(self.stream, &mut self.payload, ANSWER_BYTES_MAX)?;
            match received {
                Received { is_control: true, command: message::SET_BYTE_ORDER, order, .. } => self.order = order,
                Received { is_control: true, .. } => reply_to_echo(self.stream, received)?,
                Received { command: own, order, .. } if own == command as u8 => {
                    return read(&mut ByteReader::new(&self.payload, order)).map_err(invalid);
                }
                _ => {}
            }
        }
        Err(invalid(BadPva(format!("the server sends {MESSAGES_MAX} messages and none of them is {command:?}"))))
    }

    fn validate(&mut self, credentials: &Credentials) -> io::Result<()> {
        let methods = self.await_message(Command::ConnectionValidation, |reader| {
            reader.u32()?;
            reader.u16()?;
            let count = reader.count()?;
            (0..count).map(|_| reader.text()).collect::<Result<Vec<_>, _>>()
        })?;
        let mut writer = ByteWriter::new(self.order);
        writer.u32(BUFFER_BYTES);
        writer.u16(TYPES);
        writer.u16(0);
        // A name and a host without proof, as all clients of EPICS send them; servers' access rules go by them.
        if methods.iter().any(|method| method == "ca") {
            writer.text("ca");
            writer.bytes.extend([0x80, 0, 2]);
            for name in ["user", "host"] {
                writer.text(name);
                writer.u8(0x60);
            }
            writer.text(short(&credentials.user));
            writer.text(short(&credentials.host));
        } else {
            writer.text("anonymous");
            writer.u8(0xff);
        }
        message::send(self.stream, self.order, Command::ConnectionValidation, &writer.bytes)?;
        self.await_message(Command::ConnectionValidated, status)?.map_err(invalid)
    }

    fn create(&mut self, pv: &str) -> io::Result<u32> {
        let mut writer = ByteWriter::new(self.order);
        writer.u16(1);
        writer.u32(CHANNEL);
        writer.text(pv);
        message::send(self.stream, self.order, Command::CreateChannel, &writer.bytes)?;
        self.await_message(Command::CreateChannel, |reader| {
            reader.u32()?;
            let channel = reader.u32()?;
            Ok(status(reader)?.map(|()| channel))
        })?
        .map_err(invalid)
    }

    fn monitor(&mut self, channel: u32) -> io::Result<(TypeRegistry, Arc<StructureType>)> {
        let request = |writer: &mut ByteWriter| {
            // structure { structure record { structure _options { string pipeline, queueSize } }, structure field {} }
            writer.bytes.extend([0x80, 0, 2]);
            writer.text("record");
            writer.bytes.extend([0x80, 0, 1]);
            writer.text("_options");
            writer.bytes.extend([0x80, 0, 2]);
            for name in ["pipeline", "queueSize"] {
                writer.text(name);
                writer.u8(0x60);
            }
            writer.text("field");
            writer.bytes.extend([0x80, 0, 0]);
            writer.text("true");
            writer.text(&QUEUE.to_string());
            writer.u32(QUEUE);
        };
        send_request(self.stream, self.order, channel, INIT | PIPELINE, request)?;
        let mut registry = TypeRegistry::default();
        let structure = self
            .await_message(Command::Monitor, |reader| {
                reader.u32()?;
                reader.u8()?;
                match status(reader)? {
                    Err(refused) => Ok(Err(refused)),
                    Ok(()) => Ok(Ok(registry.read(reader)?)),
                }
            })?
            .map_err(invalid)?;
        let Some(FieldType::Structure(structure)) = structure else {
            return Err(invalid(BadPva("the PV is not a structure".into())));
        };
        send_request(self.stream, self.order, channel, START, |_| ())?;
        Ok((registry, structure))
    }
}

/// A user's or host's name as far as one length byte allows.
fn short(text: &str) -> &str {
    let ends = (0..=text.len().min(PV_NAME_BYTES_MAX)).rev();
    &text[..ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0)]
}
