//! Peers that hold the key and break the protocol: they lose their connection, and nobody else notices.

use crate::fixture::{Ask, KEY, SOON, Server, Transport, VOLUME, deadline, dialer};
use bytes::Bytes;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use varve_env::net::{self, SocketPlace};
use varve_env::shm_slot::ClientSide;
use varve_proto::WireShardMap;
use varve_proto::frame;
use varve_proto::handshake::exchange::{Binding, Initiator, Responder};
use varve_proto::handshake::{Answer, Channel, Greeting, Hello, KeyId, Offer, Purpose, Welcome};
use varve_rpc::wire::{BODY_BYTES_MAX, Decoder, Message, NotBegun};
use varve_rpc::{CallError, Cause, Limits};

fn limits() -> Limits {
    Limits { queued_bytes: 1 << 20, silence: Duration::from_millis(500), ..Limits::default() }
}

fn binding(nonce: [u8; 16]) -> Binding {
    let (key, purpose, channel) = (KeyId::VOLUME, Purpose::Work, Channel::Local);
    Binding { volume: VOLUME, key, purpose, session: 5, worker: 4, channel, nonce }
}

fn read_frame<M: serde::de::DeserializeOwned>(mut stream: &UnixStream) -> M {
    let mut bytes = vec![0; frame::HEADER_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    let len = frame::body_len(bytes.first_chunk().unwrap()).unwrap();
    bytes.resize(frame::HEADER_BYTES + len, 0);
    stream.read_exact(&mut bytes[frame::HEADER_BYTES..]).unwrap();
    frame::take(&bytes).unwrap().unwrap().0
}

fn write_frame(mut stream: &UnixStream, message: &impl serde::Serialize) {
    let mut bytes = Vec::new();
    frame::encode(message, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
}

/// A connection to `server` that was admitted and has said nothing, and the slot that it was given.
fn admitted(server: &Server) -> (UnixStream, Option<OwnedFd>) {
    let Some(SocketPlace::Unix(path)) = &server.place else { panic!("it listens at a Unix socket") };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let greeting: Greeting = read_frame(&stream);
    let offer = Offer { shm_slot: true, credential: Vec::new() };
    let (initiator, sealed) = Initiator::begin(&KEY, &binding(greeting.nonce), &offer).unwrap();
    let Binding { volume, key, purpose, session, worker, .. } = binding(greeting.nonce);
    write_frame(&stream, &Hello { version: varve_proto::VERSION, volume, key, purpose, session, worker, sealed });
    let (mut bytes, mut slot) = (Vec::new(), None);
    let answer = loop {
        let (_, descriptor) = net::receive_with(stream.as_fd(), &mut bytes, 4096).unwrap();
        slot = slot.or(descriptor);
        if let Some((answer, _)) = frame::take::<Answer>(&bytes).unwrap() {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let Answer::Sealed(sealed) = answer else { panic!("{answer:?}") };
    assert!(matches!(initiator.finish(&sealed).unwrap().0, Welcome::Accepted { .. }));
    (stream, slot)
}

fn encoded(messages: &[Message]) -> Vec<u8> {
    let mut out = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut out));
    out
}

fn request(call: u64, ask: Ask) -> Message {
    Message::Request { call, deadline: SOON, body: ask.bytes() }
}

/// Things that neither side may send, as bytes.
fn garbage() -> Vec<Vec<u8>> {
    let sound = encoded(&[request(1, Ask::Echo(1))]);
    let with = |at: usize, value: u8| {
        let mut changed = sound.clone();
        changed[at] = value;
        changed
    };
    let mut too_long = sound.clone();
    too_long[..4].copy_from_slice(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
    vec![
        vec![0; 100],
        vec![255; 100],
        with(4, 1),
        with(8, 9),
        with(30, 1),
        too_long,
        b"GET / HTTP/1.1\r\nHost: varve\r\n\r\n".to_vec(),
    ]
}

fn is_closed(mut stream: &UnixStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn still_serves(server: &Server) {
    let event_loop = server.transport.new_loop();
    let connection = server.connect(&event_loop, Limits::default());
    let until = deadline(event_loop.handle(), SOON);
    assert_eq!(event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until)).unwrap()[..], [1]);
}

/// Promise: a client that sends garbage, or what no client sends, loses its connection.
#[test]
fn server_ends_connections_that_break_the_rules() {
    let server = Server::start(Transport::Unix, limits());
    let mut cases = garbage();
    cases.push(encoded(&[request(1, Ask::Hang), request(1, Ask::Hang)]));
    cases.push(encoded(&[Message::Reply { call: 1, body: Bytes::new() }]));
    cases.push(encoded(&[Message::NotBegun { call: 1, reason: NotBegun::Expired }]));
    cases.push(encoded(&[Message::Pong]));
    for (number, case) in cases.iter().enumerate() {
        let (mut stream, _) = admitted(&server);
        stream.write_all(case).unwrap();
        let begun = Instant::now();
        assert!(is_closed(&stream), "case {number}");
        assert!(begun.elapsed() < SOON / 2, "case {number}");
    }
    still_serves(&server);
}

/// Promise: calls that arrive together with the end of their connection are begun, and the end is noticed at once.
#[test]
fn end_that_comes_with_calls_is_noticed() {
    let server = Server::start(Transport::Unix, Limits::default());
    let (mut stream, _) = admitted(&server);
    // The server's thread is busy when the others come.
    stream.write_all(&encoded(&[request(1, Ask::Block(100))])).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    stream.write_all(&encoded(&[request(2, Ask::Echo(1)), request(3, Ask::Echo(1))])).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let begun = Instant::now();
    assert!(is_closed(&stream) && begun.elapsed() < SOON / 2);
    assert_eq!(server.counters.begun.load(SeqCst), 3);
}

/// Posts `bytes` in the slot of a connection. The server looks into it for a short time after each message.
fn post(slot: &ClientSide, mut stream: &UnixStream, bytes: &[u8]) {
    let begun = Instant::now();
    while !slot.post(bytes) {
        assert!(begun.elapsed() < SOON);
        let _ = stream.write_all(&encoded(&[Message::Ping]));
        std::thread::yield_now();
    }
}

/// Promise: while both sides look, several requests are one posting, and their replies come the same way.
#[test]
fn messages_pass_through_shared_memory() {
    let server = Server::start(Transport::SharedMemory, limits());
    let (stream, slot) = admitted(&server);
    let slot = ClientSide::open(&slot.expect("the server shares memory")).unwrap();
    let (begun, mut replies, mut bytes) = (Instant::now(), Decoder::default(), Vec::new());
    let mut answered = 0;
    for call in (1..).step_by(2) {
        slot.listen();
        post(&slot, &stream, &encoded(&[request(call, Ask::Echo(1)), request(call + 1, Ask::Echo(2))]));
        let waited = Instant::now();
        while slot.take_posted(&mut bytes) || waited.elapsed() < Duration::from_millis(2) {
            std::thread::yield_now();
        }
        replies.input().append(&mut bytes);
        while let Some(message) = replies.take().unwrap() {
            answered += usize::from(matches!(message, Message::Reply { .. }));
        }
        assert!(replies.is_empty(), "messages in a slot are whole");
        if answered >= 4 {
            break;
        }
        assert!(begun.elapsed() < SOON, "{answered} replies came through memory");
    }
}

/// Promise: garbage in shared memory ends the connection, as does a part of a message.
#[test]
fn garbage_in_shared_memory_ends_the_connection() {
    let server = Server::start(Transport::SharedMemory, limits());
    let sound = encoded(&[request(1, Ask::Echo(1))]);
    for case in [&[255; 40][..], &sound[..sound.len() - 1], &sound[..10]] {
        let (mut stream, slot) = admitted(&server);
        let slot = ClientSide::open(&slot.expect("the server shares memory")).unwrap();
        post(&slot, &stream, case);
        // The server notices the posting with the next message at the latest.
        let _ = stream.write_all(&encoded(&[Message::Ping]));
        assert!(is_closed(&stream));
    }
    still_serves(&server);
}

/// Promise: a client that stops in the middle of a message, or does not read its replies, loses its connection after
/// a while; one that has nothing to say keeps it.
#[test]
fn stalled_clients_lose_their_connection() {
    let server = Server::start(Transport::Unix, limits());
    let (mut idle, _) = admitted(&server);
    let (mut midway, _) = admitted(&server);
    midway.write_all(&encoded(&[request(1, Ask::Echo(1))])[..20]).unwrap();
    let begun = Instant::now();
    assert!(is_closed(&midway) && begun.elapsed() >= Duration::from_millis(400));
    let (mut deaf, _) = admitted(&server);
    deaf.write_all(&encoded(&(1..=8).map(|call| request(call, Ask::Long(1 << 20))).collect::<Vec<_>>())).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let mut rest = Vec::new();
    let read = deaf.read_to_end(&mut rest);
    assert!(read.is_ok() || is_closed(&deaf), "it is still connected");
    assert!(rest.len() < 8 << 20, "{} bytes were kept for it", rest.len());
    idle.write_all(&encoded(&[Message::Ping])).unwrap();
    let mut pong = [0; 24];
    idle.read_exact(&mut pong).unwrap();
    assert_eq!(pong[..], encoded(&[Message::Pong])[..]);
}

/// A server that admits one client, waits for its first request, and says `bytes`.
fn impostor(path: &std::path::Path, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let nonce = [8; 16];
        write_frame(&stream, &Greeting { version: varve_proto::VERSION, volume: VOLUME, nonce });
        let hello: Hello = read_frame(&stream);
        let (responder, _) = Responder::accept(&KEY, &binding(nonce), &hello.sealed).unwrap();
        let map = WireShardMap { version: 1, servers: Vec::new(), owners: Vec::new() };
        let (shards, inline_limit, sync_interval_ms, owner_uid) = (1, 0, 0, 0);
        let (embedded, server) = (false, 1);
        let welcome = Welcome::Accepted { server, shards, inline_limit, sync_interval_ms, owner_uid, map, embedded };
        write_frame(&stream, &Answer::Sealed(responder.finish(&welcome).unwrap().0));
        let mut asked = [0; 34];
        stream.read_exact(&mut asked).unwrap();
        let _ = stream.write_all(&bytes);
        assert!(is_closed(&stream), "the client keeps the connection");
    })
}

