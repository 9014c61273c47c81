//! The service over TCP, with the client of this crate and with bytes by hand: what clients can do to it and to each
//! other, and what becomes of their frames.

mod common;

use common::frames;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use varve_detector::client::{Client, ClientError, Options, Outgoing, Scalars};
use varve_detector::control::{Control, ControlError};
use varve_detector::description::nxmx::{Goniometer, MaskRegion, Nxmx};
use varve_detector::description::{Description, Region, Scalar, ScalarColumn, ScalarKind};
use varve_detector::filters::{Encoder, PluginChoice};
use varve_detector::frame::Level;
use varve_detector::hdf5::ElementType;
use varve_detector::replay::Replay;
use varve_detector::service::{Config, Service, StartRequest};
use varve_detector::stream::link::{Incoming, say, tell};
use varve_detector::stream::scalars::Row;
use varve_detector::stream::{
    BodyChecksum, ErrorCode, FrameHead, FromService, Hello, NoticeCode, Role, ToService, VERSION, level_bit,
};
use varve_detector::writer::{Progress, Settings};

const SIDE: u64 = 48;
const WAIT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings { queue_bytes: 1 << 20, commit_interval: Duration::from_millis(20), ..Settings::default() }
}

fn config(root: &Path) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        http: Some("127.0.0.1:0".parse().expect("an address")),
        root: root.to_owned(),
        token: None,
        settings: settings(),
        runs_max: 4,
        connections_max: 16,
        idle: Duration::from_secs(10),
    }
}

fn description() -> Description {
    let mut description = Description::new(ElementType::U16, vec![SIDE, SIDE]);
    description.chunk = Some(vec![SIDE / 2, SIDE]);
    description.fill = Some(4321.0);
    description.scalars = vec!["energy".into(), "shutter".into()];
    description
}

fn start(name: &str) -> StartRequest {
    StartRequest::new(name, format!("{name}.h5").into(), description())
}

fn options(service: &Service, request: &StartRequest) -> Options {
    Options {
        start: serde_json::to_string(request).expect("JSON"),
        ..Options::new(&service.address().to_string(), &request.name)
    }
}

fn plain(number: u64) -> Outgoing {
    Outgoing {
        number,
        taken: 7,
        element: ElementType::U16,
        sides: vec![SIDE as u32, SIDE as u32],
        frames: 1,
        filter: String::new(),
        parts: vec![frames::frame(number, (SIDE * SIDE) as usize)],
    }
}

fn filtered(number: u64) -> Outgoing {
    let mut encoder = Encoder::new(description().filter, 2).expect("an encoder");
    let frame = frames::frame(number, (SIDE * SIDE) as usize);
    let chunks = frame.chunks(frame.len() / 2).map(|chunk| {
        let mut blob = Vec::new();
        encoder.encode(chunk, &mut blob).expect("filtered");
        blob
    });
    Outgoing { filter: "bslz4".into(), parts: chunks.collect(), ..plain(number) }
}

fn check(directory: &Path, name: &str, acknowledged: &[u64], exact: bool) {
    let told = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": acknowledged, "exact": exact});
    std::fs::write(directory.join(format!("{name}.json")), told.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory]).trim(), "1");
    std::fs::remove_file(directory.join(format!("{name}.json"))).expect("removed");
}

#[test]
fn frames_of_several_connections_become_one_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = start("several");
    let client =
        Client::connect(Options { connections: 3, window_bytes: 64 << 10, ..options(&service, &request) }).expect("in");
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
    let there = finished.received + finished.late;
    assert_eq!((finished.frames, there, finished.missing, finished.dropped), (304, 304, 0, 0), "{finished:?}");
    assert!(!directory.path().join("several.h5.journal").exists());
    let told = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..304).collect::<Vec<u64>>(), "exact": true,
        "scalars": ["energy", "shutter"]});
    std::fs::write(directory.path().join("several.json"), told.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    service.stop();
}

