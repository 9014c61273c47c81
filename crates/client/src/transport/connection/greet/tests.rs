use super::*;
use crate::transport::connection::remote::RemoteStream;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use varve_env::clock::RealClock;
use varve_proto::WireShardMap;
use varve_proto::frame::{self, HEADER_BYTES};
use varve_proto::handshake::exchange::Responder;
use varve_rpc::wire::Message;

const NONCE: [u8; 16] = [5; 16];

fn identity() -> Identity {
    Identity {
        volume: VolumeId([1; 16]),
        key_id: KeyId::VOLUME,
        key: VolumeKey([7; 32]),
        session: SessionId(3),
        purpose: Purpose::Work,
    }
}

fn connection(stream: TcpStream) -> ServerConnection {
    ServerConnection::on(SocketStream::Tcp(RemoteStream::new(stream)))
}

fn send(stream: &mut TcpStream, message: &impl serde::Serialize) {
    let mut bytes = Vec::new();
    frame::encode(message, &mut bytes).unwrap();
    // The client may have disconnected already.
    let _ = stream.write_all(&bytes);
}

fn receive<M: serde::de::DeserializeOwned>(stream: &mut TcpStream) -> M {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; frame::body_len(&header).unwrap()];
    stream.read_exact(&mut body).unwrap();
    frame::decode(&header, &body).unwrap()
}

fn greet(stream: &mut TcpStream) {
    send(stream, &Greeting { version: varve_proto::VERSION, volume: [1; 16], nonce: NONCE });
}

fn accepted() -> Welcome {
    Welcome::Accepted {
        server: 1,
        shards: 1,
        inline_limit: 0,
        sync_interval_ms: 0,
        owner_uid: 0,
        map: WireShardMap { version: 1, servers: Vec::new(), owners: Vec::new() },
        embedded: false,
    }
}

/// Answers like a server that has `key`.
fn answer(stream: &mut TcpStream, key: u8, welcome: &Welcome) -> Records {
    greet(stream);
    let hello: Hello = receive(stream);
    let binding = Binding {
        volume: hello.volume,
        key: hello.key,
        purpose: hello.purpose,
        session: hello.session,
        worker: hello.worker,
        channel: Channel::Network,
        nonce: NONCE,
    };
    let (responder, _) = Responder::accept(&VolumeKey([key; 32]), &binding, &hello.sealed).unwrap();
    let (sealed, records) = responder.finish(welcome).unwrap();
    send(stream, &Answer::Sealed(sealed));
    records
}

/// The client's result of a handshake with `server`.
fn shake_hands<T: Send>(server: impl FnOnce(&mut TcpStream) -> T + Send) -> (Result<ServerConnection, FindError>, T) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let served = scope.spawn(move || server(&mut listener.accept().unwrap().0));
        let mut connection = connection(TcpStream::connect(address).unwrap());
        let shaken = connection.shake_hands(&identity(), 0, Instant(Duration::MAX), &RealClock::new());
        (shaken.map(|_| connection), served.join().unwrap())
    })
}

/// A connection that waits for the reply to its first call.
fn asked(mut connection: ServerConnection) -> ServerConnection {
    // The server may have closed it.
    let _ = connection.send(&"a question", HANDSHAKE_TIMEOUT, Duration::ZERO);
    connection
}

fn refused(name: &str, part: &str, server: impl FnOnce(&mut TcpStream) + Send) {
    let (Err(error), ()) = shake_hands(server) else { panic!("{name}: it was believed") };
    let text = error.to_string();
    assert!(text.contains(part) && !text.chars().any(char::is_control), "{name}: {text:?}");
}

