//! The conversation with a scripted server, and frames in both byte orders.

use crate::bytes::{ByteOrder, ByteReader, ByteWriter};
use crate::channel::{Credentials, Subscription, Update};
use crate::field::{FieldType, TypeRegistry};
use crate::message::{self, Command};
use crate::nt_ndarray::{self, PvaCodec};
use crate::search;
use crate::value::PvValue;
use std::io::{self, Read, Write};
use varve_detector_hdf5::ElementType;

/// Sends its bytes and keeps what it receives.
struct ScriptedServer<'b> {
    sends: &'b [u8],
    received: Vec<u8>,
}

impl Read for ScriptedServer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.sends.read(buffer)
    }
}

impl Write for ScriptedServer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The messages of a server, in one byte order.
struct Script {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl Script {
    fn new(order: ByteOrder) -> Script {
        let mut bytes = Vec::new();
        message::send_control(&mut bytes, order, message::SET_BYTE_ORDER, 0).expect("sent");
        Script { order, bytes }
    }

    fn message(&mut self, command: Command, write: impl Fn(&mut ByteWriter)) {
        let mut writer = ByteWriter::new(self.order);
        write(&mut writer);
        message::send(&mut self.bytes, self.order, command, &writer.bytes).expect("sent");
    }

    /// Everything up to the type of the monitor.
    fn opened(order: ByteOrder) -> Script {
        let mut script = Script::new(order);
        script.message(Command::ConnectionValidation, |writer| {
            writer.u32(0x10000);
            writer.u16(0x7fff);
            writer.u8(2);
            writer.text("anonymous");
            writer.text("ca");
        });
        script.message(Command::ConnectionValidated, |writer| writer.u8(0xff));
        script.message(Command::CreateChannel, |writer| {
            writer.u32(1);
            writer.u32(77);
            writer.u8(0xff);
        });
        script.message(Command::Monitor, |writer| {
            writer.u32(1);
            writer.u8(0x08);
            writer.u8(0xff);
            array_type(writer);
        });
        script
    }

    fn subscribe(&self) -> (Subscription, ScriptedServer<'_>) {
        let mut server = ScriptedServer { sends: &self.bytes, received: Vec::new() };
        let credentials = Credentials { user: "user".into(), host: "host".into() };
        let subscription = Subscription::open(&mut server, "PV", &credentials).expect("subscribed");
        (subscription, server)
    }
}

/// A small NTNDArray, whose dimension type is numbered.
fn array_type(writer: &mut ByteWriter) {
    let field = |writer: &mut ByteWriter, name: &str, codes: &[u8]| {
        writer.text(name);
        writer.bytes.extend(codes);
    };
    writer.u8(0x80);
    writer.text("epics:nt/NTNDArray:1.0");
    writer.u8(5);
    field(writer, "value", &[0x81, 0, 2]);
    field(writer, "ubyteValue", &[0x2c]);
    field(writer, "ushortValue", &[0x2d]);
    field(writer, "codec", &[0x80, 0, 2]);
    field(writer, "name", &[0x60]);
    field(writer, "parameters", &[0x82]);
    field(writer, "compressedSize", &[0x23]);
    field(writer, "dimension", &[0xfd]);
    writer.u16(9);
    writer.bytes.extend([0x88, 0x80, 0, 1]);
    field(writer, "size", &[0x22]);
    field(writer, "uniqueId", &[0x22]);
}

/// A first update of all fields: 2 by 3 elements of 16 bits.
fn whole(writer: &mut ByteWriter) {
    writer.u32(1);
    writer.u8(0);
    writer.bytes.extend([1, 1]);
    writer.bytes.extend([1, 6]);
    (0..6).for_each(|element| writer.u16(0x0100 + element));
    writer.bytes.extend([0, 0xff]);
    writer.u64(12);
    writer.u8(2);
    for side in [3, 2] {
        writer.u8(1);
        writer.u32(side);
    }
    writer.u32(41);
    writer.u8(0);
}

#[test]
fn updates_change_only_their_fields_in_both_byte_orders() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let mut script = Script::opened(order);
        script.message(Command::Monitor, whole);
        // The positions of `value` and `uniqueId` are 1 and 7.
        script.message(Command::Monitor, |writer| {
            writer.u32(1);
            writer.u8(0);
            writer.bytes.extend([1, 0b1000_0010]);
            writer.bytes.extend([1, 6]);
            (0..6).for_each(|element| writer.u16(element));
            writer.u32(42);
            writer.u8(0);
        });
        script.message(Command::Monitor, |writer| {
            writer.u32(1);
            writer.bytes.extend([0x10, 0xff]);
        });
        let (mut subscription, mut server) = script.subscribe();
        for (id, base) in [(41, 0x0100), (42, 0)] {
            assert_eq!(subscription.next(&mut server, 1 << 20).expect("an update"), Update::Changed);
            let structure = subscription.structure.clone();
            let frame = nt_ndarray::take(&structure, &mut subscription.value).expect("an array").expect("elements");
            let bytes: Vec<u8> = (0..6_u16).flat_map(|element| (base + element).to_le_bytes()).collect();
            assert_eq!((frame.unique_id, frame.bytes), (id, bytes));
            assert_eq!((frame.shape, frame.element, frame.codec), (vec![2, 3], ElementType::U16, PvaCodec::Plain));
        }
        assert_eq!(subscription.next(&mut server, 1 << 20).expect("an update"), Update::Ended);
    }
}

