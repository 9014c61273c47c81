//! Unauthenticated connections on the server's socket: garbage, oversized, truncated and foreign messages, also in the
//! memory shared with a client, and silent peers.

use super::common::{SHORT, Volume, expect_bounded, resident_bytes, run, until, varve};
use super::expect_no_panic;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Resource, Rlimit};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve_env::random::Seeded;
use varve_proto::frame::{self, FRAME_BYTES_MAX, HEADER_BYTES};
use varve_proto::handshake::exchange::{Binding, Initiator};
use varve_proto::handshake::{Answer, Channel, Greeting, Hello, KeyId, Offer, Purpose, VolumeKey};
use varve_proto::{Call, CallId, Request, WireCredentials};
use varve_rpc::wire::Message;

/// Maximum growth of the server's memory under all of it: a few frames of the longest kind, and its own caches.
const GROWTH_MAX: u64 = 96 << 20;
const UNAUTHENTICATED: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(20);

fn socket(volume: &Volume) -> PathBuf {
    let record = std::fs::read_to_string(volume.store().join("servers/current.toml")).expect("a server's record");
    let record: toml::Table = record.parse().expect("TOML");
    let worker = &record["worker"].as_array().expect("workers")[0];
    PathBuf::from(worker["unix"].as_str().expect("a socket"))
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn receive<M: serde::de::DeserializeOwned>(stream: &mut UnixStream) -> M {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).expect("a frame's header");
    let mut body = vec![0; frame::body_len(&header).expect("a length")];
    stream.read_exact(&mut body).expect("a frame's body");
    frame::decode(&header, &body).expect("a message")
}

fn encoded<M: serde::Serialize>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(message, &mut out).expect("short");
    out
}

/// A connection of a client that knows the key.
fn welcomed(socket: &Path, store: &Path, session: u64) -> UnixStream {
    let mut stream = greeted(socket, store, session, false);
    // The server sends sealed messages only to a client that has proved the key.
    assert!(matches!(receive(&mut stream), Answer::Sealed(_)), "the handshake is sound");
    stream
}

/// An authenticated connection with the memory that the server shares with it.
fn sharing(socket: &Path, store: &Path, session: u64) -> (UnixStream, File) {
    let stream = greeted(socket, store, session, true);
    let mut bytes = [0; 8192];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::empty())
        .expect("the welcome");
    let shared = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    (stream, File::from(shared.expect("a shared-memory slot comes with the welcome")))
}

fn greeted(socket: &Path, store: &Path, session: u64, shm_slot: bool) -> UnixStream {
    let key: [u8; 32] = std::fs::read(store.join("key")).expect("the key").try_into().expect("32 bytes");
    let mut stream = connect(socket);
    let greeting: Greeting = receive(&mut stream);
    let (volume, nonce, purpose) = (greeting.volume, greeting.nonce, Purpose::Work);
    let binding = Binding { volume, key: KeyId::VOLUME, purpose, session, worker: 0, channel: Channel::Local, nonce };
    let offer = Offer { shm_slot, credential: Vec::new() };
    let (_, sealed) = Initiator::begin(&VolumeKey(key), &binding, &offer).expect("an exchange begins");
    let version = varve_proto::VERSION;
    let hello = Hello { version, volume, key: KeyId::VOLUME, purpose, session, worker: 0, sealed };
    stream.write_all(&encoded(&hello)).expect("the server reads");
    stream
}

/// The bytes of `body` as a call.
fn called(body: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    Message::Request { call: 1, deadline: PATIENCE, body: body.into() }.encode(&mut out);
    out
}

fn ping(session: u64, payload: Vec<u8>) -> Vec<u8> {
    called(frame::body_of(&ping_request(session, payload)).expect("short"))
}

fn ping_request(session: u64, payload: Vec<u8>) -> Request {
    let credentials = WireCredentials::user(0, 0, Vec::new());
    let id = CallId { session, slot: 0, number: 1 };
    Request { id, shard: 0, credentials, released: Vec::new(), call: Call::Ping { payload } }
}

/// Sends `bytes` and expects the server to close the connection; anything it sends before is ignored.
fn hangs_up(mut stream: UnixStream, bytes: &[u8], what: &str) {
    // The server may have closed the connection before the last byte.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("{what}: still connected"),
        _ => {}
    }
}

