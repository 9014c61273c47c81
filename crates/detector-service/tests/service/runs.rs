//! Runs survive the service, and their results are kept.

use super::{SIDE, WAIT, check, config, options, plain, start};
use rustix::fs::FlockOperation;
use std::path::Path;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{Fill, Region};
use varve_detector_service::{Config, EndKind, Joining, Service, ServiceError, StartRequest, WriterShareOptions};
use varve_detector_stream::ErrorCode;
use varve_detector_stream::client::{Client, ClientError, ClientOptions, Outgoing};
use varve_detector_stream::control::{Control, ControlError};
use varve_detector_writer::WriterProgress;
use varve_env::flock::Locked;

#[test]
fn run_resumes_after_service_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let address = service.address();
    let client = Client::connect(ClientOptions { connections: 2, ..options(&service, &start("on")) }).expect("in");
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

/// Makes a run with ten durable frames, and ends its service and client.
fn leave_a_run(directory: &Path, name: &str) {
    let service = Service::start(config(directory)).expect("a service");
    let client = Client::connect(options(&service, &start(name))).expect("in");
    (0..10).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    service.stop();
}

/// Promise: a run whose file is missing at the start of the service keeps its journal and is reported as waiting. It
/// continues with all its frames once the file is back, also without a restart.
#[test]
fn run_waits_for_its_missing_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, aside) = (directory.path().join("away.h5"), directory.path().join("aside"));
    leave_a_run(directory.path(), "away");
    std::fs::rename(&file, &aside).expect("moved");
    let service = Service::start(config(directory.path())).expect("a service");
    let waiting = service.shared().run("away").expect("known").status();
    assert!(
        waiting.state == "waiting" && waiting.why.as_ref().is_some_and(|why| why.contains("put it back")),
        "{waiting:?}"
    );
    let now = ClientOptions { retry: Duration::ZERO, ..options(&service, &start("away")) };
    let refused = Client::connect(now).err().expect("not taken up");
    assert!(refused.to_string().contains("cannot resume the run yet"), "{refused}");
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

/// Promise: a run that was recovered without a service, and its file moved away, has ended: no new run takes its place.
#[test]
fn recovered_and_moved_run_has_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, aside) = (directory.path().join("archived.h5"), directory.path().join("aside.h5"));
    leave_a_run(directory.path(), "archived");
    varve_detector_file::recover::recover(&file).expect("recovered");
    std::fs::rename(&file, &aside).expect("moved");
    for _ in 0..2 {
        let service = Service::start(config(directory.path())).expect("a service");
        assert!(service.shared().run("archived").is_none() && !file.exists());
        service.stop();
    }
}

/// Promise: a run whose file is finished, although its record does not say so, has ended. A client that connects to it
/// gets that reply, and its status stays. This happens if the service was killed between the two, or the file was
/// recovered in the meantime.
#[test]
fn a_run_whose_file_is_finished_has_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    leave_a_run(directory.path(), "whole");
    varve_detector_file::recover::recover(&directory.path().join("whole.h5")).expect("recovered");
    for _ in 0..2 {
        let service = Service::start(config(directory.path())).expect("a service");
        let ended = service.shared().run("whole").expect("known").ended_as().expect("ended");
        assert_eq!((ended.how, ended.finished.received, ended.frames), (EndKind::Finished, 10, vec![(0, 10)]));
        match Client::connect(options(&service, &start("whole"))) {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Ended, "{refusal}"),
            other => panic!("{:?}", other.err()),
        }
        service.stop();
    }
}

/// Promise: a run that cannot be resumed can be aborted. Recovery completes its file when the cause is gone.
#[test]
fn waiting_run_can_be_aborted() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("held.h5");
    leave_a_run(directory.path(), "held");
    let other = std::fs::File::open(&file).expect("the file");
    let other = Locked::take(other, FlockOperation::NonBlockingLockExclusive).expect("locked as by a writer");
    let service = Service::start(config(directory.path())).expect("a service");
    let run = service.shared().run("held").expect("known");
    assert!(run.awaits().is_some_and(|why| why.contains("has the file open for writing")));
    service.shared().end(&run, EndKind::Finished);
    let status = run.status();
    let why = status.why.expect("a reason");
    assert!(status.state == "failed" && why.contains("varve record recover"), "{why}");
    drop(other);
    service.stop();
    let service = Service::start(config(directory.path())).expect("a service");
    assert!(service.shared().run("held").expect("known").ended_as().is_some(), "it stays given up");
    service.stop();
    let recovered = varve_detector_file::recover::recover(&file).expect("recovered");
    assert_eq!(recovered.counts.received, 10, "{recovered:?}");
}

