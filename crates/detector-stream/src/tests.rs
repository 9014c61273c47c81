use super::scalars::{ScalarRow, ValueKind};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::Scalar;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::ranges::Ranges;
use varve_detector_hdf5::ElementType;

fn hello() -> StreamHello {
    StreamHello {
        version: VERSION,
        newest: 0,
        role: StreamRole::Frames,
        checksum: BodyChecksum::Crc32,
        levels: 4,
        source: 0,
        connection: 0,
        connections: 1,
        patience: None,
        client: std::array::from_fn(|i| i as u8 + 1),
        run: "r1".into(),
        token: String::new(),
        start: String::new(),
    }
}

fn frame() -> FrameHead {
    FrameHead {
        number: 258,
        taken: 3,
        element: ElementType::U16,
        frames: 1,
        sides: vec![2, 4],
        filter: "lz4".into(),
        chunks: vec![3, 2],
    }
}

fn sent(message: (u8, u8, Vec<u8>), body: &[&[u8]], checksum: BodyChecksum) -> Vec<u8> {
    let mut bytes = Vec::new();
    message::send(&mut bytes, message, body, checksum.of(&body.concat())).expect("memory takes it");
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Splits a message into header, head and body as a receiver does.
fn received(bytes: &[u8]) -> (Header, &[u8], &[u8]) {
    let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap()).expect("a header");
    let (head, body) = bytes[HEADER_BYTES..].split_at(header.head_bytes as usize);
    header.check_head(head).expect("a head");
    (header, head, body)
}

/// The example of `formats/detector-stream.md`, and a frame.
#[test]
fn messages_have_their_golden_bytes() {
    let example = include_str!("../../../formats/detector-stream.md");
    let example = example.split("## Example").nth(1).expect("there is one");
    let example: String =
        example.split("```").nth(1).expect("bytes").lines().filter_map(|line| line.get(..54)).collect();
    assert_eq!(sent(ToService::Hello(hello()).encode(), &[], BodyChecksum::Crc32), hex(&example));
    let message = ToService::Frame { head: frame(), again: true };
    let golden = "02 01 00 00 33 00 00 00 05 00 00 00 00 00 00 00 65 d8 87 85 00 00 00 00 78 7e 8c bd 23 fe ca e0
        02 01 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02 02 03 00 01 00 00 00 02 00 00 00 00 00 00 00
        02 00 00 00 04 00 00 00 6c 7a 34 03 00 00 00 02 00 00 00 61 62 63 64 65";
    assert_eq!(sent(message.encode(), &[b"abc", b"de"], BodyChecksum::Crc32), hex(golden));
}

#[test]
fn client_messages_round_trip() {
    let messages = [
        ToService::Hello(StreamHello { patience: Some(Duration::from_millis(7)), start: "{}".into(), ..hello() }),
        ToService::Frame { head: frame(), again: false },
        ToService::Scalars(ScalarsHead {
            rows: 2,
            names: vec!["energy".into(), "x".into()],
            kinds: vec![ValueKind::Float, ValueKind::Float],
        }),
        ToService::Scalars(ScalarsHead {
            rows: 2,
            names: vec!["energy".into(), "x".into()],
            kinds: vec![ValueKind::Text, ValueKind::Unsigned],
        }),
        ToService::End { complete: true, lost: 3 },
        ToService::Ping { flush: false },
        ToService::Ping { flush: true },
        ToService::Extent { bytes: 9 },
        ToService::Report { sequence: 4, again: true },
    ];
    for message in messages {
        let bytes = sent(message.encode(), &[], BodyChecksum::None);
        let (header, head, _) = received(&bytes);
        assert_eq!(ToService::decode(&header, head), Ok(message));
    }
}

#[test]
fn service_messages_round_trip() {
    let welcome = StreamWelcome { version: 1, idle: Duration::from_secs(30), body_bytes_max: 5, frames: 6 };
    let messages = [
        FromService::Welcome(welcome),
        FromService::Ack(Ack { level: AckLevel::Written, frames: vec![0..4, 7..9] }),
        FromService::Notice(Notice { code: NoticeCode::Refused, frame: 4, text: "ä".into() }),
        FromService::Error(StreamRefusal::new(ErrorCode::Stopping, "later")),
        FromService::Finished(FinishedHead { frames: 1, received: 1, file_bytes: 9, ..FinishedHead::default() }),
        FromService::Pong,
        FromService::Share(ShareHead { epoch: 1, file: "a.h5".into(), description: "{}".into() }),
        FromService::Extent(4096..8192),
        FromService::Reported(4),
        FromService::Leave,
    ];
    for message in messages {
        let bytes = sent(message.encode(), &[], BodyChecksum::None);
        let (header, head, _) = received(&bytes);
        assert_eq!(FromService::decode(&header, head), Ok(message));
    }
}

#[test]
fn changed_bytes_are_detected() {
    let bytes = sent(ToService::Frame { head: frame(), again: false }.encode(), &[b"abcde"], BodyChecksum::Xxh3);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let header = Header::decode(changed[..HEADER_BYTES].try_into().unwrap());
        let head_end = bytes.len() - 5;
        let noticed = header.is_err()
            || header.as_ref().unwrap().check_head(&changed[HEADER_BYTES..head_end]).is_err()
            || header.as_ref().unwrap().checksum != BodyChecksum::Xxh3.of(&changed[head_end..]);
        assert!(noticed, "byte {at}");
    }
}

