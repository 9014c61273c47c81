//! Control over HTTP.

use super::{WAIT, check, common, config, options, plain, start};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use varve_detector_dataset::dataset_spec::nxmx::{Goniometer, MaskRegion, Nxmx};
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_filters::PluginChoice;
use varve_detector_service::{Config, EndKind, Service, StartRequest};
use varve_detector_stream::ErrorCode;
use varve_detector_stream::client::{Client, ClientError, ClientOptions};
use varve_detector_stream::control::{Control, ControlError};

#[test]
fn runs_are_controlled_over_http() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(Config { token: Some("t".into()), ..config(directory.path()) }).expect("a service");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: Some("t".into()), tls: None };
    let get = |path: &str| control.get(path, WAIT);
    let refused = |asked: Result<serde_json::Value, ControlError>| match asked {
        Err(ControlError::Refused { code, text }) => (code, text),
        other => panic!("{other:?}"),
    };
    let unauthenticated = Control { token: None, ..control.clone() };
    assert_eq!(refused(unauthenticated.get("/runs", WAIT)).0, "token");
    assert_eq!(refused(get("/runs/none")).0, "unknown");
    let request = StartRequest { finish: false, ..start("steered") };
    let body = serde_json::to_value(&request).expect("JSON");
    let started = control.post("/runs", Some(body.clone()), WAIT).expect("started");
    assert_eq!(started["state"], "running");
    let (code, text) = refused(control.post("/runs", Some(body), WAIT));
    assert!(code == "busy" && text.contains("send frames to it; or stop it first"), "{code} {text}");
    let other = StartRequest { file: "other.h5".into(), ..request.clone() };
    let (code, text) = refused(control.post("/runs", Some(serde_json::to_value(&other).expect("JSON")), WAIT));
    assert!(code == "busy" && text.contains("stop it first, or give another name"), "{code} {text}");
    let (code, text) = refused(control.post("/runs", Some(json!({"name": "x", "surprise": 1})), WAIT));
    assert!(code == "description" && text.contains("unknown field `surprise`"), "{code} {text}");
    let options = ClientOptions { token: "t".into(), start: String::new(), ..options(&service, &request) };
    let client = Client::connect(options).expect("in");
    (0..7).for_each(|number| client.send(plain(number), WAIT).expect("sent"));
    let mut seen = get("/runs/steered/latest?wait_s=20").expect("watched");
    while seen["latest_durable"] != 6 {
        let after = seen["latest_durable"].as_u64().expect("a frame");
        seen = get(&format!("/runs/steered/latest?wait_s=20&after={after}")).expect("watched");
    }
    // Frames become durable in the order of their writes, which differs from that of their numbers.
    let begun = std::time::Instant::now();
    while get("/runs").expect("listed")["runs"][0]["durable"] != 7 {
        assert!(begun.elapsed() < WAIT, "not all are durable");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let stopped = control.post("/runs/steered/stop", None, WAIT).expect("stopped");
    assert_eq!((stopped["state"].as_str(), stopped["finished"]["received"].as_u64()), (Some("finished"), Some(7)));
    drop(client);
    check(directory.path(), "steered", &[0, 1, 2, 3, 4, 5, 6], true);
    let body = serde_json::to_value(start("given-up")).expect("JSON");
    control.post("/runs", Some(body), WAIT).expect("started");
    assert_eq!(control.post("/runs/given-up/abort", None, WAIT).expect("aborted")["state"], "aborted");
    service.stop();
}

/// The valid keys of such an object, which the error for an unknown key lists.
fn taken<T: serde::de::DeserializeOwned + std::fmt::Debug>() -> BTreeSet<String> {
    let refused = serde_json::from_value::<T>(json!({"?": 0})).expect_err("refused").to_string();
    let (_, expected) = refused.split_once("expected").expect("what is known");
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every path of the OpenAPI document is served and answers as described. Every key of the requests is described.
#[test]
fn served_openapi_document_is_accurate() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
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
                    assert!(path == "/metrics" && why.contains("not from a detector service"), "{path}: {why}");
                }
            }
        }
    }
    let schemas = &described["components"]["schemas"];
    let taken: [(&str, BTreeSet<String>); 7] = [
        ("Start", taken::<StartRequest>()),
        ("Description", taken::<DatasetSpec>()),
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
    let reported = started.as_object().expect("fields");
    assert_eq!(known.keys().collect::<Vec<_>>(), reported.keys().collect::<Vec<_>>());
    service.stop();
}