/// Texts and integers of 64 bits come as they were sent, values that say nothing leave what came before.
#[test]
fn scalars_of_every_kind_come_as_they_were_sent() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut request = start("kinds");
    request.description.scalars = vec!["energy".into()];
    for (name, kind) in [
        ("steps", ScalarKind::Integer),
        ("pulse", ScalarKind::Unsigned),
        ("sample", ScalarKind::Text(8)),
        // A column may be of another kind that holds its values.
        ("wide", ScalarKind::Float),
    ] {
        request.description.scalars.push(ScalarColumn { name: name.into(), kind });
    }
    let client = Client::connect(options(&service, &request)).expect("in");
    for number in 0..40 {
        client.send(plain(number), WAIT).expect("sent");
    }
    let names = ["energy", "steps", "pulse", "sample", "wide"].map(str::to_owned).to_vec();
    let send = |rows: Vec<Row>| client.scalars(Scalars { names: names.clone(), rows }, WAIT);
    let of = |number: u64| -> Vec<Option<Scalar>> {
        let value = number * 10;
        vec![
            Some((value as f64).into()),
            Some((value as i64 + 1).into()),
            Some((value + 2).into()),
            Some((value + 3).to_string().into()),
            Some((value as i64 + 4).into()),
        ]
    };
    send((0..40).map(|number| (number, of(number))).collect()).expect("sent");
    send(vec![(39, vec![None, None, None, None, None])]).expect("sent");
    let mixed = send(vec![(0, of(0)), (1, vec![Some(1_i64.into()), None, None, None, None])]).expect_err("two kinds");
    assert!(mixed.to_string().contains("`energy` of frame 1"), "{mixed}");
    // What the run's column does not hold is refused by name, and the client goes on.
    send(vec![(5, vec![None, None, None, Some("nine bytes".into()), None])]).expect("sent");
    send(vec![(6, vec![None, None, Some(7_u64.into()), None, None]), (6, of(6))]).expect("sent");
    client.settle(WAIT).expect("all durable");
    let deadline = std::time::Instant::now() + WAIT;
    let mut notices = client.notices();
    while notices.is_empty() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        notices = client.notices();
    }
    assert_eq!((notices[0].code, notices[0].frame), (NoticeCode::Refused, 5), "{notices:?}");
    assert!(notices[0].text.contains("`sample`: its text has 10 bytes"), "{notices:?}");
    assert_eq!(client.finish(WAIT).expect("finished").received, 40);
    let told = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..40).collect::<Vec<u64>>(), "exact": true,
        "scalars": names});
    std::fs::write(directory.path().join("kinds.json"), told.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    service.stop();
}

/// Chunks of several frames that come filtered are written as they are; what comes of them later is put to them.
#[test]
fn chunks_of_several_frames_come_filtered() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut request = start("slabs");
    request.description.chunk = Some(vec![4, SIDE / 2, SIDE]);
    let client = Client::connect(options(&service, &request)).expect("in");
    let slab = |first: u64, frames: u32| {
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
    // Whole ones, also out of order; one of which a part comes, and the others plain, before and after it.
    for first in [4, 0, 12] {
        client.send(slab(first, 4), WAIT).expect("sent");
    }
    client.send(plain(11), WAIT).expect("sent");
    client.send(slab(8, 2), WAIT).expect("sent");
    client.send(plain(10), WAIT).expect("sent");
    client.send(slab(16, 3), WAIT).expect("sent");
    client.send(slab(20, 1), WAIT).expect("sent");
    // The last chunks do not become whole, and are durable none the less.
    client.settle(WAIT).expect("all durable");
    client.send(plain(19), WAIT).expect("sent");
    // Not from its beginning, not all new, bytes that nobody could put anything to, and such as are not framed.
    let (mut torn, mut cut) = (slab(24, 2), slab(28, 2));
    torn.parts[1][16..36].fill(0xff);
    cut.parts[1].truncate(20);
    for (number, out, words) in [
        (22, slab(22, 4), "begins at frame 20"),
        (20, slab(20, 2), "came before"),
        (24, torn, "cannot be read"),
        (28, cut, "filtered by `bslz4`: it is cut short"),
    ] {
        client.send(out, WAIT).expect("sent");
        client.settle(WAIT).expect("said");
        let notices = client.notices();
        assert!(notices.iter().any(|notice| notice.frame == number && notice.text.contains(words)), "{notices:?}");
    }
    let finished = client.finish(WAIT).expect("finished");
    let counts = (finished.frames, finished.received + finished.late, finished.missing, finished.duplicate);
    assert_eq!(counts, (21, 21, 0, 0), "{finished:?}");
    check(directory.path(), "slabs", &(0..21).collect::<Vec<u64>>(), true);
    service.stop();
}

/// Promise: what comes after later frames were published lands, frames and scalars, and frames are marked as late.
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
    // A hole in the middle of what readers have seen, by plain elements, by chunks, and by a message of two frames.
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
    assert_eq!(counts, (20, 17, 3, 0, 0), "{finished:?}");
    let told = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..20).collect::<Vec<u64>>(), "exact": true,
        "scalars": ["energy"], "late": late});
    std::fs::write(directory.path().join("late.json"), told.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    service.stop();
}

