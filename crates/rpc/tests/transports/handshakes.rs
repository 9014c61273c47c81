//! Admission of clients, and the servers that a client accepts.

use crate::fixture::{Ask, SOON, Server, Transport, deadline, dialer};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use varve_env::net::SocketPlace;
use varve_env::readiness::Watch;
use varve_proto::frame;
use varve_proto::handshake::{Answer, Greeting, KeyId, Purpose, VolumeKey};
use varve_rpc::{CallError, Cause, Connection, DialError, Dialer, Limits, StreamLink};

const STREAMS: [Transport; 2] = [Transport::Unix, Transport::Tcp];

fn dialled(server: &Server, change: impl FnOnce(&mut Dialer)) -> Result<(), DialError> {
    let event_loop = server.transport.new_loop();
    let mut dialer = dialer(event_loop.handle(), server.place.as_ref().unwrap(), Limits::default());
    change(&mut dialer);
    event_loop.block_on(dialer.dial()).map(|_| ())
}

fn refused(ended: Result<(), DialError>, text: &str) {
    assert!(matches!(&ended, Err(DialError::Refused(why)) if why.contains(text)), "{ended:?}, not {text}");
}

/// Promise: a client is admitted with the right key, volume, worker and purpose, and refused with a reason otherwise.
#[test]
fn both_sides_authenticate_each_other() {
    for transport in STREAMS {
        let server = Server::start(transport, Limits::default());
        assert_eq!(dialled(&server, |_| {}), Ok(()));
        refused(dialled(&server, |dialer| dialer.identity.key = VolumeKey([1; 32])), "the proof does not fit");
        refused(dialled(&server, |dialer| dialer.identity.key_id = KeyId(7)), "the proof does not fit");
        refused(dialled(&server, |dialer| dialer.worker = 5), "this is worker 4");
        refused(dialled(&server, |dialer| dialer.identity.purpose = Purpose::Administer), "no administrators here");
        let foreign = dialled(&server, |dialer| dialer.identity.volume = [4; 16]);
        assert!(matches!(foreign, Err(DialError::Unreachable(_))), "{foreign:?}");
    }
}

/// Promise: a client says nothing to a process of a user whom it does not trust.
#[test]
fn process_of_another_user_is_not_trusted() {
    let server = Server::start(Transport::Unix, Limits::default());
    let ended = dialled(&server, |dialer| dialer.identity.trusted = vec![99_999]);
    assert!(matches!(&ended, Err(DialError::Untrusted(why)) if why.contains("may not serve the volume")), "{ended:?}");
}

/// Promise: nobody there is an error of its own, at once.
#[test]
fn absent_server_is_unreachable() {
    for transport in STREAMS {
        let mut server = Server::start(transport, Limits::default());
        server.kill();
        let begun = Instant::now();
        let ended = dialled(&server, |_| {});
        assert!(matches!(ended, Err(DialError::NotConnected(..))), "{ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

fn unix_path(server: &Server) -> std::path::PathBuf {
    match server.place.as_ref().unwrap() {
        SocketPlace::Unix(path) => path.clone(),
        SocketPlace::Tcp(_) => panic!("it listens at a Unix socket"),
    }
}

/// Promise: a peer that says no Hello is told so and its connection closed, in time, however it says it.
#[test]
fn peers_without_hello_are_turned_away() {
    let server = Server::start(Transport::Unix, Limits::default());
    for said in [&b""[..], &b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64][..], &[255; 64][..]] {
        let mut stream = UnixStream::connect(unix_path(&server)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(said).unwrap();
        let mut heard = Vec::new();
        let begun = Instant::now();
        // A connection that is closed with unread bytes is reset after its last byte.
        let _ = stream.read_to_end(&mut heard);
        assert!(begun.elapsed() < Duration::from_secs(5));
        let (_, greeting) = frame::take::<Greeting>(&heard).unwrap().unwrap();
        let (answer, _) = frame::take::<Answer>(&heard[greeting..]).unwrap().unwrap();
        assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    }
    assert_eq!(dialled(&server, |_| {}), Ok(()));
}

/// Passes bytes on, and changes the last one of the answers from the given one on.
fn relay(from: &TcpListener, to: std::net::SocketAddr, changed_from: usize) {
    let (client, _) = from.accept().unwrap();
    let server = TcpStream::connect(to).unwrap();
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let up = std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(std::net::Shutdown::Write);
    });
    let (mut server, mut client, mut bytes) = (server, client, [0; 4096]);
    for number in 0.. {
        let Ok(count @ 1..) = server.read(&mut bytes) else { break };
        bytes[count - 1] ^= u8::from(number >= changed_from);
        if client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
    let _ = server.shutdown(std::net::Shutdown::Both);
    let _ = up.join();
}

/// Promise: bytes that are changed on the way end a connection over TCP, in the handshake and after it.
#[test]
fn changed_bytes_end_a_tcp_connection() {
    let server = Server::start(Transport::Tcp, Limits::default());
    let Some(SocketPlace::Tcp(to)) = server.place else { panic!("it listens on TCP") };
    for changed_from in [1, 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = SocketPlace::Tcp(listener.local_addr().unwrap());
        let relaying = std::thread::spawn(move || relay(&listener, to, changed_from));
        let event_loop = Transport::Tcp.new_loop();
        let dialled = event_loop.block_on(dialer(event_loop.handle(), &place, Limits::default()).dial());
        match (changed_from, dialled) {
            (1, dialled) => assert!(dialled.is_err()),
            (_, dialled) => {
                let (connection, _) = dialled.unwrap();
                let until = deadline(event_loop.handle(), SOON);
                let ended = event_loop.block_on(connection.call(Ask::Echo(1).bytes(), until));
                let expected = matches!(&ended, Err(CallError::Unknown(Cause::Lost(why))) if why.contains("authentic"));
                assert!(expected, "{ended:?}");
            }
        }
        drop(event_loop);
        relaying.join().unwrap();
    }
}

/// Promise: a connection can be ended from elsewhere while its loop does not run: the server learns it at once, and calls
/// on it fail.
#[test]
fn severed_connection_ends_on_both_sides() {
    let (own, mut peer) = UnixStream::pair().unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    let event_loop = Transport::Unix.new_loop();
    let watched = event_loop.handle().watch(own.into(), Watch::InputAndRoom).unwrap();
    let link = StreamLink::new(watched, None, None);
    let connection = Connection::new(event_loop.handle(), link, Limits::default());
    let severer = connection.severer().unwrap().expect("it is a socket");
    std::thread::spawn(move || severer.sever()).join().unwrap();
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    let ended = event_loop.block_on(connection.call(Ask::Echo(1).bytes(), deadline(event_loop.handle(), SOON)));
    let lost = matches!(&ended, Err(CallError::Unknown(Cause::Lost(_)) | CallError::NotSent(Cause::Lost(_))));
    assert!(lost && connection.is_lost(), "{ended:?}");
}
