//! Servers that do not hold the key, or break the handshake: the client refuses them with a reason.

use crate::fixture::{KEY, Transport, VOLUME, dialer};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use varve_env::net::SocketPlace;
use varve_proto::frame::{self, HEADER_BYTES};
use varve_proto::handshake::exchange::{Binding, Responder};
use varve_proto::handshake::{Answer, Channel, Greeting, Hello, Welcome};
use varve_rpc::Limits;

const NONCE: [u8; 16] = [5; 16];

fn send(stream: &mut TcpStream, message: &impl serde::Serialize) {
    let mut bytes = Vec::new();
    frame::encode(message, &mut bytes).unwrap();
    // The client may have disconnected already.
    let _ = stream.write_all(&bytes);
}

fn receive_hello(stream: &mut TcpStream) -> Hello {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; frame::body_len(&header).unwrap()];
    stream.read_exact(&mut body).unwrap();
    frame::decode(&header, &body).unwrap()
}

/// Greets, and returns the client's proof.
fn greet(stream: &mut TcpStream) -> Hello {
    send(stream, &Greeting { version: varve_proto::VERSION, volume: VOLUME, nonce: NONCE });
    receive_hello(stream)
}

fn refused(name: &str, part: &str, server: impl FnOnce(&mut TcpStream) + Send) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = SocketPlace::Tcp(listener.local_addr().unwrap());
    let dialled = std::thread::scope(|scope| {
        let served = scope.spawn(move || server(&mut listener.accept().unwrap().0));
        let event_loop = Transport::Tcp.new_loop();
        let dialled = event_loop.block_on(dialer(event_loop.handle(), &place, Limits::default()).dial());
        served.join().unwrap();
        dialled.map(|_| ())
    });
    let Err(error) = dialled else { panic!("{name}: it was believed") };
    let text = error.to_string();
    assert!(text.contains(part) && !text.chars().any(char::is_control), "{name}: {text:?}");
}

/// Promise: a server is trusted only if it has the key and answers this client's own handshake. Everything else is
/// refused with a reason, from which control characters are removed.
#[test]
fn a_false_server_is_refused() {
    refused("another version", "version 7", |stream| {
        send(stream, &Greeting { version: 7, volume: VOLUME, nonce: NONCE });
    });
    refused("another volume", "another volume", |stream| {
        send(stream, &Greeting { version: varve_proto::VERSION, volume: [2; 16], nonce: NONCE });
    });
    refused("closes at once", "closed the connection", |_| ());
    refused("closes after the greeting", "closed the connection", |stream| drop(greet(stream)));
    refused("a refusal in the clear", "go away\u{fffd}[2J", |stream| {
        greet(stream);
        send(stream, &Answer::Refused { reason: "go away\u{1b}[2J".into() });
    });
    refused("a refusal under the key", "no room", |stream| {
        let Hello { volume, key, purpose, session, worker, sealed, .. } = greet(stream);
        let binding = Binding { volume, key, purpose, session, worker, channel: Channel::Network, nonce: NONCE };
        let (responder, _) = Responder::accept(&KEY, &binding, &sealed).unwrap();
        let (sealed, _) = responder.finish(&Welcome::Crowded { reason: "no room".into() }).unwrap();
        send(stream, &Answer::Sealed(sealed));
    });
    refused("the client's own proof", "does not hold the volume's key", |stream| {
        let hello = greet(stream);
        send(stream, &Answer::Sealed(hello.sealed));
    });
    refused("noise", "does not hold the volume's key", |stream| {
        greet(stream);
        send(stream, &Answer::Sealed(vec![9; 100]));
    });
    refused("a short proof", "handshake message of 5 bytes", |stream| {
        greet(stream);
        send(stream, &Answer::Sealed(vec![9; 5]));
    });
    let long = || [&1_000_000_u32.to_le_bytes()[..], &[0; 100]].concat();
    refused("a long greeting", "too long for the handshake", |stream| drop(stream.write_all(&long())));
    refused("a long answer", "too long for the handshake", |stream| {
        greet(stream);
        let _ = stream.write_all(&long());
    });
}