#[test]
fn a_source_belongs_to_one_client() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = StartRequest { absence_s: 1000.0, ..start("mine") };
    let first = Client::connect(options(&service, &request)).expect("in");
    first.send(plain(0), WAIT).expect("sent");
    first.settle(WAIT).expect("durable");
    let refused = |options: Options| match Client::connect(options) {
        Err(ClientError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in"),
    };
    let second = refused(options(&service, &request));
    assert_eq!(second.code, ErrorCode::Busy, "{second}");
    let other = StartRequest { file: "other.h5".into(), ..request.clone() };
    assert_eq!(refused(options(&service, &other)).code, ErrorCode::Busy);
    let source = refused(Options { source: 1, ..options(&service, &request) });
    assert!(source.text.contains("there is no source 1"), "{source}");
    let unknown = refused(Options { start: String::new(), ..options(&service, &start("unknown")) });
    assert_eq!(unknown.code, ErrorCode::Unknown);
    let taken = StartRequest { name: "taken".into(), ..request.clone() };
    let taken = refused(options(&service, &taken));
    assert!(taken.code == ErrorCode::Description && taken.text.contains("never writes over"), "{taken}");
    let mut bad = start("bad");
    bad.description.frame = vec![0];
    assert_eq!(refused(options(&service, &bad)).code, ErrorCode::Description);
    let outside = StartRequest { file: "/etc/run.h5".into(), ..start("outside") };
    assert!(refused(options(&service, &outside)).text.contains("is not beneath"));
    let scalars = Options { role: Role::Scalars, start: String::new(), ..options(&service, &request) };
    let scalars = Client::connect(scalars).expect("scalars are nobody's alone");
    scalars
        .scalars(Scalars { names: vec!["energy".into()], rows: vec![(0, vec![Some(0.0.into())])] }, WAIT)
        .expect("sent");
    drop(scalars);
    assert_eq!(first.finish(WAIT).expect("finished").received, 1);
    service.stop();
}

#[test]
fn a_token_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let service =
        Service::start(Config { token: Some("secret".into()), ..config(directory.path()) }).expect("a service");
    for token in ["", "secre", "secret2", "Secret"] {
        let given = Options { token: token.into(), ..options(&service, &start("tokened")) };
        match Client::connect(given) {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Token),
            _ => panic!("{token}"),
        }
    }
    let client = Client::connect(Options { token: "secret".into(), ..options(&service, &start("tokened")) });
    assert_eq!(client.expect("in").finish(WAIT).expect("finished").frames, 0);
    service.stop();
}

/// Bytes by hand.
struct Raw {
    socket: TcpStream,
    incoming: Incoming,
}

impl Raw {
    fn connect(service: &Service, start: &StartRequest, patience: Option<Duration>) -> Raw {
        let mut socket = TcpStream::connect(service.address()).expect("connected");
        socket.set_read_timeout(Some(WAIT)).expect("set");
        let hello = Hello {
            version: VERSION,
            newest: 0,
            role: Role::Frames,
            checksum: BodyChecksum::Crc32,
            levels: level_bit(Level::Durable),
            source: 0,
            connection: 0,
            connections: 1,
            patience,
            client: [9; 16],
            run: start.name.clone(),
            token: String::new(),
            start: serde_json::to_string(start).expect("JSON"),
        };
        say(&mut socket, &ToService::Hello(hello), &[], 0).expect("said");
        let incoming = Incoming::new(socket.try_clone().expect("a second handle"));
        let mut raw = Raw { socket, incoming };
        assert!(matches!(raw.next(), FromService::Welcome(_)));
        raw
    }

    fn frame(&mut self, out: &Outgoing, sum: Option<u64>) {
        let head = FrameHead {
            number: out.number,
            taken: 0,
            element: out.element,
            frames: 1,
            sides: out.sides.clone(),
            filter: String::new(),
            chunks: Vec::new(),
        };
        let sum = sum.unwrap_or_else(|| BodyChecksum::Crc32.of(&out.parts[0]));
        say(&mut self.socket, &ToService::Frame { head, again: false }, &[&out.parts[0]], sum).expect("said");
    }

    fn next(&mut self) -> FromService {
        self.incoming.from_service().expect("an answer").expect("not the end")
    }

