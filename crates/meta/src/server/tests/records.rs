//! Records of an attacker on the network who manipulates those of a client. Each ends the connection with its reason in
//! the log, and no manipulated request is executed.

use super::client::{Remote, call_bytes, request};
use super::*;
use std::net::Shutdown;

/// A volume that is served over TCP.
fn site() -> Site {
    let mut site = Site::new(1);
    site.config.listen = Some("127.0.0.1:0".parse().unwrap());
    site
}

fn remote(server: &Server, site: &Site, session: u64) -> Remote {
    Remote::connect(server, &Claim::of(&site.key, session, Purpose::Work)).unwrap()
}

/// A request that would create `name`.
fn making(session: u64, number: u64, name: &str) -> Vec<u8> {
    call_bytes(&request(session, 1, number, 0, create(name.into())))
}

fn names(server: &Server, site: &Site) -> Vec<String> {
    let mut client = remote(server, site, 1000).into_client(1000);
    let found = |name: &&str| {
        let lookup = Call::Lookup { parent: 1, name: name.as_bytes().to_vec() };
        matches!(client.call(0, lookup), Ok(Reply::Entry { .. }))
    };
    ["one", "two", "three"].into_iter().filter(found).map(String::from).collect()
}

/// Asserts that the server sends nothing more on the connection and closes it.
fn expect_end(mut remote: Remote, name: &str) {
    let _ = remote.stream.shutdown(Shutdown::Write);
    let mut rest = Vec::new();
    match remote.stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{name}: {error}"),
    }
}

/// Promise: a request whose record was changed in any byte or truncated anywhere is not executed.
#[test]
fn changed_and_cut_records_do_nothing() {
    let site = site();
    let server = site.start();
    let bytes = remote(&server, &site, 1).seal(&making(1, 1, "one")).len();
    for at in 0..bytes {
        let session = 10 + at as u64;
        let mut flipped = remote(&server, &site, session);
        let mut sealed = flipped.seal(&making(session, 1, "one"));
        sealed[at] ^= 1 << (at % 8);
        flipped.stream.write_all(&sealed).unwrap();
        expect_end(flipped, &format!("byte {at} flipped"));

        let session = 500 + at as u64;
        let mut cut = remote(&server, &site, session);
        let sealed = cut.seal(&making(session, 1, "two"));
        cut.stream.write_all(&sealed[..at]).unwrap();
        expect_end(cut, &format!("cut to {at} bytes"));
    }
    assert!(names(&server, &site).is_empty());
}

/// Promise: a record that comes out of order, twice, from elsewhere or under no key ends the connection. The records
/// before it are executed, and none after it.
#[test]
fn records_out_of_place_end_the_connection() {
    type Attack = fn(&mut Remote, &mut Remote, [Vec<u8>; 2]) -> Vec<u8>;
    let cases: [(&str, Attack); 9] = [
        ("exchanged", |remote, _, [one, two]| {
            let [one, two] = [remote.seal(&one), remote.seal(&two)];
            [two, one].concat()
        }),
        ("the first left out", |remote, _, [one, two]| {
            remote.seal(&one);
            remote.seal(&two)
        }),
        ("from another connection", |_, other, [one, _]| other.seal(&one)),
        ("in the clear", |_, _, [one, _]| one),
        ("of no bytes", |_, _, _| vec![16, 0].into_iter().chain([0; 16]).collect()),
        ("shorter than a tag", |_, _, _| vec![3, 0, 1, 2, 3]),
        ("all ones", |_, _, _| vec![0xff; 70_000]),
        ("all zeros", |_, _, _| vec![0; 100]),
        ("joined", |remote, _, [one, two]| {
            let [one, two] = [remote.seal(&one), remote.seal(&two)];
            let bytes = (one.len() + two.len() - 4) as u16;
            [&bytes.to_le_bytes()[..], &one[2..], &two[2..]].concat()
        }),
    ];
    let site = site();
    let server = site.start();
    for (number, (name, attack)) in cases.into_iter().enumerate() {
        let session = 20 + number as u64;
        let (mut remote, mut other) = (remote(&server, &site, session), remote(&server, &site, session));
        let bytes = attack(&mut remote, &mut other, [making(session, 1, "one"), making(session, 2, "two")]);
        // The server may have closed the connection before the last byte.
        let _ = remote.stream.write_all(&bytes);
        expect_end(remote, name);
    }
    assert!(names(&server, &site).is_empty());
}

