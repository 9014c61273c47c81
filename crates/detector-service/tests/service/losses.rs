//! Frames that are damaged, do not fit, or find no space in the queue.

use super::common::frames;
use super::http::exchange;
use super::raw::Raw;
use super::{SIDE, WAIT, check, config, options, plain, settings, start};
use serde_json::json;
use std::time::{Duration, Instant};
use varve_detector_dataset::frame::AckLevel;
use varve_detector_filters::Encoder;
use varve_detector_service::{Config, EndKind, Joining, Service, StartRequest, WriterShareOptions};
use varve_detector_stream::client::{Client, ClientOptions, Outgoing};
use varve_detector_stream::control::Control;
use varve_detector_stream::{Ack, FromService, NoticeCode};
use varve_detector_writer::Settings;

/// Deadline for operations that need one commit: far less than the usual wait of clients.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn bad_frames_are_counted_and_marked_and_the_run_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut raw = Raw::connect(&service, &start("bad"), None);
    raw.frame(&plain(0), None);
    raw.frame(&plain(1), Some(1));
    assert_eq!(raw.notice(), (NoticeCode::Damaged, 1));
    raw.frame(&plain(2), Some(2));
    assert_eq!(raw.notice(), (NoticeCode::Damaged, 2));
    raw.frame(&plain(2), None);
    raw.frame(&plain(0), None);
    assert_eq!(raw.notice(), (NoticeCode::Duplicate, 0));
    raw.frame(&Outgoing { sides: vec![1, 2], ..plain(3) }, None);
    assert_eq!(raw.notice(), (NoticeCode::Refused, 3));
    raw.frame(&plain(1 << 40), None);
    assert_eq!(raw.notice(), (NoticeCode::Refused, 1 << 40));
    // -1, read as unsigned, is not a protocol error.
    raw.frame(&Outgoing { number: u64::MAX, ..plain(5) }, None);
    assert_eq!(raw.notice(), (NoticeCode::Refused, u64::MAX));
    raw.frame(&plain(4), None);
    let finished = raw.finish();
    assert_eq!((finished.frames, finished.received, finished.duplicate), (5, 3, 1), "{finished:?}");
    assert_eq!((finished.damaged, finished.missing, finished.dropped), (1, 1, 2), "{finished:?}");
    check(directory.path(), "bad", &[0, 2, 4], true);
    // The result of the run stays visible, with the same counts everywhere.
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
    let listed = control.get("/runs", WAIT).expect("listed")["runs"][0].clone();
    assert_eq!(
        (&listed["state"], &listed["durable"], &listed["failure"]),
        (&json!("finished"), &json!(3), &json!(null))
    );
    let (_, scraped) = exchange(&service, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    for series in [
        "runs 0",
        "frames_durable_total{run=\"bad\"} 3",
        "frames_dropped_total{run=\"bad\"} 2",
        "failed{run=\"bad\"} 0",
    ] {
        assert!(scraped.contains(&format!("\nvarve_record_{series}\n")), "{series}: {scraped}");
    }
    service.stop();
}

/// Promise: a frame that is sent again is acknowledged again, up to the level of the first copy, also if the second
/// copy was damaged in transit in between. Its sender need not remember earlier acknowledgements.
#[test]
fn repeated_frame_is_acknowledged_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut raw = Raw::connect(&service, &start("again"), None);
    let durable = || FromService::Ack(Ack { level: AckLevel::Durable, frames: std::iter::once(0..1).collect() });
    raw.frame(&plain(0), None);
    assert_eq!(raw.next(), durable());
    raw.frame(&plain(0), None);
    assert_eq!(raw.next(), durable());
    assert_eq!(raw.notice(), (NoticeCode::Duplicate, 0));
    raw.frame(&plain(0), Some(1));
    assert_eq!(raw.notice(), (NoticeCode::Damaged, 0));
    raw.frame_again(&plain(0));
    assert_eq!(raw.next(), durable());
    let finished = raw.finish();
    assert_eq!((finished.received, finished.duplicate, finished.damaged), (1, 1, 0), "{finished:?}");
    service.stop();
}