    fn notice(&mut self) -> (NoticeCode, u64) {
        loop {
            match self.next() {
                FromService::Notice(notice) => return (notice.code, notice.frame),
                FromService::Ack(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn finish(&mut self) -> varve_detector::stream::FinishedHead {
        say(&mut self.socket, &ToService::End { complete: true, lost: 2 }, &[], 0).expect("said");
        loop {
            match self.next() {
                FromService::Finished(finished) => return finished,
                FromService::Ack(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

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
    // -1, read as unsigned, is no breach of the protocol.
    raw.frame(&Outgoing { number: u64::MAX, ..plain(5) }, None);
    assert_eq!(raw.notice(), (NoticeCode::Refused, u64::MAX));
    raw.frame(&plain(4), None);
    let finished = raw.finish();
    assert_eq!((finished.frames, finished.received + finished.late, finished.duplicate), (5, 2, 1), "{finished:?}");
    assert_eq!((finished.damaged, finished.missing, finished.dropped), (1, 1, 2), "{finished:?}");
    check(directory.path(), "bad", &[0, 2, 4], true);
    // How it ended stays to be seen, with the same counts everywhere.
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None };
    let listed = control.get("/runs", WAIT).expect("listed")["runs"][0].clone();
    assert_eq!(
        (&listed["state"], &listed["durable"], &listed["failure"]),
        (&json!("finished"), &json!(3), &json!(null))
    );
    let (_, scraped) = exchange(&service, "GET /metrics HTTP/1.0\r\n\r\n");
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

/// The status and the body of what HTTP answers to these bytes.
fn exchange(service: &Service, request: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(service.http().expect("HTTP")).expect("connected");
    socket.set_read_timeout(Some(WAIT)).expect("set");
    socket.write_all(request.as_bytes()).expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
}

/// A body that is too large is refused by what is said of it, before it comes, and at the latest where it becomes so.
#[test]
fn bodies_beyond_the_limit_are_refused_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let (status, text) = exchange(&service, "POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
    assert!(status == 413 && text.contains("more than 1048576 bytes"), "{status} {text}");
    let chunk = format!("{:x}\r\n{}\r\n", 64 << 10, " ".repeat(64 << 10));
    let head = "POST /runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (status, text) = exchange(&service, &format!("{head}{}1\r\n \r\n", chunk.repeat(16)));
    assert!(status == 413 && text.contains("more than 1048576 bytes"), "{status} {text}");
    service.stop();
}

#[test]
fn strangers_are_answered_and_let_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut stranger = TcpStream::connect(service.address()).expect("connected");
    stranger.set_read_timeout(Some(WAIT)).expect("set");
    std::io::Write::write_all(&mut stranger, &[b'x'; 40]).expect("said");
    match Incoming::new(stranger.try_clone().expect("a handle")).from_service() {
        Ok(Some(FromService::Error(refusal))) => assert_eq!(refusal.code, ErrorCode::Protocol),
        other => panic!("{other:?}"),
    }
    let mut second = TcpStream::connect(service.address()).expect("connected");
    tell(&mut second, &FromService::Pong).expect("said");
    let mut answer = Vec::new();
    second.set_read_timeout(Some(WAIT)).expect("set");
    second.read_to_end(&mut answer).expect("an answer and the end");
    assert!(!answer.is_empty());
    service.stop();
}

#[test]
fn a_client_that_vanishes_leaves_a_valid_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = StartRequest { absence_s: 0.3, ..start("gone") };
    let client = Client::connect(options(&service, &request)).expect("in");
    (0..5).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    drop(client);
    let run = service.shared().run("gone").expect("known");
    let ended = run.wait_ended(WAIT).expect("ended by itself");
    assert_eq!((ended.finished.received, ended.why.contains("were gone")), (5, true), "{ended:?}");
    check(directory.path(), "gone", &[0, 1, 2, 3, 4], true);
    service.stop();
}

#[test]
fn a_silent_connection_is_given_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let idle = Duration::from_millis(300);
    let service = Service::start(Config { idle, ..config(directory.path()) }).expect("a service");
    let mut raw = Raw::connect(&service, &start("silent"), None);
    match raw.next() {
        FromService::Error(refusal) => assert_eq!(refusal.code, ErrorCode::Vanished),
        other => panic!("{other:?}"),
    }
    service.stop();
}

#[test]
fn a_run_goes_on_after_the_service_was_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let address = service.address();
    let client = Client::connect(Options { connections: 2, ..options(&service, &start("on")) }).expect("in");
    (0..50).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    service.stop();
    (50..100).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let service = Service::start(Config { listen: address, ..config(directory.path()) }).expect("a service");
    let finished = client.finish(WAIT).expect("finished");
    assert_eq!((finished.received + finished.late, finished.duplicate), (100, 0), "{finished:?}");
    check(directory.path(), "on", &(0..100).collect::<Vec<u64>>(), true);
    service.stop();
    let service = Service::start(Config { listen: address, ..config(directory.path()) }).expect("a service");
    assert_eq!(service.shared().run("on").expect("remembered").ended_as().expect("ended").finished, finished);
    service.stop();
}

/// Promise: what the detector cannot wait for is dropped, counted, and said.
#[test]
fn frames_without_room_are_dropped_and_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(Config {
        settings: Settings { threads: 1, queue_bytes: 1, ..settings() },
        ..config(directory.path())
    })
    .expect("a service");
    let mut request = start("rush");
    request.description.filter = "zstd:19".parse().expect("a filter");
    let patience = Some(Duration::ZERO);
    let client = Client::connect(Options { patience, ..options(&service, &request) }).expect("in");
    (0..200).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("each is durable or dropped");
    let dropped = client.dropped();
    let finished = client.finish(WAIT).expect("finished");
    assert!(dropped > 0 && finished.dropped == dropped, "{dropped} {finished:?}");
    assert!(finished.received > 0 && finished.received + dropped == 200, "{dropped} {finished:?}");
    service.stop();
}

#[test]
fn runs_are_controlled_over_http() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(Config { token: Some("t".into()), ..config(directory.path()) }).expect("a service");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: Some("t".into()) };
    let get = |path: &str| control.get(path, WAIT);
    let refused = |asked: Result<serde_json::Value, ControlError>| match asked {
        Err(ControlError::Refused { code, text }) => (code, text),
        other => panic!("{other:?}"),
    };
    let stranger = Control { token: None, ..control.clone() };
    assert_eq!(refused(stranger.get("/runs", WAIT)).0, "token");
    assert_eq!(refused(get("/runs/none")).0, "unknown");
    let request = StartRequest { finish: false, ..start("steered") };
    let body = serde_json::to_value(&request).expect("JSON");
    let started = control.post("/runs", Some(body.clone()), WAIT).expect("started");
    assert_eq!(started["state"], "running");
    assert_eq!(refused(control.post("/runs", Some(body), WAIT)).0, "busy");
    let (code, text) = refused(control.post("/runs", Some(json!({"name": "x", "surprise": 1})), WAIT));
    assert!(code == "description" && text.contains("unknown field `surprise`"), "{code} {text}");
    let options = Options { token: "t".into(), start: String::new(), ..options(&service, &request) };
    let client = Client::connect(options).expect("in");
    (0..7).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let mut seen = get("/runs/steered/latest?wait_s=20").expect("watched");
    while seen["latest_durable"] != 6 {
        let after = seen["latest_durable"].as_u64().expect("a frame");
        seen = get(&format!("/runs/steered/latest?wait_s=20&after={after}")).expect("watched");
    }
    assert_eq!(get("/runs").expect("listed")["runs"][0]["durable"], 7);
    let stopped = control.post("/runs/steered/stop", None, WAIT).expect("stopped");
    assert_eq!((stopped["state"].as_str(), stopped["finished"]["received"].as_u64()), (Some("finished"), Some(7)));
    drop(client);
    check(directory.path(), "steered", &[0, 1, 2, 3, 4, 5, 6], true);
    let body = serde_json::to_value(start("given-up")).expect("JSON");
    control.post("/runs", Some(body), WAIT).expect("started");
    assert_eq!(control.post("/runs/given-up/abort", None, WAIT).expect("aborted")["state"], "aborted");
    service.stop();
}

/// The keys that such an object may have, which it names where there is another one.
fn taken<T: serde::de::DeserializeOwned + std::fmt::Debug>() -> BTreeSet<String> {
    let refused = serde_json::from_value::<T>(json!({"?": 0})).expect_err("refused").to_string();
    let (_, expected) = refused.split_once("expected").expect("what is known");
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every path of the description is served, and says what it says; of what may be asked for, every key is described.
#[test]
fn the_description_of_http_is_served_and_true() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None };
    let body = serde_json::to_value(start("any")).expect("JSON");
    let started = control.post("/runs", Some(body), WAIT).expect("started");
    let described = control.get("/openapi.json", WAIT).expect("served");
    for (path, item) in described["paths"].as_object().expect("paths") {
        let path = path.replace("{name}", "any");
        for method in item.as_object().expect("methods").keys().filter(|key| *key != "parameters") {
            let asked = match method.as_str() {
                "get" => control.get(&path, WAIT),
                _ => control.post(&path, None, WAIT),
            };
            match asked {
                Ok(_) => {}
                Err(ControlError::Refused { code, .. }) => {
                    assert_eq!((code.as_str(), &*path), ("description", "/runs"))
                }
                Err(ControlError::Unreachable { why, .. }) => {
                    assert!(path == "/metrics" && why.contains("not this service's"), "{path}: {why}");
                }
            }
        }
    }
    let schemas = &described["components"]["schemas"];
    let taken: [(&str, BTreeSet<String>); 7] = [
        ("Start", taken::<StartRequest>()),
        ("Description", taken::<Description>()),
        ("Region", taken::<Region>()),
        ("Plugin", taken::<PluginChoice>()),
        ("Nxmx", taken::<Nxmx>()),
        ("MaskRegion", taken::<MaskRegion>()),
        ("Goniometer", taken::<Goniometer>()),
    ];
    for (schema, taken) in taken {
        let described = schemas[schema]["properties"].as_object().expect("fields");
        assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), taken, "{schema}");
    }
    let known = schemas["Status"]["properties"].as_object().expect("fields");
    let told = started.as_object().expect("fields");
    assert_eq!(known.keys().collect::<Vec<_>>(), told.keys().collect::<Vec<_>>());
    service.stop();
}

