//! Access of clients, and the service's handling of misbehaving ones.

use super::raw::Raw;
use super::{WAIT, check, config, options, plain, start};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_hdf5::ElementType;
use varve_detector_service::{Config, EndKind, Service, StartRequest};
use varve_detector_stream::client::{Client, ClientError, ClientOptions, Scalars};
use varve_detector_stream::link::{Incoming, send_to_client};
use varve_detector_stream::{ErrorCode, FromService, Header, StreamRole};

#[test]
fn a_source_belongs_to_one_client() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let request = StartRequest { absence_s: 1000.0, ..start("mine") };
    let first = Client::connect(options(&service, &request)).expect("in");
    first.send(plain(0), WAIT).expect("sent");
    first.settle(WAIT).expect("durable");
    let refused = |options: ClientOptions| match Client::connect(options) {
        Err(ClientError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in"),
    };
    let second = refused(options(&service, &request));
    assert_eq!(second.code, ErrorCode::Busy, "{second}");
    let other = StartRequest { file: "other.h5".into(), ..request.clone() };
    assert_eq!(refused(options(&service, &other)).code, ErrorCode::Busy);
    let source = refused(ClientOptions { source: 1, ..options(&service, &request) });
    assert!(source.text.contains("there is no source 1"), "{source}");
    let nobodys = refused(ClientOptions { source: 1, ..options(&service, &start("nobodys")) });
    assert!(nobodys.text.contains("there is no source 1"), "{nobodys}");
    assert!(service.shared().run("nobodys").is_none() && !directory.path().join("nobodys.h5").exists());
    let unknown = refused(ClientOptions { start: String::new(), ..options(&service, &start("unknown")) });
    assert_eq!(unknown.code, ErrorCode::Unknown);
    let taken = StartRequest { name: "taken".into(), ..request.clone() };
    let taken = refused(options(&service, &taken));
    assert!(taken.code == ErrorCode::Description && taken.text.contains("never overwrites"), "{taken}");
    let mut bad = start("bad");
    bad.description.frame = vec![0];
    assert_eq!(refused(options(&service, &bad)).code, ErrorCode::Description);
    let outside = StartRequest { file: "/etc/run.h5".into(), ..start("outside") };
    assert!(refused(options(&service, &outside)).text.contains("is not beneath"));
    let scalars = ClientOptions { role: StreamRole::Scalars, start: String::new(), ..options(&service, &request) };
    let scalars = Client::connect(scalars).expect("scalars are nobody's alone");
    scalars
        .scalars(Scalars { names: vec!["energy".into()], rows: vec![(0, vec![Some(0.0.into())])] }, WAIT)
        .expect("sent");
    drop(scalars);
    assert_eq!(first.finish(WAIT).expect("finished").received, 1);
    service.stop();
}

#[test]
fn missing_token_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let service =
        Service::start(Config { token: Some("secret".into()), ..config(directory.path()) }).expect("a service");
    for token in ["", "secre", "secret2", "Secret"] {
        let given = ClientOptions { token: token.into(), ..options(&service, &start("tokened")) };
        match Client::connect(given) {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Token),
            _ => panic!("{token}"),
        }
    }
    let client = Client::connect(ClientOptions { token: "secret".into(), ..options(&service, &start("tokened")) });
    assert_eq!(client.expect("in").finish(WAIT).expect("finished").frames, 0);
    service.stop();
}

#[test]
fn unknown_protocols_get_a_reply_and_are_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let mut unauthenticated = TcpStream::connect(service.address()).expect("connected");
    unauthenticated.set_read_timeout(Some(WAIT)).expect("set");
    unauthenticated.write_all(&[b'x'; 40]).expect("said");
    match Incoming::new(unauthenticated.try_clone().expect("a handle")).from_service() {
        Ok(Some(FromService::Error(refusal))) => assert_eq!(refusal.code, ErrorCode::Protocol),
        other => panic!("{other:?}"),
    }
    let mut second = TcpStream::connect(service.address()).expect("connected");
    send_to_client(&mut second, &FromService::Pong).expect("said");
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
    assert_eq!((ended.finished.received, ended.why.contains("were disconnected")), (5, true), "{ended:?}");
    check(directory.path(), "gone", &[0, 1, 2, 3, 4], true);
    service.stop();
}