/// Promise: a client that sends frames which it knows to be durable already need not wait for the run's end.
#[test]
fn client_confirms_frames_durable_before_it_sent_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let client = Client::connect(options(&service, &start("twice"))).expect("in");
    for _ in 0..2 {
        (0..5).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
        client.settle(SOON).expect("durable");
    }
    let finished = client.finish(SOON).expect("finished");
    assert_eq!((finished.received, finished.duplicate), (5, 5), "{finished:?}");
    service.stop();
}

/// Promise: a joined process does not take frames again that others have sent to the run, whole chunks of them
/// included. It acknowledges them to their sender.
#[test]
fn frames_sent_twice_are_acknowledged_by_a_writer_share() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    for (name, together) in [("plain", 1), ("slabs", 4)] {
        let mut request = StartRequest { sources: 2, ..start(name) };
        request.description.chunk = Some(vec![together, SIDE, SIDE]);
        let out = |first: u64| {
            let bytes: Vec<u8> = (first..first + together).flat_map(|number| plain(number).parts.concat()).collect();
            let mut chunk = Vec::new();
            let mut encoder = Encoder::new(request.description.filter, 2).expect("an encoder");
            encoder.encode(&bytes, &mut chunk).expect("filtered");
            Outgoing { frames: together as u32, filter: "bslz4".into(), parts: vec![chunk], ..plain(first) }
        };
        let bring = |client: &Client, numbers: std::ops::Range<u64>| {
            let firsts = numbers.step_by(together as usize);
            firsts.for_each(|first| client.send(out(first), WAIT).expect("sent"));
        };
        let first = Client::connect(ClientOptions { source: 1, ..options(&service, &request) }).expect("in");
        let address = service.address().to_string();
        let coordinator =
            WriterShareOptions { address, run: name.into(), token: String::new(), tls: None, source: 0, retry: WAIT };
        let joining = Joining { coordinator, sources: 1 };
        let share = Service::join(Config { http: None, ..config(directory.path()) }, joining).expect("joined");
        let second = Client::connect(ClientOptions::new(&share.address().to_string(), name)).expect("in");
        bring(&first, 0..8);
        first.settle(WAIT).expect("durable");
        let deadline = Instant::now() + WAIT;
        while !(0..8).all(|number| second.acknowledged_frame(AckLevel::Durable, number)) {
            assert!(Instant::now() < deadline, "it does not hear of what others brought");
            std::thread::sleep(Duration::from_millis(5));
        }
        bring(&second, 0..12);
        second.settle(SOON).expect("all frames are durable, from either client");
        let mut reported = Vec::new();
        while reported.len() < 8 {
            assert!(Instant::now() < deadline, "{reported:?}");
            reported.extend(second.notices().into_iter().map(|notice| (notice.code, notice.frame)));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(reported, (0..8).map(|number| (NoticeCode::Duplicate, number)).collect::<Vec<_>>(), "{name}");
        let status = share.shared().run(name).expect("known").status();
        assert_eq!((status.progress.taken, status.duplicate), (4, 8), "{name}: {status:?}");
        let ended = service.shared().run(name).expect("known").end(EndKind::Finished, "");
        let counts = ended.finished;
        assert_eq!((counts.received, counts.duplicate, counts.missing), (12, 8, 0), "{name}: {ended:?}");
        check(directory.path(), name, &(0..12).collect::<Vec<u64>>(), true);
        share.stop();
    }
    service.stop();
}