#[test]
fn run_names_cannot_escape_the_directory() {
    for name in ["", ".hidden", "a/b", "..", "ü", &"n".repeat(65)] {
        assert!(hello::check_run_name(name).is_err(), "{name}");
    }
    hello::check_run_name("2026-11_scan.7").expect("a name");
}

fn row(number: u64, values: &[Option<Scalar>]) -> ScalarRow {
    (number, values.to_vec())
}

#[test]
fn scalars_of_all_kinds_match_golden_bytes() {
    let names = ["f", "i", "u", "t"].map(str::to_owned);
    let rows = [
        row(7, &[Some(1.5.into()), Some((-2_i64).into()), Some(u64::from(u32::MAX).into()), Some("ä".into())]),
        row(8, &[None, None, None, None]),
        row(9, &[None, None, None, Some("".into())]),
    ];
    let head = ScalarsHead::of(&names, &rows).expect("of one kind each");
    let body = head.body(&rows);
    let golden = "07 00 00 00 00 00 00 00  00 00 00 00 00 00 f8 3f  fe ff ff ff ff ff ff ff  ff ff ff ff 00 00 00 00
        02 00 c3 a4
        08 00 00 00 00 00 00 00  00 00 00 00 00 00 f8 7f  00 00 00 00 00 00 00 80  ff ff ff ff ff ff ff ff  ff ff
        09 00 00 00 00 00 00 00  00 00 00 00 00 00 f8 7f  00 00 00 00 00 00 00 80  ff ff ff ff ff ff ff ff  00 00";
    assert_eq!(body, hex(golden));
    let bytes = sent(ToService::Scalars(head.clone()).encode(), &[&body], BodyChecksum::Xxh3);
    assert_eq!(bytes[..2], [3, 1], "flag 1: kinds follow the names");
    assert_eq!(received(&bytes).1, hex("03 00 00 00  04 00  01 66 01 69 01 75 01 74  00 01 02 03"));
    head.check(&body).expect("its body");
    assert_eq!(head.rows(&body).collect::<Vec<_>>(), rows);
    for end in 0..body.len() {
        assert!(head.check(&body[..end]).is_err(), "{end} bytes");
    }
    assert!(head.check(&[&body[..], &[0]].concat()).is_err(), "a byte more");
    let mut changed = body.clone();
    changed[34] = 0xff;
    assert!(head.check(&changed).is_err(), "no UTF-8");
}

/// The bytes that a client of version 1 sends.
#[test]
fn float_scalars_match_version_1() {
    let names = ["x".to_owned()];
    let rows = [row(3, &[Some(2.0.into())]), row(4, &[None])];
    let head = ScalarsHead::of(&names, &rows).expect("floats");
    assert!(head.is_plain());
    let bytes = sent(ToService::Scalars(head.clone()).encode(), &[&head.body(&rows)], BodyChecksum::Crc32);
    let (header, read, body) = received(&bytes);
    assert_eq!((header.flags, read), (0, &hex("02 00 00 00 01 00 01 78")[..]));
    let golden = "03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 40 04 00 00 00 00 00 00 00 00 00 00 00 00 00 f8 7f";
    assert_eq!(body, hex(golden));
    for rows in [
        vec![row(1, &[Some(1.0.into())]), row(2, &[Some(1_i64.into())])],
        vec![row(1, &[Some(1.0.into()), None])],
        vec![row(1, &[Some("x".repeat(65_535).into())])],
    ] {
        assert!(ScalarsHead::of(&names, &rows).is_err(), "{rows:?}");
    }
}

/// Old clients leave a byte of HELLO 0; the newest version that both sides support is used.
#[test]
fn newest_common_version_is_chosen() {
    for (version, newest, agreed) in [(1, 0, 1), (1, 1, 1), (1, 2, 2), (1, 9, 2), (2, 0, 2)] {
        let bytes =
            sent(ToService::Hello(StreamHello { version, newest, ..hello() }).encode(), &[], BodyChecksum::None);
        let (header, head, _) = received(&bytes);
        let Ok(ToService::Hello(hello)) = ToService::decode(&header, head) else { panic!("{version} {newest}") };
        assert_eq!(hello.agreed(), agreed, "{version} {newest}");
    }
    let bytes = sent(ToService::Hello(StreamHello { version: 3, ..hello() }).encode(), &[], BodyChecksum::None);
    let (header, head, _) = received(&bytes);
    let refused = ToService::decode(&header, head).expect_err("too new").to_string();
    assert!(refused.contains("speaks version 3"), "{refused}");
}

proptest! {
    #[test]
    fn any_header_is_decoded_or_refused(kind in 0_u8..140, flags: u8, head in prop::collection::vec(any::<u8>(), 0..200)) {
        let header = Header { kind, flags, head_bytes: head.len() as u32, body_bytes: 0, checksum: 0, head_crc: 0 };
        let _ = ToService::decode(&header, &head);
        let _ = FromService::decode(&header, &head);
    }

    #[test]
    fn ranges_are_a_set(steps in prop::collection::vec((0_u64..40, 1_u64..6, any::<bool>()), 0..40)) {
        let mut ranges = Ranges::default();
        let mut set = BTreeSet::new();
        for (start, length, add) in steps {
            if add {
                ranges.add(start..start + length);
                set.extend(start..start + length);
            } else {
                ranges.remove(start);
                set.remove(&start);
            }
            prop_assert_eq!(ranges.iter().flatten().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            prop_assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.end < b.start));
            prop_assert_eq!(ranges.len(), set.len() as u64);
            prop_assert_eq!(ranges.end(), set.last().map_or(0, |last| last + 1));
        }
    }
}
