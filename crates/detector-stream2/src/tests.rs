use super::message::{Channel, StartArray, Stream2Compression};
use super::zmtp::{Received, ZmtpRole, handshake, receive, send};
use super::*;
use proptest::prelude::*;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use varve_detector_dataset::dataset_spec::{DatasetSpec, RunValue, Structure};
use varve_detector_dataset::frame::Payload;
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::ElementType;

fn start(channels: &[&str]) -> SeriesStart {
    SeriesStart {
        series: 7,
        unique: "01H".into(),
        images: 3,
        height: 6,
        width: 8,
        channels: channels.iter().map(|name| (*name).to_owned()).collect(),
        frame_time: Some(0.04),
        sensor_material: Some("Si".into()),
        saturation_value: Some(65000),
        ..SeriesStart::default()
    }
}

fn pixels(seed: u8) -> Vec<u8> {
    (0..96).map(|at: u8| if at.is_multiple_of(2) { at.wrapping_mul(seed) % 5 } else { 0 }).collect()
}

fn channel<'m>(name: &'m str, compression: Stream2Compression, bytes: &'m [u8]) -> Channel<'m> {
    Channel { name, height: 6, width: 8, element: ElementType::U16, big_endian: false, compression, bytes }
}

fn shuffled(plain: &[u8]) -> Vec<u8> {
    let mut blob = Vec::new();
    Encoder::new(Filter::BSLZ4, 2).unwrap().encode(plain, &mut blob).unwrap();
    blob
}

/// Promise: the record of a series keeps it unchanged for the next service, whatever its numbers are.
#[test]
fn series_start_survives_service_restart() {
    let mut start = start(&["threshold_1", "threshold_2", "threshold_3"]);
    let energy = |channel: usize, energy| (start.channels[channel].clone(), energy);
    start.threshold_energy = vec![energy(0, f64::NAN), energy(1, 6e3), energy(2, f64::INFINITY)];
    start.frame_time = Some(f64::NAN);
    let Ok(Stream2Message::Start(decoded)) = Stream2Message::decode(&start.encode()) else { panic!("no start") };
    let kept = serde_json::to_vec(&decoded).unwrap();
    let read: SeriesStart = serde_json::from_slice(&kept).unwrap();
    assert_eq!(read.threshold_energy, [("threshold_2".to_owned(), 6e3)]);
    assert_eq!(read.frame_time, None);
}

/// Masks and flatfields that do not fit are left out; the series keeps its images and the other arrays.
#[test]
fn arrays_that_do_not_fit_do_not_refuse_the_series() {
    let array = |name: &str, shape: &[u64], element: ElementType| {
        let bytes = vec![0; shape.iter().product::<u64>() as usize * element.size()];
        let compression = Stream2Compression::None;
        StartArray { name: name.into(), shape: shape.to_vec(), element, big_endian: false, compression, bytes }
    };
    let arrays = vec![
        array("threshold_1/pixel_mask", &[8, 6], ElementType::U32),
        array("threshold_1/flatfield", &[6, 8], ElementType::F32),
        array("other/flatfield", &[6, 8], ElementType::F32),
        array("x-/pixel_mask", &[6, 8], ElementType::U32),
        array("empty", &[0], ElementType::F32),
    ];
    let start = SeriesStart { arrays, ..start(&["threshold_1"]) };
    let bytes = shuffled(&pixels(1));
    let channels = vec![channel("threshold_1", Stream2Compression::BitshuffleLz4, &bytes)];
    let image = Stream2Image { series: 7, unique: "01H", channels, ..Stream2Image::default() };
    let series = Stream2Series::begin(start, &image, Filter::BSLZ4).unwrap();
    let mut base = DatasetSpec::new(ElementType::U8, vec![1]);
    base.structure = Structure::Nexus;
    let described = series.describe(base);
    described.check().unwrap();
    let paths: Vec<&str> = described.arrays.iter().map(|array| array.path.as_str()).collect();
    assert!(paths.contains(&"flatfield") && !paths.contains(&"pixel_mask"), "{paths:?}");
}