/// Promise: a client that connects to an aborted run gets its result, for any source, also from a restarted service.
#[test]
fn every_source_is_notified_of_an_aborted_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, record) = (directory.path().join("halves.h5"), directory.path().join(".varve-record/halves.json"));
    let mut request = start("halves");
    request.description.chunk = None;
    let region = |row: u64| Region { offset: vec![row, 0], shape: vec![SIDE / 2, SIDE] };
    request.description.sources = vec![region(0), region(SIDE / 2)];
    let half = |number: u64| Outgoing {
        sides: vec![SIDE as u32 / 2, SIDE as u32],
        parts: vec![vec![7; (SIDE * SIDE) as usize]],
        ..plain(number)
    };
    let service = Service::start(config(directory.path())).expect("a service");
    let client = Client::connect(options(&service, &request)).expect("in");
    client.send(half(0), WAIT).expect("sent");
    client.settle(WAIT).expect("durable");
    service.stop();
    drop(client);
    std::fs::rename(&file, directory.path().join("aside")).expect("moved");
    let service = Service::start(config(directory.path())).expect("a service");
    let run = service.shared().run("halves").expect("known");
    assert!(run.awaits().is_some());
    service.shared().end(&run, EndKind::Finished);
    assert_eq!(run.ended_as().expect("given up").others.len(), 1, "the other source's frames");
    service.stop();
    // An older service recorded only the frames of the first source.
    let mut noted: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).expect("read")).expect("JSON");
    for of_before in [false, true] {
        if of_before {
            noted["ended"].as_object_mut().expect("an end").remove("others").expect("of the other source");
            std::fs::write(&record, noted.to_string()).expect("written");
        }
        let service = Service::start(config(directory.path())).expect("a service");
        let run = service.shared().run("halves").expect("known");
        for source in [0, 1, 1] {
            let (client, retry) = (Some([source as u8; 16]), Duration::ZERO);
            let late =
                ClientOptions { source, client, retry, ..ClientOptions::new(&service.address().to_string(), "halves") };
            match Client::connect(late).and_then(|client| client.finish(WAIT)) {
                Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Failed, "{refusal}"),
                other => panic!("{other:?}"),
            }
            let deadline = Instant::now() + WAIT;
            while run.status().connections > 0 {
                assert!(Instant::now() < deadline, "{:?}", run.status());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        service.stop();
    }
}

/// Promise: if the clients of a run do not return after a restart of the service, the run is finished with the frames
/// it has.
#[test]
fn absent_clients_are_waited_for_up_to_the_runs_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = StartRequest { absence_s: 1.0, ..start("gone") };
    let client = Client::connect(options(&service, &request)).expect("in");
    (0..10).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    // A run whose client has not sent anything yet, and a run requested by another process.
    let early = StartRequest { absence_s: 1.0, ..start("early") };
    let idle = Client::connect(options(&service, &early)).expect("in");
    service.shared().begin(StartRequest { absence_s: 1.0, ..start("asked") }).expect("begun");
    service.stop();
    drop((client, idle));
    let service = Service::start(config(directory.path())).expect("a service");
    let ended = service.shared().run("gone").expect("taken up").wait_ended(WAIT).expect("it ends by itself");
    assert!(ended.how == EndKind::Finished && ended.why.contains("its clients were disconnected"), "{ended:?}");
    assert_eq!(ended.finished.received, 10);
    let early = service.shared().run("early").expect("taken up").wait_ended(WAIT).expect("it ends by itself");
    assert!(early.how == EndKind::Finished && early.why.contains("its clients were disconnected"), "{early:?}");
    assert!(service.shared().run("asked").expect("taken up").is_running());
    service.stop();
}

