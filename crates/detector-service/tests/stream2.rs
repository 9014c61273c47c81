//! The series of a DECTRIS detector, sent by a PUSH socket, becomes a file with each channel's blob unchanged.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::ElementType;
use varve_detector_service::{Config, EndKind, Protection, Service};
use varve_detector_stream::link::{Incoming, send_to_service};
use varve_detector_stream::{BodyChecksum, FromService, StreamHello, StreamRole, ToService, VERSION};
use varve_detector_stream2::message::{Channel, Stream2Compression};
use varve_detector_stream2::zmtp::{ZmtpRole, handshake, send};
use varve_detector_stream2::{Push, SeriesStart, Stream2Image};
use varve_detector_tools::replay::FrameReplay;
use varve_detector_writer::Settings;

const PATIENCE: Duration = Duration::from_secs(60);

fn config(root: &std::path::Path) -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        http: None,
        root: root.to_owned(),
        token: None,
        protection: Protection::default(),
        plugins: None,
        metadata: None,
        settings: Settings { threads: 2, ..Settings::default() },
        runs_max: 4,
        connections_max: 4,
        idle: PATIENCE,
    }
}

fn pixels(number: u64, channel: u64) -> Vec<u8> {
    (0..64 * 48_u64).flat_map(|at| ((at * (number + 1) + channel) as u16 % 100).to_le_bytes()).collect()
}

fn blob(plain: &[u8]) -> Vec<u8> {
    let mut blob = Vec::new();
    Encoder::new(Filter::BSLZ4, 2).and_then(|mut encoder| encoder.encode(plain, &mut blob)).expect("compressed");
    blob
}

fn start(channels: &[&str]) -> SeriesStart {
    SeriesStart {
        series: 9,
        unique: "series".into(),
        images: 8,
        height: 48,
        width: 64,
        channels: channels.iter().map(|name| (*name).to_owned()).collect(),
        incident_wavelength: Some(1.0),
        ..SeriesStart::default()
    }
}

fn until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that the file has these images.
fn equal(directory: &std::path::Path, numbers: &[u64]) {
    let replay = FrameReplay::open(&directory.join("series_000009.h5"), None).expect("a file");
    let mut bytes = Vec::new();
    for number in numbers {
        for channel in 0..2 {
            replay.frame_into(number * 2 + channel, &mut bytes).expect("read");
            assert_eq!(bytes, pixels(*number, channel), "frame {number}, channel {channel}");
        }
    }
}

fn send_image(push: &mut Push, number: u64) {
    send_image_of(push, "series", number);
}