fn abuse(socket: &Path, store: &Path, random: &mut Seeded) {
    let header = |length: u32| [length.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    for unauthenticated in 0..UNAUTHENTICATED {
        let length = 1 + random.below(2_000);
        let noise = random.bytes(length);
        match unauthenticated % 9 {
            0 => hangs_up(connect(socket), &noise, "garbage for a Hello"),
            1 => hangs_up(connect(socket), &header(u32::MAX), "a Hello of 4 GiB"),
            2 => hangs_up(connect(socket), &header(80)[..5], "half a header"),
            3 => hangs_up(welcomed(socket, store, unauthenticated), &noise, "garbage for a request"),
            4 => hangs_up(
                welcomed(socket, store, unauthenticated),
                &header(FRAME_BYTES_MAX as u32 + 1),
                "a frame too long",
            ),
            5 => {
                let whole = ping(unauthenticated, noise);
                hangs_up(welcomed(socket, store, unauthenticated), &whole[..whole.len() - 1], "a frame cut short");
            }
            6 => {
                let mut body = vec![0xff; 300];
                body[0] = unauthenticated as u8;
                hangs_up(welcomed(socket, store, unauthenticated), &called(body), "a sound message of nonsense");
            }
            7 => scribble(socket, store, unauthenticated, random),
            _ => {
                let foreign = ping(unauthenticated + 1, Vec::new());
                hangs_up(welcomed(socket, store, unauthenticated), &foreign, "another session's request");
            }
        }
    }
}

/// Writes invalid words, lengths and requests into the shared memory (`varve_env::shm_slot`) while the server polls it,
/// and sends requests over the socket in between. Then it writes valid requests, again and again without waiting for
/// the reply.
fn scribble(socket: &Path, store: &Path, session: u64, random: &mut Seeded) {
    let (mut stream, memory) = sharing(socket, store, session);
    let whole = ping(session, vec![3; 100]);
    let ask = |stream: &mut UnixStream| stream.write_all(&whole).is_ok();
    for round in 0..200 {
        if !ask(&mut stream) {
            break;
        }
        let words = random.bytes(128);
        let at = random.below(20_000) as u64;
        let noise = random.bytes(500);
        memory.write_all_at(&noise, 4096 + at).expect("it is shared");
        match round % 4 {
            0 => memory.write_all_at(&words, 0),
            1 => memory.write_all_at(&[[2, 0, 0, 0], u32::MAX.to_le_bytes()].concat(), 0),
            2 => memory.write_all_at(&[2, 0, 0, 0, 0, 0, 0, 0], 0),
            _ => memory.write_all_at(&[1, 0, 0, 0, 9, 0, 0, 0], 64),
        }
        .expect("it is shared");
    }
    let (mut stream, memory) = sharing(socket, store, session);
    for _ in 0..2_000 {
        if !ask(&mut stream) {
            break;
        }
        memory.write_all_at(&whole, 4096).expect("it is shared");
        memory.write_all_at(&[[2, 0, 0, 0], (whole.len() as u32).to_le_bytes()].concat(), 0).expect("it is shared");
        let _ = stream.read(&mut [0; 4096]);
    }
}

/// Peers that begin the longest possible frame and never end it.
fn hang(socket: &Path, store: &Path) -> Vec<UnixStream> {
    let begun = |session: u64| {
        let mut stream = welcomed(socket, store, 1_000_000 + session);
        let mut whole = ping(1_000_000 + session, vec![7; FRAME_BYTES_MAX - 200]);
        whole.truncate(1 << 20);
        stream.write_all(&whole).expect("the server reads");
        stream
    };
    let mut silent: Vec<UnixStream> = (0..16).map(begun).collect();
    silent.extend((0..16).map(|_| connect(socket)));
    silent
}

#[test]
fn unauthenticated_connections_do_not_disturb_clients() {
    let volume = Volume::format(&["--shards", "1"]);
    let server = volume.serve(&["--workers", "1"]);
    let mount = volume.mount(&[]);
    let (socket, store) = (socket(&volume), volume.store());
    let (done, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = resident_bytes(server.pid());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let number = made.load(Relaxed);
                std::fs::write(mount.directory.join(format!("file-{number}")), content(number)).expect("others go on");
                made.fetch_add(1, Relaxed);
            }
        });
        let abused = std::panic::catch_unwind(|| {
            let silent = hang(&socket, &store);
            abuse(&socket, &store, &mut Seeded::new(5));
            let so_far = made.load(Relaxed);
            until("others go on beside silent peers", PATIENCE, || made.load(Relaxed) > so_far + 10);
            drop(silent);
        });
        done.store(true, Relaxed);
        abused.expect("the server hangs up");
    });
    let grown = resident_bytes(server.pid()).saturating_sub(before);
    assert!(grown < GROWTH_MAX, "the server grew by {grown} bytes");
    expect_no_panic("the server", &server.log());
    expect_bounded("the server that unauthenticated connections talk to", server.pid());
    let found = std::fs::read_dir(&mount.directory).expect("it can be listed").count() as u64;
    assert_eq!(found, made.load(Relaxed));
    mount.unmount();
    server.stop();
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    for number in 0..found {
        let read = std::fs::read(mount.directory.join(format!("file-{number}"))).expect("it is there");
        assert!(read == content(number), "file-{number} is not as it was written");
    }
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// Content of a file that is written beside unauthenticated connections: some of it is in rows, some in backing files.
fn content(number: u64) -> Vec<u8> {
    let length = [11, 3_000, 70_000][number as usize % 3];
    Seeded::new(number).bytes(length)
}