/// Promise: a frame that came damaged and comes again, whole, before any higher one, is not late, whatever was committed
/// meanwhile.
#[test]
fn a_damaged_frame_that_comes_again_in_its_turn_is_not_late() {
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

/// Promise: a run is begun once; who asks for an ended one again is told what to do, and its own client hears its end.
#[test]
fn an_ended_run_is_not_begun_again_and_keeps_its_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = start("once");
    let mine = Options { client: Some([7; 16]), ..options(&service, &request) };
    let client = Client::connect(mine.clone()).expect("in");
    (0..9).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let finished = client.finish(WAIT).expect("finished");
    let refused = |service: &Service, body: &StartRequest| {
        let control = Control { address: service.http().expect("HTTP").to_string(), token: None };
        match control.post("/runs", Some(serde_json::to_value(body).expect("JSON")), WAIT) {
            Err(ControlError::Refused { code, text }) => (code, text),
            other => panic!("{other:?}"),
        }
    };
    let check = |service: &Service| {
        let (code, text) = refused(service, &request);
        assert!(code == "ended" && text.contains("once.h5 is there; give another name"), "{code} {text}");
        match Client::connect(options(service, &request)) {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Ended, "{refusal}"),
            other => panic!("{:?}", other.err()),
        }
        let again = Client::connect(Options { address: service.address().to_string(), ..mine.clone() }).expect("in");
        assert_eq!(again.finish(WAIT).expect("finished"), finished);
        let status = service.shared().run("once").expect("known").status();
        let Progress { taken, written, durable, published, .. } = status.progress;
        assert_eq!((taken, written, durable, published), (9, 9, 9, 9), "{status:?}");
        assert_eq!(status.received_bytes, 9 * SIDE * SIDE * 2);
    };
    check(&service);
    service.stop();
    let service = Service::start(config(directory.path())).expect("a service");
    check(&service);
    // Its file moved away, the same may be recorded again.
    std::fs::rename(directory.path().join("once.h5"), directory.path().join("kept.h5")).expect("moved");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None };
    let started = control.post("/runs", Some(serde_json::to_value(&request).expect("JSON")), WAIT).expect("started");
    assert_eq!(started["state"], "running");
    service.stop();
}

/// Promise: regions of one frame from several sources meet in one dataset; one that does not come reads as the fill value,
/// and its frame is partial. Each source is told of its own regions only, also by a service that was started again.
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
    let connect =
        |source: u16| Client::connect(Options { source, connections: 2, ..options(&service, &request) }).expect("in");
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
    assert_eq!(clients[0].acknowledged(Level::Durable).len(), 10);
    assert!(!clients[1].acknowledged(Level::Durable).contains(3), "it never brought it");
    let counts = |service: &Service| {
        let Progress { taken, written, durable, .. } = service.shared().run("mosaic").expect("known").status().progress;
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
    assert_eq!((ended[0].received + ended[0].late, counts(&service)), (18, (20, 20, 20)), "{:?}", ended[0]);
    service.stop();
    let replay = Replay::open(&directory.path().join("mosaic.h5"), None).expect("a file");
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