/// Promise: a server is trusted only if it has the key and answers this client's own handshake. Everything else is
/// refused with a reason, from which control characters are removed.
#[test]
fn a_false_server_is_refused() {
    refused("another version", "version 7", |stream| {
        send(stream, &Greeting { version: 7, volume: [1; 16], nonce: NONCE });
    });
    refused("another volume", "serves volume", |stream| {
        send(stream, &Greeting { version: varve_proto::VERSION, volume: [2; 16], nonce: NONCE });
    });
    refused("closes at once", "closed the connection", |_| ());
    refused("closes after the greeting", "closed the connection", |stream| {
        greet(stream);
        let _: Hello = receive(stream);
    });
    refused("a refusal in the clear", "go away\u{fffd}[2J", |stream| {
        greet(stream);
        let _: Hello = receive(stream);
        send(stream, &Answer::Refused { reason: "go away\u{1b}[2J".into() });
    });
    refused("a refusal under the key", "no room", |stream| {
        answer(stream, 7, &Welcome::Crowded { reason: "no room".into() });
    });
    refused("a message of this kind in the clear", "handshake failed", |stream| {
        greet(stream);
        let _: Hello = receive(stream);
        send(stream, &accepted());
    });
    refused("the client's own proof", "does not hold the volume's key", |stream| {
        greet(stream);
        let hello: Hello = receive(stream);
        send(stream, &Answer::Sealed(hello.sealed));
    });
    refused("noise", "does not hold the volume's key", |stream| {
        greet(stream);
        let _: Hello = receive(stream);
        send(stream, &Answer::Sealed(vec![9; 100]));
    });
    refused("a short proof", "handshake message of 5 bytes", |stream| {
        greet(stream);
        let _: Hello = receive(stream);
        send(stream, &Answer::Sealed(vec![9; 5]));
    });
    refused("a long greeting", "limit of 66000 bytes", |stream| {
        let _ = stream.write_all(&[&1_000_000_u32.to_le_bytes()[..], &[0; 100]].concat());
    });
    refused("a long answer", "limit of 66000 bytes", |stream| {
        greet(stream);
        let _: Hello = receive(stream);
        let _ = stream.write_all(&[&1_000_000_u32.to_le_bytes()[..], &[0; 100]].concat());
    });
}

/// Promise: after the handshake only the server's records are accepted: bytes in the clear, and changed, repeated or
/// truncated records are errors.
#[test]
fn false_records_are_refused() {
    type Attack = fn(&mut Records) -> Vec<u8>;
    fn sealed(records: &mut Records) -> Vec<u8> {
        let (mut plain, mut sealed, body) = (Vec::new(), Vec::new(), frame::body_of(&"an answer").unwrap().into());
        Message::Reply { call: 1, body }.encode(&mut plain);
        records.seal(&plain, &mut sealed).unwrap();
        sealed
    }
    let cases: [(&str, Attack); 4] = [
        ("is not authentic", |records| {
            let mut changed = sealed(records);
            *changed.last_mut().unwrap() ^= 1;
            changed
        }),
        ("is not authentic", |records| {
            sealed(records);
            sealed(records)
        }),
        ("ended in the middle of a record", |records| sealed(records)[..9].to_vec()),
        ("too short", |_| vec![1, 0, 0]),
    ];
    let (connection, ()) = shake_hands(|stream| {
        let mut records = answer(stream, 7, &accepted());
        let whole = sealed(&mut records);
        // In two pieces, as a network may deliver it.
        stream.write_all(&whole[..7]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(&whole[7..]).unwrap();
    });
    let received = asked(connection.unwrap()).receive::<String>(|| panic!("it waits"), || ()).unwrap();
    assert_eq!(received.as_deref(), Some("an answer"));
    for (part, attack) in cases {
        let (connection, ()) = shake_hands(|stream| {
            let mut records = answer(stream, 7, &accepted());
            stream.write_all(&attack(&mut records)).unwrap();
        });
        let received = asked(connection.unwrap()).receive::<String>(|| panic!("it waits"), || ());
        let text = received.unwrap_err().to_string();
        assert!(text.contains(part), "{part}: {text}");
    }
}
