//! Scalars, of every kind, over connections that break and services that are killed.

use super::common::cutter::Cutter;
use super::{SIDE, WAIT, common, config, options, plain, settings, start};
use serde_json::json;
use std::net::TcpListener;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{Scalar, ScalarColumn, ScalarKind};
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_file::recover::recover;
use varve_detector_file::{journal, run_files};
use varve_detector_service::{Config, EndKind, Service};
use varve_detector_stream::answers::NO_FRAME;
use varve_detector_stream::client::{Client, ClientOptions, Scalars};
use varve_detector_stream::link::{Incoming, send_to_client};
use varve_detector_stream::scalars::ScalarRow;
use varve_detector_stream::{BodyChecksum, FinishedHead, FromService, NoticeCode, StreamWelcome, ToService};
use varve_detector_writer::Settings;

/// Texts and integers of 64 bits arrive unchanged. Empty values keep the earlier ones.
#[test]
fn scalars_of_every_kind_arrive_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut request = start("kinds");
    request.description.scalars = vec!["energy".into()];
    for (name, kind) in [
        ("steps", ScalarKind::Integer),
        ("pulse", ScalarKind::Unsigned),
        ("sample", ScalarKind::Text(8)),
        // A column may have another kind that can hold its values.
        ("wide", ScalarKind::Float),
    ] {
        request.description.scalars.push(ScalarColumn { name: name.into(), kind });
    }
    let client = Client::connect(options(&service, &request)).expect("in");
    for number in 0..40 {
        client.send(plain(number), WAIT).expect("sent");
    }
    let names = ["energy", "steps", "pulse", "sample", "wide"].map(str::to_owned).to_vec();
    let send = |rows: Vec<ScalarRow>| client.scalars(Scalars { names: names.clone(), rows }, WAIT);
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
    // A value that the run's column cannot hold is refused by name, and the client continues.
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
    let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..40).collect::<Vec<u64>>(), "exact": true,
        "scalars": names});
    std::fs::write(directory.path().join("kinds.json"), reported.to_string()).expect("written");
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
    service.stop();
}

fn energies(numbers: std::ops::Range<u64>) -> Scalars {
    let rows = numbers.map(|number| (number, vec![Some((number as f64 * 10.0).into())]));
    Scalars { names: vec!["energy".into()], rows: rows.collect() }
}

/// Promise: scalars are sent again after a broken connection, as frames are.
#[test]
fn scalars_outlive_broken_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    // The cuts fall within a HELLO and a WELCOME, within a message of scalars, and within one of frames.
    for (number, (budget, connections)) in [(700, 1), (5_003, 1), (50_021, 2)].into_iter().enumerate() {
        let request = start(&format!("cut-{number}"));
        let cutter = Cutter::new(service.address(), budget, 6);
        let address = cutter.address.to_string();
        let client =
            Client::connect(ClientOptions { address, connections, ..options(&service, &request) }).expect("in");
        for number in 0..100 {
            client.scalars(energies(number..number + 1), WAIT).expect("sent");
            client.send(plain(number), WAIT).expect("sent");
        }
        client.settle(WAIT).expect("all durable");
        assert!(cutter.cuts() < 6, "no connection broke");
        let finished = client.finish(WAIT).expect("finished");
        assert_eq!((finished.received, finished.duplicate), (100, 0), "{finished:?}");
        let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": (0..100).collect::<Vec<u64>>(),
            "exact": true, "scalars": ["energy"]});
        std::fs::write(directory.path().join(format!("cut-{number}.json")), reported.to_string()).expect("written");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "3");
    service.stop();
}