#[test]
fn compressed_array_has_the_type_that_its_codec_names() {
    let mut script = Script::opened(ByteOrder::Little);
    script.message(Command::Monitor, |writer| {
        writer.u32(1);
        writer.u8(0);
        writer.bytes.extend([1, 1]);
        // Four bytes, of which three count.
        writer.bytes.extend([0, 4, 7, 8, 9, 0]);
        writer.text("bslz4");
        // The parameters are an integer: pvUShort.
        writer.u8(0x22);
        writer.u32(6);
        writer.u64(3);
        writer.bytes.extend([1, 1]);
        writer.u32(6);
        writer.u32(1);
        writer.u8(0);
    });
    let (mut subscription, mut server) = script.subscribe();
    subscription.next(&mut server, 1 << 20).expect("an update");
    let structure = subscription.structure.clone();
    let frame = nt_ndarray::take(&structure, &mut subscription.value).expect("an array").expect("elements");
    assert_eq!((frame.codec, frame.element), (PvaCodec::BitshuffleLz4, ElementType::U16));
    assert_eq!((frame.bytes, frame.shape), (vec![7, 8, 9], vec![6]));
}

#[test]
fn segments_of_a_message_are_joined() {
    let mut script = Script::opened(ByteOrder::Little);
    let mut writer = ByteWriter::new(ByteOrder::Little);
    whole(&mut writer);
    let parts: Vec<&[u8]> = writer.bytes.chunks(9).collect();
    for (number, part) in parts.iter().enumerate() {
        let flags = match number {
            0 => 0x10,
            number if number + 1 == parts.len() => 0x20,
            _ => 0x30,
        };
        script.bytes.extend([0xca, 2, flags, Command::Monitor as u8, part.len() as u8, 0, 0, 0]);
        script.bytes.extend(*part);
        if flags != 0x20 {
            message::send_control(&mut script.bytes, ByteOrder::Little, 0, 1).expect("sent");
        }
    }
    let (mut subscription, mut server) = script.subscribe();
    assert_eq!(subscription.next(&mut server, 1 << 20).expect("an update"), Update::Changed);
}

#[test]
fn refusals_name_the_server_and_its_reason() {
    let mut script = Script::new(ByteOrder::Little);
    script.message(Command::ConnectionValidation, |writer| {
        writer.u32(0);
        writer.u16(0);
        writer.u8(0);
    });
    script.message(Command::ConnectionValidated, |writer| {
        writer.u8(2);
        writer.text("not you");
        writer.u8(0);
    });
    let mut server = ScriptedServer { sends: &script.bytes, received: Vec::new() };
    let credentials = Credentials { user: String::new(), host: String::new() };
    let refused = Subscription::open(&mut server, "PV", &credentials).expect_err("refused");
    assert_eq!(refused.to_string(), "the server refuses: not you");
    let mut silent = ScriptedServer { sends: b"HTTP/1.1 400", received: Vec::new() };
    let refused = Subscription::open(&mut silent, "PV", &credentials).expect_err("refused");
    assert_eq!(refused.to_string(), "the peer does not speak pvAccess");
}

#[test]
fn types_do_not_grow_by_references() {
    // Type 0 is a structure of an integer; each further type has 100 fields of the type before.
    let mut writer = ByteWriter::new(ByteOrder::Little);
    writer.u8(0xfd);
    writer.u16(0);
    writer.bytes.extend([0x80, 0, 1, 1, b'a', 0x22]);
    for number in 1..4_u16 {
        writer.u8(0xfd);
        writer.u16(number);
        writer.bytes.extend([0x80, 0, 100]);
        for _ in 0..100 {
            writer.text("a");
            writer.u8(0xfe);
            writer.u16(number - 1);
        }
    }
    let mut reader = ByteReader::new(&writer.bytes, ByteOrder::Little);
    let mut registry = TypeRegistry::default();
    assert!(matches!(registry.read(&mut reader), Ok(Some(FieldType::Structure(_)))));
    assert!(matches!(registry.read(&mut reader), Ok(Some(FieldType::Structure(_)))));
    let refused = registry.read(&mut reader).expect_err("too many fields");
    assert!(refused.0.contains("more than 4096 fields"), "{refused}");
}