/// Promise: a frame that arrived damaged and is sent again intact, before any higher one, is not late, whatever was
/// committed in between.
#[test]
fn resent_damaged_frame_is_not_late() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut raw = Raw::connect(&service, &start("turn"), None);
    raw.frame(&plain(0), None);
    raw.frame(&plain(1), Some(1));
    assert_eq!(raw.notice(), (NoticeCode::Damaged, 1));
    let run = service.shared().run("turn").expect("known");
    let deadline = std::time::Instant::now() + WAIT;
    while run.status().progress.published < 2 {
        assert!(std::time::Instant::now() < deadline, "{:?}", run.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    raw.frame(&plain(1), None);
    raw.frame(&plain(2), None);
    let finished = raw.finish();
    assert_eq!((finished.received, finished.late, finished.damaged), (3, 0, 0), "{finished:?}");
    service.stop();
}

/// Promise: frames that the detector cannot wait for are dropped, counted, and reported.
#[test]
fn frames_without_queue_space_are_dropped_and_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(Config {
        settings: Settings { threads: 1, queue_bytes: 1, ..settings() },
        ..config(directory.path())
    })
    .expect("a service");
    let mut request = start("rush");
    request.description.filter = "zstd:19".parse().expect("a filter");
    let patience = Some(Duration::ZERO);
    let client = Client::connect(ClientOptions { patience, ..options(&service, &request) }).expect("in");
    (0..200).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("each is durable or dropped");
    let dropped = client.dropped();
    let finished = client.finish(WAIT).expect("finished");
    assert!(dropped > 0 && finished.dropped == dropped, "{dropped} {finished:?}");
    assert!(finished.received > 0 && finished.received + dropped == 200, "{dropped} {finished:?}");
    service.stop();
}

/// Promise: a run whose file is truncated by another process fails at once with that error, and does not write past the
/// loss.
#[test]
fn run_fails_if_its_file_is_truncated() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let client = Client::connect(options(&service, &start("cut"))).expect("in");
    (0..10).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    let file = std::fs::File::options().write(true).open(directory.path().join("cut.h5")).expect("without a lock");
    file.set_len(4096).expect("cut");
    let ended = service.shared().run("cut").expect("known").wait_ended(WAIT).expect("it ends by itself");
    assert!(ended.how == EndKind::Failed && ended.why.contains("was truncated from"), "{ended:?}");
    service.stop();
}

/// Promise: a run whose file is removed fails at once with that error. A new file of that name is not touched. The
/// original file, put back, is recovered with all its frames.
#[test]
fn run_fails_if_its_file_is_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let at = |name: &str| directory.path().join(name);
    for name in ["removed", "moved", "replaced"] {
        let client = Client::connect(options(&service, &start(name))).expect("in");
        (0..10).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
        client.settle(WAIT).expect("durable");
        let file = at(&format!("{name}.h5"));
        match name {
            "removed" => std::fs::remove_file(&file).expect("removed"),
            _ => std::fs::rename(&file, at("aside.h5")).expect("moved"),
        }
        if name == "replaced" {
            std::fs::write(&file, "somebody else's").expect("written");
        }
        let run = service.shared().run(name).expect("known");
        let ended = run.wait_ended(WAIT).expect("it ends by itself");
        let what = if name == "removed" { "was removed during" } else { "was moved during" };
        assert!(ended.how == EndKind::Failed && ended.why.contains(what), "{name}: {ended:?}");
        let refused = (10..10_000).find_map(|number| client.send(plain(number), WAIT).err()).expect("refused");
        assert!(refused.to_string().contains(what), "{name}: {refused}");
        if name == "replaced" {
            assert_eq!(std::fs::read(&file).expect("there"), b"somebody else's");
        }
        if name != "removed" {
            std::fs::rename(at("aside.h5"), &file).expect("put back");
            let recovered = varve_detector_file::recover::recover(&file).expect("recovered");
            assert_eq!(recovered.counts.received, 10, "{recovered:?}");
        }
    }
    service.stop();
}

/// Promise: a message that announces more frames than share a chunk is refused by its announcement alone, and nothing
/// else is.
#[test]
fn too_many_frames_for_a_chunk_group_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut request = start("slabs");
    request.description.chunk = Some(vec![4, SIDE, SIDE]);
    let mut raw = Raw::connect(&service, &request, None);
    let plain = frames::frame(0, 4 * (SIDE * SIDE) as usize);
    let mut chunk = Vec::new();
    Encoder::new(request.description.filter, 2).and_then(|mut it| it.encode(&plain, &mut chunk)).expect("filtered");
    raw.chunk_group(0, u32::MAX, std::slice::from_ref(&chunk));
    let notice = loop {
        match raw.next() {
            FromService::Notice(notice) => break notice,
            FromService::Ack(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(notice.text.contains("more than the 4 of a chunk"), "{notice:?}");
    raw.chunk_group(0, 4, &[chunk]);
    assert_eq!(raw.finish().received, 4);
    service.stop();
}
