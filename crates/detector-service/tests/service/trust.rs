//! Access control: names of the host, tokens, and TLS.

use super::{WAIT, config, options, start};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve_detector_service::{Config, Protection, Service};
use varve_detector_stream::client::{Client, ClientError, ClientOptions};
use varve_detector_stream::control::{Control, ControlError};
use varve_detector_stream::tls::{ClientTls, ServerTls, TlsError};
use varve_detector_stream::{ErrorCode, token};

const TOKEN: &str = "a-token-of-the-tests";

fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn tls() -> ServerTls {
    ServerTls::read(&certificate("service.pem"), &certificate("service.key")).expect("a certificate and its key")
}

fn trusting(name: &str) -> Option<ClientTls> {
    Some(ClientTls::trusting(&certificate(name)).expect("certificates"))
}

fn protected(directory: &Path, protection: Protection) -> Service {
    let config = Config { token: Some(TOKEN.into()), protection, ..config(directory) };
    Service::start(config).expect("a service")
}

/// The status of the response to a request with these headers, and its body.
fn asked(address: SocketAddr, line: &str, headers: &[&str]) -> (u16, String) {
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(WAIT)).expect("set");
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    write!(socket, "{line}\r\n{headers}Connection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

/// A page of another site cannot read anything through a browser on this host, whatever name it resolves to this host.
#[test]
fn every_request_must_name_this_host() {
    let directory = tempfile::tempdir().expect("a directory");
    let service =
        protected(directory.path(), Protection { hosts: vec!["daq.example".into()], ..Protection::default() });
    let at = service.http().expect("HTTP");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    for path in ["/runs", "/runs/any", "/runs/any/latest", "/metrics", "/openapi.json", "/nothing"] {
        let line = format!("GET {path} HTTP/1.1");
        for (host, status, code) in [
            ("Host: evil.example", 421, "\"host\""),
            ("Host: evil.example:7421", 421, "\"host\""),
            ("Host: 10.1.2.3", 421, "\"host\""),
            ("Host: localhost.evil.example", 421, "\"host\""),
            ("Host: ", 421, "\"host\""),
            ("X: y", 400, "\"host\""),
            ("Host: localhost\r\nHost: localhost", 400, ""),
            ("Host: localhost\r\nOrigin: http://localhost", 403, "\"origin\""),
            ("Host: daq.example\r\nOrigin: null", 403, "\"origin\""),
        ] {
            let (got, body) = asked(at, &line, &[host, &bearer]);
            assert!(got == status && body.contains(code), "{path} {host}: {got} {body}");
        }
    }
    for host in ["localhost", "LocalHost:1", "127.0.0.1", "[::1]:7421", "daq.example", "DAQ.EXAMPLE:80"] {
        let host = format!("Host: {host}");
        assert_eq!(asked(at, "GET /runs HTTP/1.1", &[&host, &bearer]).0, 200, "{host}");
    }
    service.stop();
}

#[test]
fn every_request_must_give_the_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = protected(directory.path(), Protection::default());
    let at = service.http().expect("HTTP");
    let requests = [
        "GET /runs",
        "GET /runs/",
        "GET /metrics",
        "POST /runs",
        "POST /runs/any/abort",
        "GET /nothing",
        "OPTIONS /runs",
        "DELETE /openapi.json",
        "DELETE /runs",
    ];
    for request in requests {
        for given in
            ["X: y", "Authorization: Bearer", "Authorization: Bearer x", "Authorization: Basic eDp5", "Cookie: token"]
        {
            let (status, body) = asked(at, &format!("{request} HTTP/1.1"), &["Host: localhost", given]);
            assert!(status == 401 && body.contains("\"token\""), "{request} {given}: {status} {body}");
            assert!(!body.contains(TOKEN), "{body}");
        }
    }
    assert_eq!(asked(at, "GET /openapi.json HTTP/1.1", &["Host: localhost"]).0, 200);
    service.stop();
}

/// Programs of the user who runs the service need no token. Each start invalidates the token of the one before.
#[test]
fn a_published_token_is_used_without_being_given() {
    let directory = tempfile::tempdir().expect("a directory");
    let publish = || Protection { publish: true, ..Protection::default() };
    let service = protected(directory.path(), publish());
    let paths: Vec<PathBuf> = service.published().map(Path::to_owned).collect();
    assert_eq!(paths.len(), 2, "of frames and of control");
    let control = Control { address: service.http().expect("HTTP").to_string(), token: None, tls: None };
    control.get("/runs", WAIT).expect("answered");
    let client = Client::connect(options(&service, &start("found"))).expect("in");
    let (listen, http) = (service.address(), service.http());
    service.stop();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    // A client of the earlier service finds the new token when it reconnects.
    let again =
        Config { listen, http, token: Some(token::random()), protection: publish(), ..config(directory.path()) };
    let service = Service::start(again).expect("a service");
    assert_eq!(client.finish(WAIT).expect("finished").frames, 0);
    let stale = Control { token: Some(TOKEN.into()), ..control.clone() };
    assert!(matches!(stale.get("/runs", WAIT), Err(ControlError::Refused { code, .. }) if code == "token"));
    control.get("/runs", WAIT).expect("answered");
    service.stop();
}