/// Promise: a server that sends garbage, or what no server sends, loses its client, whose call has an unknown outcome.
#[test]
fn client_ends_connections_that_break_the_rules() {
    let reply = |call| Message::Reply { call, body: Bytes::from_static(b"?") };
    let mut cases = garbage();
    cases.push(encoded(&[reply(2)]));
    cases.push(encoded(&[Message::NotBegun { call: 9, reason: NotBegun::Expired }]));
    cases.push(encoded(&[request(1, Ask::Echo(1))]));
    cases.push(encoded(&[Message::Cancel { call: 1 }]));
    cases.push(encoded(&[Message::Ping]));
    // A part of a reply, and nothing at all.
    cases.push(encoded(&[reply(1)])[..20].to_vec());
    cases.push(Vec::new());
    for (number, case) in cases.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let thread = impostor(&path, case);
        let event_loop = Transport::Unix.new_loop();
        let dialer = dialer(event_loop.handle(), &SocketPlace::Unix(path), limits());
        let (connection, _) = event_loop.block_on(dialer.dial()).unwrap();
        let until = deadline(event_loop.handle(), SOON);
        let ended = event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until));
        assert!(matches!(ended, Err(CallError::Unknown(Cause::Lost(_)))), "case {number}: {ended:?}");
        drop(connection);
        drop(event_loop);
        thread.join().unwrap();
    }
}