/// Promise: once a client has settled, its scalars are in the journal, which survives the service, even without any
/// frame.
#[test]
fn confirmed_scalars_survive_service_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = Settings { commit_interval: Duration::from_secs(3600), ..settings() };
    let service = Service::start(Config { settings, ..config(directory.path()) }).expect("a service");
    let client = Client::connect(options(&service, &start("kept"))).expect("in");
    client.scalars(energies(0..7), WAIT).expect("sent");
    client.scalars(energies(7..9), WAIT).expect("sent");
    client.settle(WAIT).expect("in the journal");
    let read = journal::read(&run_files::journal_of(&directory.path().join("kept.h5"))).expect("a journal");
    let frame = |entry: &JournalEntry| match entry {
        JournalEntry::Scalars { frame, .. } => Some(*frame),
        _ => None,
    };
    assert!(read.entries.iter().filter_map(frame).eq(0..9), "{:?}", read.entries);
    client.finish(WAIT).expect("finished");
    service.stop();
}

/// Promise: scalars of frames after the last received one are kept, and those frames are missing. This also holds for
/// an aborted run, and for a recovered one.
#[test]
fn scalars_of_missing_frames_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    for name in ["ended", "aborted"] {
        let client = Client::connect(options(&service, &start(name))).expect("in");
        (0..3).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
        client.scalars(energies(0..6), WAIT).expect("sent");
        client.settle(WAIT).expect("in the journal");
        if name == "ended" {
            let finished = client.finish(WAIT).expect("finished");
            assert_eq!((finished.frames, finished.received, finished.missing), (6, 3, 3), "{finished:?}");
        } else {
            let file = directory.path().join("aborted.h5");
            for (from, to) in
                [(file.clone(), "copy.h5".into()), (run_files::journal_of(&file), "copy.h5.journal".into())]
            {
                std::fs::copy(from, directory.path().join::<std::path::PathBuf>(to)).expect("copied");
            }
            service.shared().run(name).expect("under way").end(EndKind::Aborted, "");
        }
    }
    let recovered = recover(&directory.path().join("copy.h5")).expect("recovered");
    assert_eq!((recovered.counts.frames, recovered.counts.missing), (6, 3), "{recovered:?}");
    for name in ["ended", "aborted", "copy"] {
        let reported = json!({"frame": [SIDE, SIDE], "fill": 4321, "acknowledged": [0, 1, 2], "exact": true, "rows": 6,
            "scalars": ["energy"], "scalars_of": [0, 1, 2, 3, 4, 5]});
        std::fs::write(directory.path().join(format!("{name}.json")), reported.to_string()).expect("written");
    }
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "3");
    service.stop();
}

/// Promise: scalars whose bytes were changed in transit are sent again.
#[test]
fn damaged_scalars_are_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let service = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        socket.set_read_timeout(Some(WAIT)).expect("set");
        let mut incoming = Incoming::new(socket.try_clone().expect("a handle"));
        let mut came = Vec::new();
        loop {
            let (header, message) = incoming.from_client().expect("a message").expect("not the end");
            let mut body = Vec::new();
            assert!(incoming.body(&header, BodyChecksum::Xxh3, &mut body).expect("a body"));
            let mut answer = |message: FromService| send_to_client(&mut socket, &message).expect("told");
            match message {
                ToService::Hello(hello) => answer(FromService::Welcome(StreamWelcome {
                    version: hello.version.max(u16::from(hello.newest)),
                    idle: WAIT,
                    body_bytes_max: 1 << 20,
                    frames: 0,
                })),
                ToService::Scalars(head) => {
                    came.extend(head.rows(&body).map(|(number, _)| number));
                    if came.len() == 1 {
                        answer(FromService::Notice(NoticeCode::Damaged.of(NO_FRAME, "its checksum differs")));
                    }
                }
                ToService::Ping { .. } => answer(FromService::Pong),
                ToService::End { .. } => {
                    answer(FromService::Finished(FinishedHead::default()));
                    return came;
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let client = Client::connect(ClientOptions::new(&address.to_string(), "damaged")).expect("in");
    client.scalars(energies(5..6), WAIT).expect("sent");
    client.finish(WAIT).expect("finished");
    assert_eq!(service.join().expect("no panic"), [5, 5]);
}