/// A peer that repeats keys, or invents them, takes no more memory than one that does not.
#[test]
fn repeated_and_unknown_keys_are_limited() {
    let mut bytes = b"\xbf\x64type\x65start\x69series_id\x18\x2a\x6cimage_size_x\x08\x6cimage_size_y\x06".to_vec();
    bytes.extend(b"\x70number_of_images\x03\x68channels\x81\x61t");
    for number in 0..500 {
        // A mask of one row of one element, and an unknown field whose value cannot be read.
        bytes.extend(b"\x6apixel_mask\xa1\x61t\xd8\x28\x82\x82\x01\x01\xd8\x40\x41\x07");
        bytes.extend(format!("\x63{number:03}").bytes());
        bytes.push(0x01);
        bytes.extend(b"\x6aframe_time\x61x");
    }
    bytes.push(0xff);
    let Ok(Stream2Message::Start(start)) = Stream2Message::decode(&bytes) else {
        panic!("{:?}", Stream2Message::decode(&bytes))
    };
    assert_eq!((start.arrays.len(), start.unknown.len(), start.passed_over.len()), (1, 64, 64));
}

/// Promise: a series with far more announced images than an index that is written as a whole should have is unbounded.
#[test]
fn overlong_series_is_unlimited() {
    let describe = |images: u64| {
        let start = SeriesStart { images, ..start(&["threshold_1"]) };
        let bytes = shuffled(&pixels(1));
        let channels = vec![channel("threshold_1", Stream2Compression::BitshuffleLz4, &bytes)];
        let image = Stream2Image {
            series: 7,
            unique: "01H",
            number: 0,
            began: None,
            start: None,
            channels,
            ..Stream2Image::default()
        };
        let series = Stream2Series::begin(start, &image, Filter::BSLZ4).unwrap();
        series.describe(DatasetSpec::new(ElementType::U8, vec![1])).scan
    };
    assert_eq!(describe(1000), [Some(1000)]);
    assert_eq!([describe(10_000_000), describe(2_000_000_000), describe(0)], [[None], [None], [None]]);
}

#[test]
fn messages_round_trip() {
    let start = start(&["threshold_1", "threshold_2"]);
    assert_eq!(Stream2Message::decode(&start.encode()), Ok(Stream2Message::Start(Box::new(start.clone()))));
    assert_eq!(Stream2Message::decode(&start.encode_end()), Ok(Stream2Message::End { series: 7, unknown: Vec::new() }));
    let plain = pixels(3);
    for compression in [Stream2Compression::None, Stream2Compression::Lz4, Stream2Compression::BitshuffleLz4] {
        let channels = vec![channel("threshold_1", compression, &plain), channel("threshold_2", compression, &[1])];
        let image = Stream2Image {
            series: 7,
            unique: "01H",
            number: 2,
            began: Some(1_661_425_924_333_000_000),
            start: Some(80_000_000),
            channels,
            ..Stream2Image::default()
        };
        assert_eq!(Stream2Message::decode(&image.encode()), Ok(Stream2Message::Image(image)));
    }
}

/// A message as other libraries encode it: maps of indefinite length, a tagged text for the time, null.
#[test]
fn other_encoders_are_read() {
    let mut bytes = b"\xbf\x64type\x65start\x69series_id\x18\x2a".to_vec();
    bytes.extend(b"\x68arm_date\xc0\x642022\x6cimage_size_x\x19\x04\x06\x6cimage_size_y\x19\x02\x02");
    bytes.extend(b"\x70number_of_images\x1a\x00\x01\x00\x00\x68channels\x81\x6bthreshold_1");
    bytes.extend(b"\x6aframe_time\xf9\x3c\x00\x6acount_time\xf6\x69user_data\x9f\x01\x82\xf4\xf5\xff\xff");
    let Ok(Stream2Message::Start(start)) = Stream2Message::decode(&bytes) else {
        panic!("{:?}", Stream2Message::decode(&bytes))
    };
    assert_eq!((start.series, start.images, start.width, start.height), (42, 65536, 1030, 514));
    assert_eq!((start.frame_time, start.count_time), (Some(1.0), None));
    let data = RunValue::Text("[1,[false,true]]".into());
    assert_eq!((start.arm_date.as_deref(), &start.others[..]), (Some("2022"), &[("user_data".to_owned(), data)][..]));
}

