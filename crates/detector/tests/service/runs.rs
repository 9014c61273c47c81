//! Runs outlive the service, and their ends are kept.

use super::{SIDE, WAIT, check, config, options, plain, start};
use std::time::Duration;
use varve_detector::client::{Client, ClientError, Options};
use varve_detector::control::{Control, ControlError};
use varve_detector::description::Fill;
use varve_detector::service::{Config, How, Service, ServiceError, StartRequest};
use varve_detector::stream::ErrorCode;
use varve_detector::writer::Progress;

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
    assert_eq!((finished.received, finished.duplicate), (100, 0), "{finished:?}");
    check(directory.path(), "on", &(0..100).collect::<Vec<u64>>(), true);
    service.stop();
    let service = Service::start(Config { listen: address, ..config(directory.path()) }).expect("a service");
    assert_eq!(service.shared().run("on").expect("remembered").ended_as().expect("ended").finished, finished);
    service.stop();
}

/// Promise: a run whose file is away while the service starts keeps its journal, is said to wait, and goes on with all its
/// frames once the file is back, also while the service is there.
#[test]
fn a_run_whose_file_is_away_waits_for_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, aside) = (directory.path().join("away.h5"), directory.path().join("aside"));
    let service = Service::start(config(directory.path())).expect("a service");
    let client = Client::connect(options(&service, &start("away"))).expect("in");
    (0..10).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    service.stop();
    drop(client);
    std::fs::rename(&file, &aside).expect("moved");
    let service = Service::start(config(directory.path())).expect("a service");
    let waiting = service.shared().run("away").expect("known").status();
    assert!(
        waiting.state == "waiting" && waiting.why.as_ref().is_some_and(|why| why.contains("put it back")),
        "{waiting:?}"
    );
    let now = Options { retry: Duration::ZERO, ..options(&service, &start("away")) };
    let refused = Client::connect(now).err().expect("not taken up");
    assert!(refused.to_string().contains("cannot be taken up yet"), "{refused}");
    let left = service.stop();
    assert!(!file.exists() && left.len() == 1 && left[0].trouble.is_some(), "{left:?}");
    let service = Service::start(config(directory.path())).expect("a service");
    std::fs::rename(&aside, &file).expect("put back");
    let client = Client::connect(options(&service, &start("away"))).expect("in");
    let finished = client.finish(WAIT).expect("finished");
    assert_eq!(finished.received, 10, "{finished:?}");
    check(directory.path(), "away", &(0..10).collect::<Vec<u64>>(), true);
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
        // Nor is another one begun under its name, which would take the place of its status.
        let mut other = StartRequest { file: "other.h5".into(), ..request.clone() };
        other.description.fill = Some(Fill::Whole(1));
        assert_eq!(refused(service, &other).0, "ended");
        for request in [&request, &other] {
            match Client::connect(options(service, request)) {
                Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Ended, "{refusal}"),
                other => panic!("{:?}", other.err()),
            }
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

/// Promise: a directory has one service; a second one is refused, whatever becomes of the first its runs are not touched.
#[test]
fn a_directory_has_one_service() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let client = Client::connect(options(&service, &start("first"))).expect("in");
    (0..20).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let refused = Service::start(config(directory.path())).err().expect("there is one");
    assert!(matches!(refused, ServiceError::Held { .. }), "{refused}");
    let words = format!("process {} on host", std::process::id());
    assert!(refused.to_string().contains(&words) && refused.to_string().contains("stop it first"), "{refused}");
    (20..40).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let finished = client.finish(WAIT).expect("finished");
    assert_eq!((finished.received, finished.duplicate), (40, 0), "{finished:?}");
    service.stop();
    Service::start(config(directory.path())).expect("the next one").stop();
}

/// Promise: who brings frames while a run is aborted hears that it was, at whatever moment of its end.
#[test]
fn who_brings_hears_that_a_run_was_aborted() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let client = Client::connect(options(&service, &start("given-up"))).expect("in");
    let run = service.shared().run("given-up").expect("known");
    let heard = std::thread::scope(|scope| {
        let brings = scope.spawn(|| (0..u64::MAX).find_map(|number| client.send(plain(number), WAIT).err()));
        let deadline = std::time::Instant::now() + WAIT;
        while run.status().progress.taken < 20 {
            assert!(std::time::Instant::now() < deadline, "{:?}", run.status());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        run.end(How::Aborted, "");
        brings.join().expect("no panic").expect("an error")
    });
    assert!(heard.to_string().contains("the run was aborted"), "{heard}");
    drop(client);
    service.stop();
}