/// Promise: a record that is sent twice is executed once, and the server refuses a record that it has sent itself.
#[test]
fn repeated_and_reflected_records_end_the_connection() {
    let site = site();
    let server = site.start();
    let mut twice = remote(&server, &site, 1);
    let sealed = twice.seal(&making(1, 1, "one"));
    twice.stream.write_all(&[&sealed[..], &sealed].concat()).unwrap();
    expect_end(twice, "sent twice");

    let mut reflected = remote(&server, &site, 2);
    let sealed = reflected.seal(&making(2, 1, "two"));
    reflected.stream.write_all(&sealed).unwrap();
    let mut answer = [0; 4096];
    let count = reflected.stream.read(&mut answer).unwrap();
    reflected.stream.write_all(&answer[..count]).unwrap();
    expect_end(reflected, "the answer sent back");
    assert_eq!(names(&server, &site), ["one", "two"]);
}

/// Promise: a client refuses replies that were changed or repeated.
#[test]
fn changed_answers_do_not_open() {
    let site = site();
    let server = site.start();
    for attack in 0..3 {
        let mut client = remote(&server, &site, 1 + attack);
        let sealed = client.seal(&making(1 + attack, 1, "one"));
        client.stream.write_all(&sealed).unwrap();
        let mut answer = vec![0; 4096];
        let count = client.stream.read(&mut answer).unwrap();
        answer.truncate(count);
        let mut plain = Vec::new();
        match attack {
            0 => answer[count - 1] ^= 1,
            1 => drop(client.records.open(&answer, &mut plain).unwrap()),
            _ => answer = sealed,
        }
        assert!(client.records.open(&answer, &mut plain).is_err(), "attack {attack}");
    }
}

/// Promise: requests and replies that are longer than a record, and many at once, pass through records unchanged.
#[test]
fn frames_span_records() {
    let site = site();
    let server = site.start();
    let mut client = remote(&server, &site, 1);
    let payload = |number: u64| vec![number as u8; 1 + 60_000 * number as usize];
    let mut sent = Vec::new();
    for number in 0..10 {
        let ping = request(1, number as u32, 1, 0, Call::Ping { payload: payload(number) });
        sent.extend(call_bytes(&ping));
    }
    let sealed = client.seal(&sent);
    let mut writes = client.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        // In pieces that match neither frames nor records.
        scope.spawn(move || sealed.chunks(7001).for_each(|piece| writes.write_all(piece).unwrap()));
        for _ in 0..10 {
            let response = client::reply(&mut client);
            let number = u64::from(response.id.slot);
            assert_eq!(response.result, Ok(Reply::Pong { payload: payload(number) }));
        }
    });
}

/// Promise: a peer that stops in the middle of a record, or does not read replies, is disconnected after the stall
/// limit.
#[test]
fn a_peer_that_stalls_is_cut_off() {
    let mut site = site();
    site.config.limits.stall = Duration::from_millis(50);
    let server = site.start();
    for bytes in [1, 2, 3, 20] {
        let mut stalled = remote(&server, &site, bytes as u64);
        let sealed = stalled.seal(&making(bytes as u64, 1, "one"));
        stalled.stream.write_all(&sealed[..bytes]).unwrap();
        let mut rest = Vec::new();
        let read = stalled.stream.read_to_end(&mut rest);
        assert!(read.is_ok_and(|count| count == 0), "{bytes} bytes");
    }
    // A complete record with an incomplete frame.
    let mut stalled = remote(&server, &site, 77);
    let sealed = stalled.seal(&making(77, 1, "one")[..9]);
    stalled.stream.write_all(&sealed).unwrap();
    assert_eq!(stalled.stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(names(&server, &site).is_empty());
}