#[test]
fn frames_and_control_go_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = protected(directory.path(), Protection { tls: Some(tls()), ..Protection::default() });
    let tls = trusting("authority.pem");
    let control =
        Control { address: service.http().expect("HTTP").to_string(), token: Some(TOKEN.into()), tls: tls.clone() };
    let request = start("encrypted");
    let over = |connections| ClientOptions {
        token: TOKEN.into(),
        tls: tls.clone(),
        connections,
        ..options(&service, &request)
    };
    let client = Client::connect(over(2)).expect("in");
    (0..50).for_each(|number| client.send(super::plain(number), WAIT).expect("sent"));
    client.settle(WAIT).expect("durable");
    assert_eq!(control.get("/runs", WAIT).expect("answered")["runs"][0]["durable"], 50);
    let finished = client.finish(WAIT).expect("finished");
    assert_eq!((finished.received, finished.missing + finished.damaged), (50, 0));
    super::check(directory.path(), "encrypted", &(0..50).collect::<Vec<u64>>(), true);
    let wrong = Client::connect(ClientOptions { token: "wrong-token".into(), ..over(1) });
    assert!(matches!(wrong, Err(ClientError::Refused(refusal)) if refusal.code == ErrorCode::Token));
    service.stop();
}

#[test]
fn a_full_service_says_so_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let protection = Protection { tls: Some(tls()), ..Protection::default() };
    let service =
        Service::start(Config { connections_max: 1, protection, ..config(directory.path()) }).expect("a service");
    let tls = trusting("authority.pem");
    let first = Client::connect(ClientOptions { tls: tls.clone(), ..options(&service, &start("first")) }).expect("in");
    let retry = Duration::from_millis(300);
    let second = Client::connect(ClientOptions { tls, retry, ..options(&service, &start("second")) });
    assert!(matches!(second, Err(ClientError::Full { .. })), "{:?}", second.err());
    drop(first);
    service.stop();
}

/// Neither side falls back to plain text, or accepts a peer without a trusted certificate.
#[test]
fn tls_is_never_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let service = protected(directory.path(), Protection { tls: Some(tls()), ..Protection::default() });
    let at = service.http().expect("HTTP");
    let control = |tls, address: String| Control { address, token: Some(TOKEN.into()), tls };
    let client = |tls| ClientOptions {
        token: TOKEN.into(),
        tls,
        retry: Duration::from_millis(300),
        ..options(&service, &start("refused"))
    };
    let unreachable = |asked: Result<serde_json::Value, ControlError>| match asked {
        Err(ControlError::Unreachable { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    // Plain text to a service with TLS.
    unreachable(control(None, at.to_string()).get("/runs", WAIT));
    assert!(matches!(Client::connect(client(None)), Err(ClientError::Unreachable { .. })));
    // A certificate of another authority, and one for another name.
    let why = unreachable(control(trusting("untrusted.pem"), at.to_string()).get("/runs", WAIT));
    assert!(why.contains("is not trusted") && why.contains("--tls-ca"), "{why}");
    match Client::connect(client(trusting("untrusted.pem"))) {
        Err(ClientError::Unreachable { why, .. }) => assert!(why.contains("is not trusted"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
    let why = unreachable(control(trusting("authority.pem"), format!("127.0.0.2:{}", at.port())).get("/runs", WAIT));
    assert!(why.contains("refused") || why.contains("is not trusted"), "{why}");
    service.stop();
    // TLS to a service without TLS.
    let service = protected(directory.path(), Protection::default());
    let at = service.http().expect("HTTP").to_string();
    let why = unreachable(control(trusting("authority.pem"), at).get("/runs", WAIT));
    assert!(why.contains("does not speak TLS"), "{why}");
    let options = ClientOptions {
        token: TOKEN.into(),
        tls: trusting("authority.pem"),
        retry: Duration::from_millis(300),
        ..options(&service, &start("clear"))
    };
    assert!(matches!(Client::connect(options), Err(ClientError::Unreachable { .. })));
    service.stop();
}

#[test]
fn a_silent_tls_peer_is_let_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let protection = Protection { tls: Some(tls()), ..Protection::default() };
    let idle = Duration::from_millis(300);
    let service = Service::start(Config { idle, protection, ..config(directory.path()) }).expect("a service");
    let mut unauthenticated = TcpStream::connect(service.address()).expect("connected");
    unauthenticated.set_read_timeout(Some(WAIT)).expect("set");
    let mut printed = Vec::new();
    // The connection may end with a reset.
    let _ = unauthenticated.read_to_end(&mut printed);
    assert!(printed.is_empty(), "{printed:?}");
    service.stop();
}

#[test]
fn unusable_certificates_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").expect("written");
    let (service, key) = (certificate("service.pem"), certificate("service.key"));
    let nowhere = directory.path().join("nowhere.pem");
    assert!(matches!(ServerTls::read(&nowhere, &key), Err(TlsError::Certificates { .. })));
    assert!(matches!(ServerTls::read(&empty, &key), Err(TlsError::NoCertificate { .. })));
    assert!(matches!(ServerTls::read(&service, &empty), Err(TlsError::Key { .. })));
    assert!(matches!(ServerTls::read(&certificate("untrusted.pem"), &key), Err(TlsError::Unusable(_))));
    assert!(matches!(ClientTls::trusting(&empty), Err(TlsError::NoCertificate { .. })));
    assert!(matches!(ClientTls::trusting(&nowhere), Err(TlsError::Certificates { .. })));
}