/// Promise: a joined process reconnects to the service that owns the run after each restart, also while it has nothing
/// to report. It learns of the run's end.
#[test]
fn idle_writer_share_reconnects() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let (address, request) = (service.address(), start("shared"));
    service.shared().begin(request.clone()).expect("begun");
    let coordinator = WriterShareOptions {
        address: address.to_string(),
        run: request.name,
        token: String::new(),
        tls: None,
        source: 0,
        retry: WAIT,
    };
    let joining = Joining { coordinator, sources: 1 };
    let share = Service::join(Config { http: None, ..config(directory.path()) }, joining).expect("joined");
    let client = Client::connect(ClientOptions::new(&share.address().to_string(), "shared")).expect("in");
    (0..10).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    service.stop();
    let again = || Service::start(Config { listen: address, ..config(directory.path()) }).expect("a service");
    let connected = |service: &Service| {
        let deadline = Instant::now() + WAIT;
        while service.shared().run("shared").expect("taken up").status().connections == 0 {
            assert!(Instant::now() < deadline, "the share does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let service = again();
    connected(&service);
    service.stop();
    let service = again();
    connected(&service);
    let run = service.shared().run("shared").expect("taken up");
    let ended = run.end(EndKind::Finished, "");
    assert_eq!((ended.how, ended.finished.received), (EndKind::Finished, 10), "{ended:?}");
    assert_eq!(client.finish(WAIT).expect("it hears of the end").received, 10);
    check(directory.path(), "shared", &(0..10).collect::<Vec<u64>>(), true);
    share.stop();
    service.stop();
}

/// Promise: a run starts once. A second request for an ended run gets advice, and the run's own client gets its result.
#[test]
fn ended_run_cannot_restart_and_keeps_its_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = start("once");
    let mine = ClientOptions { client: Some([7; 16]), ..options(&service, &request) };
    let client = Client::connect(mine.clone()).expect("in");
    (0..9).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let finished = client.finish(WAIT).expect("finished");
    let refused = |service: &Service, body: &StartRequest| {
        let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
        match control.post("/runs", Some(serde_json::to_value(body).expect("JSON")), WAIT) {
            Err(ControlError::Refused { code, text }) => (code, text),
            other => panic!("{other:?}"),
        }
    };
    let check = |service: &Service| {
        let (code, text) = refused(service, &request);
        assert!(code == "ended" && text.contains("once.h5 exists; give another name"), "{code} {text}");
        // Another run under this name is refused too, because it would replace the first one's status.
        let mut other = StartRequest { file: "other.h5".into(), ..request.clone() };
        other.description.fill = Some(Fill::Whole(1));
        assert_eq!(refused(service, &other).0, "ended");
        for request in [&request, &other] {
            match Client::connect(options(service, request)) {
                Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Ended, "{refusal}"),
                other => panic!("{:?}", other.err()),
            }
        }
        let again =
            Client::connect(ClientOptions { address: service.address().to_string(), ..mine.clone() }).expect("in");
        assert_eq!(again.finish(WAIT).expect("finished"), finished);
        let status = service.shared().run("once").expect("known").status();
        let WriterProgress { taken, written, durable, published, .. } = status.progress;
        assert_eq!((taken, written, durable, published), (9, 9, 9, 9), "{status:?}");
        assert_eq!(status.received_bytes, 9 * SIDE * SIDE * 2);
    };
    check(&service);
    service.stop();
    let service = Service::start(config(directory.path())).expect("a service");
    check(&service);
    // After its file is moved away, the same run may be recorded again.
    std::fs::rename(directory.path().join("once.h5"), directory.path().join("kept.h5")).expect("moved");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
    let started = control.post("/runs", Some(serde_json::to_value(&request).expect("JSON")), WAIT).expect("started");
    assert_eq!(started["state"], "running");
    service.stop();
}

/// Promise: a directory has one service. A second one is refused and never touches the runs of the first.
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

/// Promise: a client that sends frames while its run is aborted gets that error, at any stage of the run's end.
#[test]
fn sender_is_notified_of_an_aborted_run() {
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
        run.end(EndKind::Aborted, "");
        brings.join().expect("no panic").expect("an error")
    });
    assert!(heard.to_string().contains("the run was aborted"), "{heard}");
    drop(client);
    service.stop();
}
