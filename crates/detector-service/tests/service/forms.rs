//! Frames in every form of transmission: plain, filtered, several at a time, late, in regions.

use super::common::{self, frames};
use super::raw::Raw;
use super::{SIDE, WAIT, check, config, description, filtered, options, plain, settings, start};
use serde_json::json;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::Region;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_filters::Encoder;
use varve_detector_service::{Config, Service, StartRequest};
use varve_detector_stream::NoticeCode;
use varve_detector_stream::client::{Client, ClientOptions, Outgoing, Scalars};
use varve_detector_tools::replay::FrameReplay;
use varve_detector_writer::{Settings, WriterProgress};

#[test]
fn frames_of_several_connections_become_one_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = start("several");
    let client =
        Client::connect(ClientOptions { connections: 3, window_bytes: 64 << 10, ..options(&service, &request) })
            .expect("in");
    for number in 0..300 {
        let out = if number % 3 == 0 { filtered(number) } else { plain(number) };
        client.send(out, WAIT).expect("sent");
    }
    let several =
        Outgoing { frames: 4, parts: vec![(300..304).flat_map(|n| plain(n).parts.concat()).collect()], ..plain(300) };
    client.send(several, WAIT).expect("sent");
    let rows = (0..304)
        .map(|frame| (frame, vec![Some((frame as f64 * 10.0 + 1.0).into()), Some((frame as f64 * 10.0).into())]));
    let names = vec!["shutter".into(), "energy".into()];
    client.scalars(Scalars { names, rows: rows.collect() }, WAIT).expect("sent");
    client.settle(WAIT).expect("all durable");
    let finished = client.finish(WAIT).expect("finished");
    let there = finished.received;
    assert_eq!((finished.frames, there, finished.missing, finished.dropped), (304, 304, 0, 0), "{finished:?}");
    assert!(!directory.path().join("several.h5.journal").exists());
    let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..304).collect::<Vec<u64>>(), "exact": true,
        "scalars": ["energy", "shutter"]});
    std::fs::write(directory.path().join("several.json"), reported.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    service.stop();
}

/// Promise: a frame that the receiving thread filters on arrival keeps its content. A frame damaged in transit is not
/// taken, and may be sent again.
#[test]
fn frames_are_filtered_while_they_come() {
    const SIDES: [u64; 2] = [600, 1000];
    const FRAMES: u64 = 12;
    let directory = tempfile::tempdir().expect("a directory");
    // As many connections as writing threads.
    let config = Config { settings: Settings { threads: 1, ..settings() }, ..config(directory.path()) };
    let service = Service::start(config).expect("a service");
    for filter in ["bslz4", "bszstd:1", "lz4"] {
        let name = filter.split(':').next().expect("a name");
        let mut request = start(name);
        (request.description.frame, request.description.chunk) = (SIDES.to_vec(), None);
        request.description.filter = filter.parse().expect("a filter");
        request.description.scalars.clear();
        let frame = |number| Outgoing {
            sides: SIDES.map(|side| side as u32).to_vec(),
            parts: vec![frames::frame(number, (SIDES[0] * SIDES[1]) as usize)],
            ..plain(number)
        };
        let mut raw = Raw::connect(&service, &request, None);
        for number in 0..FRAMES {
            if number % 5 == 2 {
                raw.frame(&frame(number), Some(7));
                assert_eq!(raw.notice(), (NoticeCode::Damaged, number));
            }
            raw.frame(&frame(number), None);
        }
        let finished = raw.finish();
        assert_eq!((finished.received, finished.damaged, finished.missing), (FRAMES, 0, 0), "{finished:?}");
        let reported =
            json!({"frame": SIDES, "fill": 4321, "acknowledged": (0..FRAMES).collect::<Vec<u64>>(), "exact": true});
        std::fs::write(directory.path().join(format!("{name}.json")), reported.to_string()).expect("written");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "3");
    service.stop();
}