#[test]
fn silent_connection_is_closed() {
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

/// Promise: a client gives up a silent service, which accepts connections and may be stopped, about as soon as an
/// unreachable one, and reports it.
#[test]
fn client_gives_up_on_a_silent_service() {
    let stopped = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = stopped.local_addr().expect("it has an address").to_string();
    let begun = Instant::now();
    match Client::connect(ClientOptions { retry: Duration::from_secs(1), ..ClientOptions::new(&address, "run") }) {
        Err(error @ ClientError::Unreachable { .. }) => {
            assert!(error.to_string().contains("no reply for 5s"), "{error}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in"),
    }
    // Far less than the wait with a longer `retry`.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Promise: a client without a free connection waits for one as long as for an unreachable service. If none becomes
/// free, it reports that; otherwise it connects.
#[test]
fn client_waits_for_free_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let first = Client::connect(ClientOptions { connections: 16, ..options(&service, &start("first")) }).expect("in");
    let second = options(&service, &start("second"));
    match Client::connect(ClientOptions { retry: Duration::from_millis(300), ..second.clone() }) {
        Err(error @ ClientError::Full { .. }) => {
            let printed = error.to_string();
            assert!(printed.contains("no free connection to") && printed.contains("--connections-max"), "{printed}");
        }
        other => panic!("{:?}", other.err()),
    }
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|source| {
                let request = StartRequest { sources: 3, ..start("second") };
                let mine = ClientOptions { source, connections: 4, retry: WAIT, ..options(&service, &request) };
                scope.spawn(move || {
                    Client::connect(mine).map(|client| client.send(plain(u64::from(source)), WAIT).map(|()| client))
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(first.finish(WAIT).expect("finished").frames, 0);
        for waiting in waiting {
            let client = waiting.join().expect("no panic").expect("let in").expect("sent");
            client.settle(WAIT).expect("durable");
        }
    });
    service.stop();
}

/// Promise: a whole HELLO has one deadline, so that a client that sends it byte by byte cannot hold a connection
/// indefinitely.
#[test]
fn slow_hello_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let idle = Duration::from_millis(500);
    let service = Service::start(Config { idle, ..config(directory.path()) }).expect("a service");
    let mut dribbler = TcpStream::connect(service.address()).expect("connected");
    let mut ear = Incoming::new(dribbler.try_clone().expect("a handle"));
    let heard = std::thread::spawn(move || ear.from_service());
    // Longer than any HELLO, and never a whole header at once.
    let header = Header { kind: 1, flags: 0, head_bytes: 100_000, body_bytes: 0, checksum: 0, head_crc: 0 }.encode();
    let bytes = header.into_iter().chain(std::iter::repeat_n(1, 100_000));
    let pace = Duration::from_millis(20);
    let ended = bytes.take(3000).find_map(|byte| {
        std::thread::sleep(pace);
        dribbler.write_all(&[byte]).err().map(drop).or_else(|| heard.is_finished().then_some(()))
    });
    assert!(ended.is_some(), "it could go on for a minute");
    match heard.join().expect("no panic") {
        Ok(Some(FromService::Error(refusal))) => {
            assert!(
                refusal.code == ErrorCode::Vanished && refusal.text.contains("HELLO did not arrive in time"),
                "{refusal}"
            );
        }
        // The client's own bytes may have aborted the connection before the answer.
        Err(_) | Ok(None) => {}
        other => panic!("{other:?}"),
    }
    service.stop();
}

/// Promise: the connections of a client end in any order, each for itself or for all. The run is finished when each has
/// ended, and one of them for all.
#[test]
fn connections_end_one_after_the_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    for (name, all_first) in [("last", false), ("first", true)] {
        let request = start(name);
        let mut connections = [0, 1].map(|number| Raw::one_of(&service, &request, None, (number, 2)));
        for (number, connection) in (0..).zip(&mut connections) {
            (0..5).for_each(|frame| connection.frame(&plain(2 * frame + number), None));
        }
        let [one, other] = &mut connections;
        one.end(all_first, 0);
        if !all_first {
            // It sends more frames, and ends again.
            one.finished();
            *one = Raw::one_of(&service, &request, None, (0, 2));
            one.frame(&plain(10), None);
            one.end(false, 0);
            one.finished();
        }
        assert!(service.shared().run(name).expect("known").is_running());
        other.end(!all_first, 0);
        let frames = if all_first { 10 } else { 11 };
        assert_eq!(if all_first { one.finished() } else { other.finished() }.received, frames, "{name}");
        check(directory.path(), name, &(0..frames).collect::<Vec<u64>>(), true);
    }
    service.stop();
}

/// Promise: a run does not wait for announced connections that never arrive, nor for a client that has announced its
/// end and disconnected.
#[test]
fn finished_client_is_not_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let ends = |name: &str| {
        let run = service.shared().run(name).expect("known");
        let ended = run.wait_ended(WAIT).expect("it ends");
        assert_eq!((ended.how, ended.finished.received), (EndKind::Finished, 1), "{name}: {}", ended.why);
    };
    let soon = |name: &str| StartRequest { absence_s: 0.5, ..start(name) };
    // The client stays connected, and waits for the end.
    let mut one = Raw::one_of(&service, &soon("alone"), None, (0, 2));
    one.frame(&plain(0), None);
    one.end(true, 0);
    assert_eq!(one.finished().received, 1);
    ends("alone");
    // The other source never connects, and the client disconnects.
    let request = StartRequest { sources: 2, ..soon("gone") };
    let mut one = Raw::connect(&service, &request, None);
    one.frame(&plain(0), None);
    one.end(true, 0);
    drop(one);
    ends("gone");
    service.stop();
}

/// Promise: a client that reconnects with its run's start request finds the run, whatever the request contains,
/// including a NaN as the fill value.
#[test]
fn repeated_start_request_is_idempotent() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let description = DatasetSpec { fill: Some(f64::NAN.into()), ..DatasetSpec::new(ElementType::F32, vec![4, 4]) };
    let request = StartRequest::new("nan", "nan.h5".into(), description);
    drop(Raw::connect(&service, &request, None));
    drop(Raw::connect(&service, &request, None));
    let other = StartRequest { absence_s: 1.0, ..request };
    let refused = Client::connect(options(&service, &other)).err().expect("another start");
    assert!(refused.to_string().contains("started with other parameters"), "{refused}");
    service.stop();
}