/// Big-endian elements arrive as little-endian ones, and unknown fields by their names.
#[test]
fn big_endian_images_are_swapped() {
    let swapped: Vec<u8> = pixels(3).chunks(2).flat_map(|element| [element[1], element[0]]).collect();
    for (compression, bytes) in
        [(Stream2Compression::None, swapped.clone()), (Stream2Compression::BitshuffleLz4, shuffled(&swapped))]
    {
        let channels = vec![Channel { big_endian: true, ..channel("threshold_1", compression, &bytes) }];
        let image = Stream2Image { series: 7, unique: "01H", channels, ..Stream2Image::default() };
        let series = Stream2Series::begin(start(&["threshold_1"]), &image, Filter::BSLZ4).unwrap();
        let Payload::Plain(plain) = series.payload(&image).unwrap() else { panic!("filtered") };
        assert_eq!(plain, pixels(3));
    }
    let mut message = b"\xa5\x64type\x65image\x69series_id\x07\x68image_id\x01\x64data\xa1\x61t".to_vec();
    // Tag 65: big-endian, 16 bits.
    message.extend(b"\xd8\x28\x82\x82\x01\x02\xd8\x41\x44\x01\x02\x03\x04\x64mode\xa1\x61a\xf5");
    let Stream2Message::Image(image) = Stream2Message::decode(&message).unwrap() else { panic!("no image") };
    assert!(image.channels[0].big_endian && image.channels[0].element == ElementType::U16);
    assert_eq!((&image.unknown[..], &image.others[..]), (&["mode"][..], &[("mode", r#"{"a":true}"#.into())][..]));
}

#[test]
fn thresholds_become_a_dimension_with_unchanged_blobs() {
    let (first, second) = (shuffled(&pixels(3)), shuffled(&pixels(7)));
    // The data are in another order than the channels of the start message.
    let channels = vec![
        channel("threshold_2", Stream2Compression::BitshuffleLz4, &second),
        channel("threshold_1", Stream2Compression::BitshuffleLz4, &first),
    ];
    let image = Stream2Image {
        series: 7,
        unique: "01H",
        number: 0,
        began: None,
        start: None,
        channels,
        ..Stream2Image::default()
    };
    let series = Stream2Series::begin(start(&["threshold_1", "threshold_2"]), &image, Filter::RAW).unwrap();
    let description = series.describe(DatasetSpec::new(ElementType::U8, vec![1]));
    assert_eq!((description.frame.as_slice(), description.chunk()), (&[2, 6, 8][..], vec![1, 6, 8]));
    assert_eq!((description.element, description.filter), (ElementType::U16, Filter::BSLZ4));
    assert_eq!(description.scan, [Some(3)]);
    description.check().unwrap();
    let Payload::Filtered(blobs) = series.payload(&image).unwrap() else { panic!("plain") };
    assert!(blobs.iter().map(|blob| &blob.bytes[..]).eq([&first[..], &second[..]]));
}

#[test]
fn an_image_compressed_otherwise_than_the_run_is_decompressed() {
    let plain = pixels(3);
    let blob = shuffled(&plain);
    let one = |compression, bytes| Stream2Image {
        unique: "01H",
        series: 7,
        number: 0,
        began: None,
        start: None,
        channels: vec![channel("threshold_1", compression, bytes)],
        ..Stream2Image::default()
    };
    let first = one(Stream2Compression::None, &plain);
    let series = Stream2Series::begin(start(&["threshold_1"]), &first, Filter::RAW).unwrap();
    for image in [first, one(Stream2Compression::BitshuffleLz4, &blob)] {
        let Payload::Plain(got) = series.payload(&image).unwrap() else { panic!("filtered") };
        assert_eq!(got, plain);
    }
}

#[test]
fn images_that_do_not_fit_are_refused_with_the_reason() {
    let blob = shuffled(&pixels(3));
    let sound = channel("threshold_1", Stream2Compression::BitshuffleLz4, &blob);
    let image = |channels| Stream2Image {
        series: 7,
        unique: "01H",
        number: 4,
        began: None,
        start: None,
        channels,
        ..Stream2Image::default()
    };
    let series = Stream2Series::begin(start(&["threshold_1"]), &image(vec![sound.clone()]), Filter::RAW).unwrap();
    for (changed, words) in [
        (Channel { name: "threshold_9", ..sound.clone() }, "no channel `threshold_1`"),
        (Channel { width: 9, ..sound.clone() }, "6 rows of 9, the series 6 of 8"),
        (Channel { element: ElementType::U32, ..sound.clone() }, "elements of type u32"),
        (Channel { compression: Stream2Compression::Lz4, bytes: b"nothing", ..sound.clone() }, "lz4: it is truncated"),
    ] {
        let error = series.payload(&image(vec![changed])).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(series.payload(&image(vec![sound.clone(), sound])).is_err());
}

proptest! {
    #[test]
    fn damaged_messages_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let plain = pixels(3);
        let image = Stream2Image {
            unique: "01H",
            series: 7,
            number: 1,
            began: Some(5),
            start: Some(1),
            channels: vec![channel("threshold_1", Stream2Compression::BitshuffleLz4, &plain)],
            ..Stream2Image::default()
        };
        for mut message in [image.encode(), start(&["a", "b"]).encode()] {
            let kept = cut.index(message.len());
            prop_assert!(Stream2Message::decode(&message[..kept]).is_err());
            // A changed byte may end a message early and leave it valid; decoding must only be safe.
            let at = at.index(message.len());
            message[at] = byte;
            let _ = Stream2Message::decode(&message);
            let _ = Stream2Message::decode(&message[..kept]);
            let _ = Stream2Image::salvage(&message[..kept]);
        }
    }
}

/// PUSH and PULL in one process; pyzmq is the other side in `crates/cli/tests`.
#[test]
fn sockets_shake_hands_and_messages_arrive() {
    let (mut push, mut pull) = UnixStream::pair().unwrap();
    let sender = std::thread::spawn(move || {
        handshake(&mut push, ZmtpRole::Push)?;
        send(&mut push, b"small")?;
        // A heartbeat between two messages, as libzmq sends it.
        push.write_all(b"\x04\x0a\x04PING\x00\x0aabc")?;
        send(&mut push, &vec![7; 40_000_000])?;
        let mut pong = [0; 10];
        push.read_exact(&mut pong)?;
        assert_eq!(&pong, b"\x04\x08\x04PONGabc");
        // Three parts, and a heartbeat within.
        push.write_all(b"\x01\x01a\x04\x07\x04PING\x00\x0a\x03\0\0\0\0\0\x01\0\0")?;
        push.write_all(&vec![5; 1 << 16])?;
        push.write_all(b"\x00\x00")?;
        push.read_exact(&mut pong[..7])?;
        assert_eq!(&pong[..7], b"\x04\x05\x04PONG");
        send(&mut push, b"after")?;
        push.write_all(b"\x01\x02a")
    });
    handshake(&mut pull, ZmtpRole::Pull).unwrap();
    let mut message = Vec::new();
    receive(&mut pull, &mut message, 1 << 30).unwrap();
    assert_eq!(message, b"small");
    receive(&mut pull, &mut message, 1 << 30).unwrap();
    assert!(message.len() == 40_000_000 && message.iter().all(|byte| *byte == 7));
    assert_eq!(receive(&mut pull, &mut message, 1 << 30).unwrap(), Received::Parts);
    assert_eq!(receive(&mut pull, &mut message, 1 << 30).unwrap(), Received::Message);
    assert_eq!(message, b"after");
    let cut = receive(&mut pull, &mut message, 1 << 30).unwrap_err();
    assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    sender.join().unwrap().unwrap();
}

#[test]
fn peers_of_the_wrong_socket_type_are_refused() {
    let answer = |theirs: &[u8]| -> io::Result<()> {
        let (mut here, mut there) = UnixStream::pair()?;
        there.write_all(theirs)?;
        there.shutdown(std::net::Shutdown::Write)?;
        handshake(&mut here, ZmtpRole::Pull)
    };
    let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".to_vec();
    greeting.resize(64, 0);
    let ready = |kind: &[u8]| {
        let body = [b"\x05READY\x0bsocket-TYPE\0\0\0", &[kind.len() as u8][..], kind].concat();
        [&greeting[..], &[4, body.len() as u8], &body].concat()
    };
    answer(&ready(b"PUSH")).unwrap();
    for (theirs, words) in [
        (ready(b"PUB"), "not a PUSH socket"),
        (b"HTTP/1.1 400 Bad Request".to_vec(), "does not speak ZeroMQ"),
        ([&greeting[..10], b"\x01", &greeting[11..]].concat(), "version 1"),
        ([&greeting[..12], b"CURVE", &greeting[17..]].concat(), "requires authentication"),
        ([&greeting[..], b"\x00\x01x"].concat(), "before its READY"),
        ([&greeting[..], b"\x04\x06\x05ERROR"].concat(), "refuses the connection"),
    ] {
        let error = answer(&theirs).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn dates_are_understood_in_every_zone() {
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2022-08-25T13:12:04.333+02:00", 1_661_425_924),
        ("2000-02-29T23:59:60-00:30", 951_870_600),
        ("2024-12-31T00:00:00.5z", 1_735_603_200),
    ] {
        let parsed = date::parse(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(parsed / 1_000_000_000, seconds, "{text}");
        assert_eq!(date::parse(&date::format(parsed)), Some(parsed), "{}", date::format(parsed));
    }
    for text in ["", "2022-08-25", "2022-13-01T00:00:00Z", "2022-08-25T13:12:04", "2022-08-25T13:12:04.x3Z"] {
        assert_eq!(date::parse(text), None, "{text}");
    }
    for day in 0..200_000 {
        let nanoseconds = day * 86_400_000_000_000 + 7;
        assert_eq!(date::parse(&date::format(nanoseconds)), Some(nanoseconds), "{}", date::format(nanoseconds));
    }
}