/// Chunks of several frames that arrive filtered are written unchanged. Frames of them that arrive later are added.
#[test]
fn chunks_of_several_frames_come_filtered() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut request = start("slabs");
    request.description.chunk = Some(vec![4, SIDE / 2, SIDE]);
    let client = Client::connect(options(&service, &request)).expect("in");
    let chunk_group = |first: u64, frames: u32| {
        let bytes = (SIDE * SIDE) as usize;
        let all: Vec<Vec<u8>> = (0..4)
            .map(|slot| if slot < u64::from(frames) { frames::frame(first + slot, bytes) } else { vec![0; 2 * bytes] })
            .collect();
        let half =
            |at: usize| all.iter().flat_map(|frame| frame[at * bytes..(at + 1) * bytes].to_vec()).collect::<Vec<u8>>();
        let mut encoder = Encoder::new(description().filter, 2).expect("an encoder");
        let chunks = [half(0), half(1)].map(|plain| {
            let mut blob = Vec::new();
            encoder.encode(&plain, &mut blob).expect("filtered");
            blob
        });
        Outgoing { frames, filter: "bslz4".into(), parts: chunks.to_vec(), ..plain(first) }
    };
    // Complete chunks, also out of order. Then chunks that arrive in part, with their other frames plain, before and
    // after the part.
    for first in [4, 0, 12] {
        client.send(chunk_group(first, 4), WAIT).expect("sent");
    }
    client.send(plain(11), WAIT).expect("sent");
    client.send(chunk_group(8, 2), WAIT).expect("sent");
    client.send(plain(10), WAIT).expect("sent");
    client.send(chunk_group(16, 3), WAIT).expect("sent");
    client.send(chunk_group(20, 1), WAIT).expect("sent");
    // The last chunks stay incomplete, and are durable all the same.
    client.settle(WAIT).expect("all durable");
    client.send(plain(19), WAIT).expect("sent");
    // A chunk that does not begin at its first frame, one with known frames, bytes that cannot be extended, and bytes
    // without a valid frame.
    let (mut torn, mut cut) = (chunk_group(24, 2), chunk_group(28, 2));
    torn.parts[1][16..36].fill(0xff);
    cut.parts[1].truncate(20);
    for (number, out, words) in [
        (22, chunk_group(22, 4), "begins at frame 20"),
        (20, chunk_group(20, 2), "arrived before"),
        (24, torn, "cannot read a chunk"),
        (28, cut, "with `bslz4`: it is truncated"),
    ] {
        client.send(out, WAIT).expect("sent");
        client.settle(WAIT).expect("said");
        let notices = client.notices();
        assert!(notices.iter().any(|notice| notice.frame == number && notice.text.contains(words)), "{notices:?}");
    }
    let finished = client.finish(WAIT).expect("finished");
    let counts = (finished.frames, finished.received, finished.missing, finished.duplicate);
    assert_eq!(counts, (21, 21, 0, 0), "{finished:?}");
    check(directory.path(), "slabs", &(0..21).collect::<Vec<u64>>(), true);
    service.stop();
}

/// Promise: frames and scalars that arrive after later frames were published are stored, and the frames are marked as
/// late.
#[test]
fn late_frames_and_scalars_land_and_frames_are_marked() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = start("late");
    let client = Client::connect(options(&service, &request)).expect("in");
    let energy = |number: u64| {
        let rows = vec![(number, vec![Some((number as f64 * 10.0).into())])];
        client.scalars(Scalars { names: vec!["energy".into()], rows }, WAIT).expect("sent");
    };
    let late = [3_u64, 4, 11];
    for number in (0..20).filter(|number| !late.contains(number)) {
        client.send(plain(number), WAIT).expect("sent");
        if number % 2 == 0 {
            energy(number);
        }
    }
    client.settle(WAIT).expect("durable");
    let deadline = std::time::Instant::now() + WAIT;
    let published = || service.shared().run("late").expect("the run").status().progress.published;
    while published() < 20 {
        assert!(std::time::Instant::now() < deadline, "what is durable is published");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Fills a hole in the middle of published frames, with plain elements, with chunks, and with a message of two
    // frames.
    let two = Outgoing {
        frames: 2,
        parts: vec![[plain(3), plain(4)].iter().flat_map(|n| n.parts.concat()).collect()],
        ..plain(3)
    };
    client.send(two, WAIT).expect("sent");
    client.send(filtered(11), WAIT).expect("sent");
    for number in (0..20).filter(|number| number % 2 == 1 || late.contains(number)) {
        energy(number);
    }
    client.settle(WAIT).expect("durable");
    let finished = client.finish(WAIT).expect("finished");
    let counts = (finished.frames, finished.received, finished.late, finished.missing, finished.duplicate);
    assert_eq!(counts, (20, 20, 3, 0, 0), "{finished:?}");
    let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..20).collect::<Vec<u64>>(), "exact": true,
        "scalars": ["energy"], "late": late});
    std::fs::write(directory.path().join("late.json"), reported.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    service.stop();
}