/// A message with an image; `change` alters the bytes of its channels.
fn image(number: u64, compression: Stream2Compression, change: fn(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let blobs = [0, 1].map(|channel| change(blob(&pixels(number, channel))));
    let names = ["threshold_1", "threshold_2"];
    let channel = |at: usize| Channel {
        name: names[at],
        height: 48,
        width: 64,
        element: ElementType::U16,
        big_endian: false,
        compression,
        bytes: &blobs[at],
    };
    let channels = vec![channel(0), channel(1)];
    Stream2Image { series: 9, unique: "series", number, began: None, start: None, channels, ..Stream2Image::default() }
        .encode()
}

fn send_image_of(push: &mut Push, unique: &str, number: u64) {
    let blobs = [0, 1].map(|channel| blob(&pixels(number, channel)));
    let names = ["threshold_1", "threshold_2"];
    let channel = |at: usize| Channel {
        name: names[at],
        height: 48,
        width: 64,
        element: ElementType::U16,
        big_endian: false,
        compression: Stream2Compression::BitshuffleLz4,
        bytes: &blobs[at],
    };
    let channels = vec![channel(0), channel(1)];
    let image = Stream2Image {
        series: 9,
        unique,
        number,
        began: Some(1_000_000_000_000),
        start: Some(number * 1000),
        channels,
        ..Stream2Image::default()
    };
    push.send(&image.encode()).expect("sent");
}

#[test]
fn two_threshold_series_survives_a_broken_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(config(directory.path())).expect("started");
    let mut push = Push::bind("127.0.0.1:0").expect("bound");
    service.take_stream2(&push.address().expect("bound").to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects");
    let start = start(&["threshold_1", "threshold_2"]);
    // Before the start, the series of an image is unknown.
    send_image(&mut push, 7);
    push.send(&start.encode()).expect("sent");
    (0..3).for_each(|number| send_image(&mut push, number));
    push.send(b"nonsense").expect("sent");
    // The detector closes the connection, and the service reconnects.
    let address = push.address().expect("bound");
    drop(push);
    let mut push = Push::bind(address).expect("bound again");
    push.accept(PATIENCE).expect("the service connects again");
    for number in [3, 5] {
        send_image(&mut push, number);
    }
    push.send(&start.encode_end()).expect("sent");
    until(|| service.shared().run("series-9").is_some_and(|run| run.ended_as().is_some()));
    let ended = service.shared().run("series-9").and_then(|run| run.ended_as()).expect("ended");
    assert_eq!(ended.finished.received, 5, "{ended:?}");
    service.stop();
    equal(directory.path(), &[0, 1, 2, 3, 5]);
}

/// Promise: an image that arrives and cannot be read is marked as damaged, not as missing, and may be sent again.
/// Messages of the legacy stream are skipped, on the same connection.
#[test]
fn unreadable_images_are_marked_damaged() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(config(directory.path())).expect("started");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    service.take_stream2(&listener.local_addr().expect("bound").to_string()).expect("a thread");
    let (mut detector, _) = listener.accept().expect("the service connects");
    handshake(&mut detector, ZmtpRole::Push).expect("a PULL socket");
    let mut push = |message: &[u8]| send(&mut detector, message).expect("sent");
    let start = start(&["threshold_1", "threshold_2"]);
    push(&start.encode());
    let whole = |number: u64| image(number, Stream2Compression::BitshuffleLz4, |blob| blob);
    push(&whole(0));
    // A part of its compressed bytes, of its plain bytes, and of the message; then an unknown compression.
    push(&image(1, Stream2Compression::BitshuffleLz4, |blob| blob[..blob.len() / 2].to_vec()));
    push(&image(2, Stream2Compression::None, |_| vec![0; 100]));
    push(&whole(3)[..200]);
    let mut unknown = whole(4);
    let at = unknown.windows(5).position(|window| window == b"bslz4").expect("an algorithm");
    unknown[at..at + 5].copy_from_slice(b"lzw-9");
    push(&unknown);
    push(b"\xa1");
    for _ in 0..3 {
        detector.write_all(b"\x01\x04{..}\x01\x00\x00\x02..").expect("sent");
    }
    let mut push = |message: &[u8]| send(&mut detector, message).expect("sent");
    push(&whole(1));
    push(&whole(5));
    push(&start.encode_end());
    let run = || service.shared().run("series-9");
    until(|| run().is_some_and(|run| run.ended_as().is_some()));
    let ended = run().and_then(|run| run.ended_as()).expect("ended");
    // For an image with one channel of unknown compression, the other channel is kept.
    let finished = ended.finished;
    let counts = (finished.received, finished.damaged, finished.missing, finished.partial);
    assert_eq!(counts, (3, 2, 2, 1), "{ended:?}");
    assert_eq!(ended.tallied.damaged, 4, "{ended:?}");
    listener.set_nonblocking(true).expect("set");
    assert!(listener.accept().is_err(), "the connection has held");
    service.stop();
    equal(directory.path(), &[0, 1, 5]);
}