/// Promise: a service loads libraries only from its configured directory, whichever client requests it.
#[test]
fn filters_are_loaded_from_one_directory_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let libraries = directory.path().join("libraries");
    std::fs::create_dir(&libraries).expect("made");
    let bzip2 = Path::new(common::plugins()).join("libh5bzip2.so");
    let (inside, outside) = (libraries.join("bzip2.so"), directory.path().join("bzip2.so"));
    for to in [&inside, &outside] {
        std::fs::copy(&bzip2, to).expect("copied");
    }
    let request = |library: &Path| {
        let mut request = start("filtered");
        let library = library.to_owned();
        request.description.filter = "raw".parse().expect("a filter's name");
        request.description.plugin =
            Some(PluginChoice { library, values: vec![9], exclusive: false, registered: None });
        request
    };
    let none = Service::start(config(directory.path())).expect("a service");
    let refused = none.shared().begin(request(&inside)).err().expect("loaded").text;
    assert!(refused.contains("start it with `--plugins DIRECTORY`"), "{refused}");
    none.stop();
    let config = Config { plugins: Some(libraries.clone()), ..config(directory.path()) };
    let service = Service::start(config).expect("a service");
    let winding = libraries.join("../bzip2.so");
    for library in [&outside, &winding, Path::new("libc.so.6"), Path::new("libraries/bzip2.so")] {
        let refused = service.shared().begin(request(library)).err().expect("loaded").text;
        assert!(refused.contains("is not in"), "{refused}");
    }
    let run = service.shared().begin(request(&inside)).expect("a run");
    service.shared().end(&run, EndKind::Finished);
    // The name alone stands for the library in that directory.
    let by_name = StartRequest { name: "named".into(), file: "named.h5".into(), ..request(Path::new("bzip2.so")) };
    let run = service.shared().begin(by_name).expect("a run");
    service.shared().end(&run, EndKind::Finished);
    service.stop();
}

/// The status and the body of the HTTP response to `request`.
pub fn exchange(service: &Service, request: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(service.http().expect("HTTP")).expect("connected");
    socket.set_read_timeout(Some(WAIT)).expect("set");
    socket.write_all(request.as_bytes()).expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
}

/// An oversized body is refused by its declared length before it arrives, or at the latest when it exceeds the limit.
#[test]
fn oversized_bodies_are_refused_immediately() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let (status, text) =
        exchange(&service, "POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
    assert!(status == 413 && text.contains("exceeds the limit of 268435456 bytes"), "{status} {text}");
    let chunk = format!("{:x}\r\n{}\r\n", 64 << 10, " ".repeat(64 << 10));
    let head = "POST /runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (status, text) = exchange(&service, &format!("{head}{}1\r\n \r\n", chunk.repeat(16)));
    assert!(status == 413 && text.contains("exceeds the limit of 1048576 bytes"), "{status} {text}");
    service.stop();
}

/// An invalid run name is refused as invalid, over HTTP and over the stream, without a lookup.
#[test]
fn invalid_names_are_refused_with_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let allowed = "use 1 to 64 letters, digits, `.`, `_`, `-`, the first no `.`";
    let long = "x".repeat(65);
    for name in ["", ".", "..", ".hidden", "a/b", "a/b/c", "%0a", "a%20b", &long] {
        for (verb, path) in [
            ("GET", format!("/runs/{name}/latest")),
            ("POST", format!("/runs/{name}/stop")),
            ("GET", format!("/runs/{name}")),
        ] {
            // Without a name the path means all runs.
            if name.is_empty() && path == "/runs/" {
                continue;
            }
            let asked =
                format!("{verb} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let (status, text) = exchange(&service, &asked);
            // An extra path segment is another error.
            let verb_alone = name == "a/b" && !path.ends_with("stop") && !path.ends_with("latest");
            if verb_alone {
                assert_eq!(status, 405, "{path}: {text}");
            } else {
                assert!(status == 400 && text.contains(allowed), "{path}: {status} {text}");
            }
        }
    }
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
    for name in ["", ".hidden", "a/b", "a\nb", "a b", "ä", "\0", &long] {
        let request = StartRequest { file: "any.h5".into(), ..start(name) };
        match control.post("/runs", Some(serde_json::to_value(&request).expect("JSON")), WAIT) {
            Err(ControlError::Refused { code, text }) => {
                assert!(code == "description" && text.contains(allowed), "{name:?}: {code} {text}")
            }
            other => panic!("{name:?}: {other:?}"),
        }
        match Client::connect(options(&service, &request)) {
            Err(ClientError::Refused(refusal)) => {
                assert!(refusal.code == ErrorCode::Description && refusal.text.contains(allowed), "{name:?}: {refusal}")
            }
            other => panic!("{name:?}: {:?}", other.err()),
        }
    }
    service.stop();
}

/// Promise: any number of clients that send half a request of any kind delay no other client.
#[test]
fn partial_requests_block_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = Service::start(config(directory.path())).expect("a service");
    let halves = [
        "",
        "GET /ru",
        "GET /runs HTTP/1.1\r\nHost: localhost\r\n",
        "POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ];
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
    for round in 0..2 {
        let mut unauthenticated = Vec::new();
        for half in halves.iter().cycle().take(400) {
            let mut socket = TcpStream::connect(service.http().expect("HTTP")).expect("connected");
            // The service may have evicted it already.
            let _ = socket.write_all(half.as_bytes());
            unauthenticated.push(socket);
        }
        assert_eq!(control.get("/runs", WAIT).expect("answered")["runs"], json!([]), "round {round}");
    }
    let body = serde_json::to_value(start("any")).expect("JSON");
    assert_eq!(control.post("/runs", Some(body), WAIT).expect("started")["state"], "running");
    service.stop();
}