/// Promise: regions of one frame from several sources form one dataset. A missing region reads as the fill value, and
/// its frame is partial. Each source gets acknowledgements for its own regions only, also from a restarted service.
#[test]
fn regions_from_several_sources_meet_in_one_dataset() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let address = service.address();
    let mut request = start("mosaic");
    request.description.chunk = None;
    let half = [SIDE / 2, SIDE];
    let region = |number: u64| Region { offset: vec![number * half[0], 0], shape: half.to_vec() };
    request.description.sources = vec![region(0), region(1)];
    let wrong = StartRequest { sources: 3, ..request.clone() };
    assert!(wrong.check().expect_err("refused").contains("the description has 2 regions"));
    let part = |number: u64, source: u16| {
        let whole = frames::frame(number, (SIDE * SIDE) as usize);
        let bytes = whole.len() / 2;
        let at = usize::from(source) * bytes;
        let sides = half.map(|side| side as u32).to_vec();
        Outgoing { sides, parts: vec![whole[at..at + bytes].to_vec()], ..plain(number) }
    };
    let connect = |source: u16| {
        Client::connect(ClientOptions { source, connections: 2, ..options(&service, &request) }).expect("in")
    };
    let clients = [connect(0), connect(1)];
    let bring = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            for source in [0, 1] {
                // Source 1 loses frames 3 and 13.
                if source == 0 || number % 10 != 3 {
                    clients[usize::from(source)].send(part(number, source), WAIT).expect("sent");
                }
            }
        }
    };
    bring(0..10);
    clients.iter().for_each(|client| client.settle(WAIT).expect("durable"));
    assert_eq!(clients[0].acknowledged(AckLevel::Durable).len(), 10);
    assert!(!clients[1].acknowledged(AckLevel::Durable).contains(3), "it never brought it");
    let counts = |service: &Service| {
        let WriterProgress { taken, written, durable, .. } =
            service.shared().run("mosaic").expect("known").status().progress;
        (taken, written, durable)
    };
    assert_eq!(counts(&service), (10, 10, 10));
    service.stop();
    let service = Service::start(Config { listen: address, ..config(directory.path()) }).expect("a service");
    bring(10..20);
    let ended = std::thread::scope(|scope| {
        let ends = clients.map(|client| scope.spawn(|| client.finish(WAIT).expect("finished")));
        ends.map(|end| end.join().expect("no panic"))
    });
    assert_eq!(ended[0], ended[1]);
    assert_eq!((ended[0].frames, ended[0].partial, ended[0].missing), (20, 2, 0), "{:?}", ended[0]);
    assert_eq!((ended[0].received, counts(&service)), (18, (20, 20, 20)), "{:?}", ended[0]);
    service.stop();
    let replay = FrameReplay::open(&directory.path().join("mosaic.h5"), None).expect("a file");
    let mut bytes = Vec::new();
    for number in 0..20 {
        replay.frame_into(number, &mut bytes).expect("read");
        let mut expected = frames::frame(number, (SIDE * SIDE) as usize);
        if number % 10 == 3 {
            let half = expected.len() / 2;
            expected[half..].chunks_exact_mut(2).for_each(|element| element.copy_from_slice(&4321_u16.to_le_bytes()));
        }
        assert!(bytes == expected, "frame {number}");
    }
}

/// Promise: an incomplete chunk of several frames does not delay a client that waits for all its frames. With this
/// commit interval, no timer would write the chunk.
#[test]
fn incomplete_chunk_does_not_block_the_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings() };
    let service = Service::start(Config { settings, ..config(directory.path()) }).expect("a service");
    let mut request = start("flushed");
    request.description.chunk = Some(vec![4, SIDE / 2, SIDE]);
    for connections in [1, 3] {
        request.name = format!("flushed-{connections}");
        request.file = format!("flushed-{connections}.h5").into();
        let written = ClientOptions { level: AckLevel::Written, connections, ..options(&service, &request) };
        let client = Client::connect(written).expect("in");
        (0..5).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
        client.settle(WAIT).expect("written, though frames of the chunk are lacking");
        // These frames are added to the written chunk when they arrive.
        (5..7).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
        let finished = client.finish(WAIT).expect("finished");
        assert_eq!((finished.frames, finished.received, finished.duplicate), (7, 7, 0), "{finished:?}");
        check(directory.path(), &request.name, &(0..7).collect::<Vec<u64>>(), true);
    }
    service.stop();
}