/// Promise: a service that was stopped in the middle of a series continues it after a restart. The images before and
/// after are in the file, without another start message.
#[test]
fn a_series_goes_on_after_the_service_was_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(config(directory.path())).expect("started");
    let mut push = Push::bind("127.0.0.1:0").expect("bound");
    let address = push.address().expect("bound");
    service.take_stream2(&address.to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects");
    push.send(&start(&["threshold_1", "threshold_2"]).encode()).expect("sent");
    (0..3).for_each(|number| send_image(&mut push, number));
    let durable = |service: &Service| service.shared().run("series-9").map_or(0, |run| run.status().progress.durable);
    until(|| durable(&service) == 3);
    service.stop();
    drop(push);
    let mut service = Service::start(config(directory.path())).expect("started");
    let mut push = Push::bind(address).expect("bound again");
    service.take_stream2(&address.to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects again");
    (3..6).for_each(|number| send_image(&mut push, number));
    push.send(&start(&["threshold_1", "threshold_2"]).encode_end()).expect("sent");
    let run = service.shared().run("series-9").expect("taken up");
    let ended = run.wait_ended(PATIENCE).expect("ended");
    // Two of the eight announced images were never taken.
    let finished = ended.finished;
    assert_eq!((finished.frames, finished.received, finished.missing), (8, 6, 2), "{ended:?}");
    service.stop();
    equal(directory.path(), &[0, 1, 2, 3, 4, 5]);
}

/// Another client that connects to the run by its name, and disconnects again.
fn look_in(service: &Service, run: &str) {
    let mut socket = TcpStream::connect(service.address()).expect("connected");
    let hello = StreamHello {
        version: VERSION,
        newest: 0,
        role: StreamRole::Scalars,
        checksum: BodyChecksum::Crc32,
        levels: 0,
        source: 0,
        connection: 0,
        connections: 1,
        patience: None,
        client: [7; 16],
        run: run.into(),
        token: String::new(),
        start: String::new(),
    };
    send_to_service(&mut socket, &ToService::Hello(hello), &[], 0).expect("said");
    let welcome = Incoming::new(socket).from_service().expect("an answer");
    assert!(matches!(welcome, Some(FromService::Welcome(_))), "{welcome:?}");
}

/// Promise: a series survives silence of any length, also after a restart of the service, and after other clients
/// connected to its run. Images that arrive after the run was stopped are counted as not kept.
#[test]
fn a_series_waits_for_its_detector() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = || Config { http: Some(([127, 0, 0, 1], 0).into()), ..config(directory.path()) };
    let mut service = Service::start(config()).expect("started");
    let mut push = Push::bind("127.0.0.1:0").expect("bound");
    let address = push.address().expect("bound");
    service.take_stream2(&address.to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects");
    push.send(&start(&["threshold_1", "threshold_2"]).encode()).expect("sent");
    (0..3).for_each(|number| send_image(&mut push, number));
    let durable = |service: &Service| service.shared().run("series-9").map_or(0, |run| run.status().progress.durable);
    until(|| durable(&service) == 3);
    service.stop();
    drop(push);
    // With this limit, the service would wait for clients only until it notices that they are gone.
    let record = directory.path().join(".varve-record/series-9.json");
    let text = std::fs::read_to_string(&record).expect("a record");
    assert!(text.contains("\"absence_s\":60.0"), "{text}");
    std::fs::write(&record, text.replace("\"absence_s\":60.0", "\"absence_s\":0.0")).expect("written");
    let mut service = Service::start(config()).expect("started");
    let mut push = Push::bind(address).expect("bound again");
    service.take_stream2(&address.to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects again");
    look_in(&service, "series-9");
    let run = service.shared().run("series-9").expect("taken up");
    until(|| run.clients.lock().absent().is_some_and(|absent| absent > Duration::from_secs(1)));
    (3..6).for_each(|number| send_image(&mut push, number));
    until(|| durable(&service) == 6);
    assert!(run.is_running());
    service.shared().end(&run, EndKind::Finished);
    send_image(&mut push, 6);
    let passed_over = || {
        let mut socket = TcpStream::connect(service.http().expect("served")).expect("connected");
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("asked");
        std::io::read_to_string(socket).expect("an answer").contains("images_passed_over_total 1")
    };
    until(passed_over);
    service.stop();
    equal(directory.path(), &[0, 1, 2, 3, 4, 5]);
}

/// Promise: images of a series without a start message are not kept. The series in progress continues, unless nothing
/// else arrives any more.
#[test]
fn images_of_an_unknown_series_end_the_previous_series() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(config(directory.path())).expect("started");
    let mut push = Push::bind("127.0.0.1:0").expect("bound");
    service.take_stream2(&push.address().expect("bound").to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects");
    push.send(&start(&["threshold_1", "threshold_2"]).encode()).expect("sent");
    send_image(&mut push, 0);
    let stray = |push: &mut Push, number| send_image_of(push, "another of the same number", number);
    for number in 1..40 {
        stray(&mut push, number);
        send_image(&mut push, number % 4);
    }
    (4..7).for_each(|number| send_image(&mut push, number));
    let run = || service.shared().run("series-9").expect("under way");
    until(|| run().status().progress.durable == 7);
    assert!(run().ended_as().is_none());
    (0..20).for_each(|number| stray(&mut push, number));
    until(|| run().ended_as().is_some());
    let ended = run().ended_as().expect("ended");
    assert_eq!((ended.finished.received, ended.why.contains("was not received")), (7, true), "{ended:?}");
    assert!(ended.tallied.received_bytes > 0, "{ended:?}");
    service.stop();
    equal(directory.path(), &[0, 1, 2, 3, 4, 5, 6]);
}

/// A message with an image of two channels, the second of which is changed or left out.
fn lacking(number: u64, change: impl FnOnce(&mut Channel<'_>) -> bool) -> Vec<u8> {
    let blobs = [0, 1].map(|channel| blob(&pixels(number, channel)));
    let channel = |name, bytes| {
        let (element, compression) = (ElementType::U16, Stream2Compression::BitshuffleLz4);
        Channel { name, height: 48, width: 64, element, big_endian: false, compression, bytes }
    };
    let mut channels = vec![channel("threshold_1", &blobs[0][..]), channel("threshold_2", &blobs[1][..])];
    if !change(&mut channels[1]) {
        channels.pop();
    }
    Stream2Image { series: 9, unique: "series", number, began: None, start: None, channels, ..Stream2Image::default() }
        .encode()
}

/// Promise: a series is recorded even without a field that only its metadata need. If a channel of an image cannot be
/// read or is missing, the other channels are kept, and the image is partial.
#[test]
fn readable_part_of_a_series_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(config(directory.path())).expect("started");
    let mut push = Push::bind("127.0.0.1:0").expect("bound");
    service.take_stream2(&push.address().expect("bound").to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects");
    let mut start = start(&["threshold_1", "threshold_2"]);
    start.sensor_material = Some("Si".into());
    let mut message = start.encode();
    // A wavelength as text, and an array in place of the sensor's material.
    let at = |message: &[u8], key: &[u8]| {
        message.windows(key.len()).position(|window| window == key).expect("the field") + key.len()
    };
    let wavelength = at(&message, b"incident_wavelength");
    message.splice(wavelength..wavelength + 9, *b"\x63one");
    let material = at(&message, b"sensor_material");
    message.splice(material..material + 3, *b"\x82\x01\x02");
    push.send(&message).expect("sent");
    // Nothing of the first image can be read. The next one has the information that the start lacks.
    let mut nothing = image(0, Stream2Compression::BitshuffleLz4, |blob| blob);
    for at in (0..nothing.len() - 5).filter(|at| nothing[*at..at + 5] == *b"bslz4").collect::<Vec<usize>>() {
        nothing[at..at + 5].copy_from_slice(b"lzw-9");
    }
    push.send(&nothing).expect("sent");
    send_image(&mut push, 1);
    push.send(&lacking(2, |_| false)).expect("sent");
    push.send(&lacking(3, |channel| {
        channel.bytes = &channel.bytes[..channel.bytes.len() / 2];
        true
    }))
    .expect("sent");
    push.send(&lacking(4, |channel| {
        channel.element = ElementType::U32;
        true
    }))
    .expect("sent");
    let mut unknown = lacking(5, |_| true);
    let last = unknown
        .windows(5)
        .collect::<Vec<_>>()
        .into_iter()
        .rposition(|window| window == b"bslz4")
        .expect("an algorithm");
    unknown[last..last + 5].copy_from_slice(b"lzw-9");
    push.send(&unknown).expect("sent");
    let cut = lacking(6, |_| true);
    push.send(&cut[..cut.len() - 100]).expect("sent");
    send_image(&mut push, 7);
    push.send(&start.encode_end()).expect("sent");
    until(|| service.shared().run("series-9").is_some_and(|run| run.ended_as().is_some()));
    let ended = service.shared().run("series-9").and_then(|run| run.ended_as()).expect("ended");
    let finished = ended.finished;
    assert_eq!((finished.frames, finished.received, finished.partial, finished.missing), (8, 2, 5, 1), "{ended:?}");
    service.stop();
    equal(directory.path(), &[1, 7]);
    let replay = FrameReplay::open(&directory.path().join("series_000009.h5"), None).expect("a file");
    let mut bytes = Vec::new();
    for number in 2..7 {
        replay.frame_into(number * 2, &mut bytes).expect("read");
        assert_eq!(bytes, pixels(number, 0), "frame {number}");
        replay.frame_into(number * 2 + 1, &mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| *byte == 0), "frame {number} reads as the fill value");
    }
}

/// Promise: the service stops during a series, whose images come faster than reads time out. Neither run nor record keeps
/// the arrays of the start message.
#[test]
fn service_stops_during_a_series() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut service = Service::start(config(directory.path())).expect("started");
    let mut push = Push::bind("127.0.0.1:0").expect("bound");
    service.take_stream2(&push.address().expect("bound").to_string()).expect("a thread");
    push.accept(PATIENCE).expect("the service connects");
    let mut announced = start(&["threshold_1", "threshold_2"]).encode();
    // One key more: the mask of one threshold.
    announced[0] += 1;
    announced.extend(b"\x6apixel_mask\xa1\x6bthreshold_1\xd8\x28\x82\x82\x18\x30\x18\x40\xd8\x46\x59\x30\x00");
    announced.extend([0; 48 * 64 * 4]);
    push.send(&announced).expect("sent");
    send_image(&mut push, 0);
    until(|| service.shared().run("series-9").is_some());
    let run = service.shared().run("series-9").expect("begun");
    assert!(run.request.description.arrays.iter().any(|array| array.path == "threshold_1_channel/pixel_mask"));
    assert!(run.series.as_ref().is_some_and(|taken| taken.series.start.arrays.is_empty()));
    let (stopped, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        service.stop();
        stopped.send(()).expect("the test waits");
    });
    let deadline = Instant::now() + PATIENCE;
    let message = image(1, Stream2Compression::BitshuffleLz4, |bytes| bytes);
    while wait.try_recv().is_err() {
        assert!(Instant::now() < deadline, "the service does not stop");
        // The service closes the connection when it stops.
        let _ = push.send(&message);
        std::thread::sleep(Duration::from_millis(5));
    }
}