#[test]
fn types_do_not_nest_deep_by_references() {
    // Each type is an array of structures whose only field is the type before.
    let mut writer = ByteWriter::new(ByteOrder::Little);
    writer.bytes.extend([0xfd, 1, 0, 0x80, 0, 1, 1, b'a', 0x22]);
    for _ in 0..80_000 {
        writer.bytes.extend([0xfd, 1, 0, 0x88, 0x80, 0, 1, 1, b'a', 0xfe, 1, 0]);
    }
    let mut reader = ByteReader::new(&writer.bytes, ByteOrder::Little);
    let mut registry = TypeRegistry::default();
    let refused = (0..=80_000).find_map(|_| registry.read(&mut reader).err()).expect("it nests too deep");
    assert!(refused.0.contains("nests deeper"), "{refused}");
}

#[test]
fn arrays_of_structures_count_their_fields() {
    // Sixty-four arrays of structures with 64 fields, in one description without numbers.
    let mut writer = ByteWriter::new(ByteOrder::Little);
    writer.bytes.extend([0x80, 0, 64]);
    for _ in 0..64 {
        writer.bytes.extend([1, b'a', 0x88, 0x80, 0, 64]);
        (0..64).for_each(|_| writer.bytes.extend([1, b'b', 0x22]));
    }
    let refused = TypeRegistry::default().read(&mut ByteReader::new(&writer.bytes, ByteOrder::Little));
    assert!(refused.as_ref().is_err_and(|why| why.0.contains("more than 4096 fields")), "{refused:?}");
}

#[test]
fn fields_of_one_message_and_of_numbered_types_are_limited() {
    let wide = |numbers: Option<u16>| {
        let mut writer = ByteWriter::new(ByteOrder::Little);
        if let Some(number) = numbers {
            writer.u8(0xfd);
            writer.u16(number);
        }
        writer.bytes.extend([0x80, 0, 200]);
        (0..200).for_each(|_| writer.bytes.extend([1, b'a', 0x22]));
        writer.bytes
    };
    let mut registry = TypeRegistry::default();
    let mut read = |bytes: Vec<u8>, is_next: bool| {
        if is_next {
            registry.begin_message();
        }
        registry.read(&mut ByteReader::new(&bytes, ByteOrder::Little)).map(drop)
    };
    let refused = (0..400).find_map(|_| read(wide(None), false).err()).expect("too many in a message");
    assert!(refused.0.contains("a message describes over"), "{refused}");
    // Types that are not kept, or that replace one another, take no memory.
    (0..1000).for_each(|_| read(wide(None), true).expect("the next message"));
    (0..1000).for_each(|_| read(wide(Some(1)), true).expect("replaced"));
    let refused = (0..400).find_map(|number| read(wide(Some(number)), true).err()).expect("too many are kept");
    assert!(refused.0.contains("numbers types with more than"), "{refused}");
}

#[test]
fn a_pv_that_is_no_array_is_refused() {
    let mut writer = ByteWriter::new(ByteOrder::Little);
    writer.bytes.extend([0x80, 0, 1]);
    writer.text("value");
    writer.u8(0x43);
    let mut registry = TypeRegistry::default();
    let read = registry.read(&mut ByteReader::new(&writer.bytes, ByteOrder::Little)).expect("a type");
    let Some(FieldType::Structure(structure)) = read else { panic!("{read:?}") };
    let mut value = PvValue::Structure(vec![PvValue::Float(1.0)]);
    let refused = nt_ndarray::take(&structure, &mut value).expect_err("no array");
    assert_eq!(refused.0, "`value` is not an array of numbers");
}

#[test]
fn replies_to_a_search_name_the_server() {
    let sender = std::net::Ipv4Addr::new(10, 0, 0, 5).into();
    let reply = |address: [u8; 16], found: u8, id: u32| {
        let mut script = Script { order: ByteOrder::Big, bytes: Vec::new() };
        script.message(Command::SearchReply, |writer| {
            writer.bytes.extend([9; 12]);
            writer.u32(1);
            writer.bytes.extend(address);
            writer.u16(5075);
            writer.text("tcp");
            writer.u8(found);
        });
        search::reply(&script.bytes, sender, id).expect("a reply").map(|address| address.to_string())
    };
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7];
    assert_eq!(reply([0; 16], 1, 1).as_deref(), Some("10.0.0.5:5075"));
    assert_eq!(reply(mapped, 1, 1).as_deref(), Some("10.0.0.7:5075"));
    assert_eq!(reply(mapped, 0, 1), None);
    assert_eq!(reply(mapped, 1, 2), None, "a reply to another request");
    let request = search::request("PV", 4321, 1);
    assert_eq!(request.len(), 8 + 4 + 4 + 16 + 2 + 1 + 4 + 2 + 4 + 3);
    assert_eq!(search::reply(&request, sender, 1), Ok(None));
}