/// Many clients each send long requests and read none of the replies. The memory that they take together is bounded,
/// and other clients are served meanwhile.
#[test]
fn clients_that_do_not_read_take_bounded_memory() {
    let volume = Volume::format(&["--shards", "1"]);
    let server = volume.serve(&["--workers", "1"]);
    let mount = volume.mount(&[]);
    let (socket, store) = (socket(&volume), volume.store());
    let deaf: Vec<UnixStream> = (0..DEAF)
        .map(|session| {
            let stream = welcomed(&socket, &store, 2_000_000 + session);
            stream.set_nonblocking(true).expect("a socket can be told");
            stream
        })
        .collect();
    let sent: Vec<usize> = deaf
        .iter()
        .enumerate()
        .map(|(session, mut stream)| {
            let whole = ping(2_000_000 + session as u64, vec![9; DEAF_BYTES]);
            let mut sent = 0;
            // Until the server accepts no more for a while.
            let mut pauses = 0;
            while pauses < 20 {
                match stream.write(&whole[sent % whole.len()..]) {
                    Ok(bytes) => (sent, pauses) = (sent + bytes, 0),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        pauses += 1;
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(error) => panic!("the server hangs up: {error}"),
                }
            }
            sent
        })
        .collect();
    println!("{} deaf clients sent {} MiB", deaf.len(), sent.iter().sum::<usize>() >> 20);
    std::fs::write(mount.directory.join("file"), b"undisturbed").expect("others go on");
    expect_bounded("the server of deaf clients", server.pid());
    drop(deaf);
    std::fs::write(mount.directory.join("other"), b"undisturbed").expect("others go on");
    expect_no_panic("the server", &server.log());
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// There are more silent connections than the server keeps, and one active client. The client is served, and the oldest
/// silent connections are closed.
#[test]
fn silent_unauthenticated_connections_are_evicted() {
    raise_descriptors();
    let volume = Volume::format(&["--shards", "1"]);
    let server = volume.serve(&["--workers", "1"]);
    let socket = socket(&volume);
    let silent: Vec<UnixStream> = (0..SILENT).map(|_| connect(&socket)).collect();
    let mount = volume.mount(&[]);
    std::fs::write(mount.directory.join("file"), b"undisturbed").expect("it is served");
    run(varve().arg("status").arg(volume.store()), SHORT).succeeded("varve status");
    let mut oldest = &silent[0];
    // Only its greeting.
    oldest.read_to_end(&mut Vec::new()).expect("the server hangs up");
    expect_bounded("the server of silent unauthenticated connections", server.pid());
    drop(silent);
    let log = server.log();
    assert!(log.contains("unauthenticated connections"), "{log}");
    expect_no_panic("the server", &log);
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// As many idle clients as a server accepts. Another client gets an error, with or without unauthenticated connections,
/// and is served once one of them has disconnected.
#[test]
fn client_over_the_limit_gets_an_error() {
    raise_descriptors();
    let volume = Volume::format(&["--shards", "1"]);
    let server = volume.serve(&["--workers", "1"]);
    let (socket, store) = (socket(&volume), volume.store());
    let clients: Vec<UnixStream> = (0..CLIENTS).map(|_| welcomed(&socket, &store, 3_000_000)).collect();
    let unauthenticated: Vec<UnixStream> = (0..SILENT).map(|_| connect(&socket)).collect();
    for unauthenticated in [unauthenticated, Vec::new()] {
        // Unauthenticated connections of the same user have a quarter of a second before they are evicted.
        until("it is told so", PATIENCE, || {
            let status = run(varve().arg("status").arg(&store), SHORT);
            status.code() == Some(3) && status.stdout.contains("1024 connections to this worker already")
        });
        drop(unauthenticated);
    }
    drop(clients);
    until("there is room again", PATIENCE, || run(varve().arg("status").arg(&store), SHORT).code() == Some(0));
    let mount = volume.mount(&[]);
    std::fs::write(mount.directory.join("file"), b"undisturbed").expect("it is served");
    expect_no_panic("the server", &server.log());
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// Raises the limit of descriptors far above its default.
fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("it may");
}

/// Silent connections: more than a server keeps.
const SILENT: usize = 1_500;
/// Client connections that a worker accepts.
const CLIENTS: usize = 1_024;

/// Number of clients that read nothing, and the length of their requests.
const DEAF: u64 = 256;
const DEAF_BYTES: usize = 256 << 10;
