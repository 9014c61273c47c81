//! Handshakes of an attacker. The server refuses each with a reason, and they have no other effect.

use super::client::{dial, opened, receive, send};
use super::*;
use std::net::{Shutdown, TcpStream};
use varve_proto::frame::HEADER_BYTES;
use varve_proto::handshake::{Channel, Greeting, HELLO_BYTES_MAX, Hello, Offer};

/// A server that listens on all transports, and a server of another volume.
struct Scene {
    site: Site,
    server: Server,
    other: Site,
    other_server: Server,
}

impl Scene {
    fn new() -> Scene {
        let [(site, server), (other, other_server)] = [(); 2].map(|()| {
            let mut site = Site::new(2);
            site.config.listen = Some("127.0.0.1:0".parse().unwrap());
            let server = site.start();
            (site, server)
        });
        Scene { site, server, other, other_server }
    }

    fn claim(&self) -> Claim {
        Claim { channel: Channel::Network, ..Claim::of(&self.site.key, 5, Purpose::Work) }
    }

    fn greeted(&self) -> (TcpStream, Greeting) {
        let mut stream = dial(&self.server, 0);
        let greeting = receive(&mut stream);
        (stream, greeting)
    }

    /// Sends the bytes that `attack` makes from a greeting, shuts down the sending side, and expects a refusal that
    /// contains `part`.
    fn refused(&self, name: &str, part: &str, attack: impl FnOnce(&Greeting) -> Vec<u8>) {
        let (mut stream, greeting) = self.greeted();
        stream.write_all(&attack(&greeting)).unwrap();
        // The server may have refused it and closed the connection by now.
        let _ = stream.shutdown(Shutdown::Write);
        let Answer::Refused { reason } = receive(&mut stream) else { panic!("{name}: it was not refused") };
        assert!(reason.contains(part), "{name}: {reason}");
        let mut rest = Vec::new();
        assert_eq!(stream.read_to_end(&mut rest).unwrap_or(0), 0, "{name}: more than the refusal came");
    }

    /// [`Scene::refused`] with a valid frame whose `Hello` is invalid.
    fn hello_refused(&self, name: &str, part: &str, attack: impl FnOnce(&mut Hello, &Greeting)) {
        self.refused(name, part, |greeting| {
            let (_, mut hello) = self.claim().hello(greeting);
            attack(&mut hello, greeting);
            framed(&hello)
        });
    }

    fn still_serves(&self) {
        let mut client = Remote::connect(&self.server, &self.claim()).unwrap().into_client(5);
        assert!(client.call(0, Call::Ping { payload: vec![1] }).is_ok());
        assert_eq!(self.server.sessions(), 1, "an attack has left a session");
    }
}

fn framed(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(message, &mut bytes).unwrap();
    bytes
}

const WRONG: &str = "does not fit the key";

/// Promise: a handshake with any changed byte in the client's proof or in an unencrypted field is refused.
#[test]
fn changed_handshakes_are_refused() {
    let scene = Scene::new();
    let sealed = scene.claim().hello(&Greeting { version: 0, volume: [0; 16], nonce: [0; 16] }).1.sealed.len();
    for at in 0..sealed {
        scene.hello_refused(&format!("byte {at} flipped"), WRONG, |hello, _| hello.sealed[at] ^= 1 << (at % 8));
    }
    for bytes in 0..sealed {
        let part = if bytes < 48 { "handshake message of" } else { WRONG };
        scene.hello_refused(&format!("cut to {bytes} bytes"), part, |hello, _| hello.sealed.truncate(bytes));
    }
    scene.hello_refused("a byte more", WRONG, |hello, _| hello.sealed.push(0));
    scene.hello_refused("another purpose", WRONG, |hello, _| hello.purpose = Purpose::Observe);
    scene.hello_refused("another session", WRONG, |hello, _| hello.session ^= 1 << 40);
    scene.hello_refused("another key", WRONG, |hello, _| hello.key = KeyId(7));
    scene.hello_refused("another worker", "this is worker 0", |hello, _| hello.worker = 1);
    scene.hello_refused("a worker that is not", "this is worker 0", |hello, _| hello.worker = u16::MAX);
    scene.hello_refused("another volume", "the server serves volume", |hello, _| hello.volume[3] ^= 1);
    for version in [0, varve_proto::VERSION - 1, varve_proto::VERSION + 1, u16::MAX] {
        let both = format!("and the client version {version}");
        scene.hello_refused(&format!("version {version}"), &both, |hello, _| hello.version = version);
    }
    scene.still_serves();
}

/// Promise: a frame that is truncated or changed anywhere, or too long, is refused before the key is used.
#[test]
fn malformed_handshakes_are_refused() {
    let scene = Scene::new();
    let hello = |greeting: &Greeting| framed(&scene.claim().hello(greeting).1);
    let whole = hello(&scene.greeted().1).len();
    for bytes in 1..whole {
        scene
            .refused(&format!("{bytes} bytes"), "ended in the handshake", |greeting| hello(greeting)[..bytes].to_vec());
    }
    // A changed length may claim more bytes or another frame; the checksum detects all other changes.
    for at in 0..whole {
        scene.refused(&format!("byte {at} of the frame flipped"), "", |greeting| {
            let mut frame = hello(greeting);
            frame[at] ^= 0x10;
            frame
        });
    }
    for claimed in [HELLO_BYTES_MAX as u32 + 1, 1 << 20, frame::FRAME_BYTES_MAX as u32, u32::MAX] {
        scene.refused(&format!("{claimed} bytes claimed"), "Hello", |_| {
            [&claimed.to_le_bytes()[..], &[0; HEADER_BYTES - 4]].concat()
        });
    }
    let nonsense = |body: &[u8]| {
        let mut frame = Vec::new();
        frame::encode_body(body, &mut frame).unwrap();
        frame
    };
    scene.refused("an empty message", "first frame is not a Hello", |_| nonsense(&[]));
    scene.refused("a message of another kind", "", |_| client::call_bytes(&client::request(5, 1, 1, 0, Call::Sync)));
    scene.refused("bytes behind the message", "", |greeting| {
        let mut body = postcard::to_stdvec(&scene.claim().hello(greeting).1).unwrap();
        body.push(0);
        nonsense(&body)
    });
    scene.still_serves();
}

/// Promise: a handshake is valid only on the connection that it was made for.
#[test]
fn relayed_handshakes_are_refused() {
    let scene = Scene::new();
    let claim = scene.claim();
    let recorded = framed(&claim.hello(&scene.greeted().1).1);
    scene.refused("replayed", WRONG, |_| recorded.clone());
    scene.refused("the greeting sent back", "", framed);
    let answer = {
        let (mut stream, greeting) = scene.greeted();
        send(&mut stream, &claim.hello(&greeting).1);
        let Answer::Sealed(answer) = receive(&mut stream) else { panic!("refused") };
        answer
    };
    scene.hello_refused("the server's answer for a proof", "handshake message", |hello, _| {
        // Truncated to the maximum length of the field in a Hello.
        hello.sealed = answer[..47].to_vec();
    });
    let relayed = |name: &str, claim: &Claim, greeting: &Greeting, part: &str| {
        scene.refused(name, part, |own| {
            let (_, mut hello) = claim.hello(greeting);
            // The relay sets the unencrypted fields to the values that the server expects.
            (hello.volume, hello.worker, hello.session) = (own.volume, 0, 5);
            hello.purpose = Purpose::Work;
            framed(&hello)
        });
    };
    let (_, greeting) = scene.greeted();
    let of_other = Claim { key: scene.other.key.clone(), ..claim.clone() };
    let other_greeting: Greeting = receive(&mut dial(&scene.other_server, 0));
    relayed("of another volume's client", &of_other, &other_greeting, WRONG);
    relayed("of another connection", &claim, &greeting, WRONG);
    for (name, changed) in [
        ("from another worker", Claim { worker: 1, ..claim.clone() }),
        ("of an observer", Claim { purpose: Purpose::Observe, ..claim.clone() }),
        ("of another session", Claim { session: 6, ..claim.clone() }),
        ("from a Unix socket", Claim { channel: Channel::Local, ..claim.clone() }),
        ("of another host's key", Claim { key_id: KeyId(9), ..claim.clone() }),
        ("with another key", Claim { key: VolumeKey([7; 32]), ..claim.clone() }),
    ] {
        // The nonce is that of the same connection; the attacker relays everything else.
        scene.refused(name, WRONG, |own| {
            let (_, mut hello) = changed.hello(own);
            (hello.worker, hello.session, hello.key) = (0, 5, KeyId::VOLUME);
            hello.purpose = Purpose::Work;
            framed(&hello)
        });
    }
    scene.still_serves();
}

/// Promise: a handshake for TCP is refused over a Unix socket, and vice versa.
#[test]
fn a_handshake_is_bound_to_its_channel() {
    let scene = Scene::new();
    let path = socket(&scene.server, 0);
    let stream = || UnixStream::connect(&path).unwrap();
    let refused = scene.claim().shake_hands(&mut stream()).err().unwrap();
    assert!(refused.contains(WRONG), "{refused}");
    let local = Claim { channel: Channel::Local, ..scene.claim() };
    assert!(local.shake_hands(&mut stream()).is_ok());
    let refused = local.shake_hands(&mut dial(&scene.server, 0)).err().unwrap();
    assert!(refused.contains(WRONG), "{refused}");
}

/// Promise: a client that is not admitted gets the refusal sealed with the key, from the server itself.
#[test]
fn refusals_of_key_holders_are_sealed() {
    let scene = Scene::new();
    let cases = [
        ("invalid session id 0", Claim { session: 0, ..scene.claim() }),
        ("a user credential", Claim { offer: Offer { shm_slot: false, credential: vec![1] }, ..scene.claim() }),
    ];
    for (part, claim) in cases {
        let (mut stream, greeting) = scene.greeted();
        let (initiator, hello) = claim.hello(&greeting);
        send(&mut stream, &hello);
        let answer: Answer = receive(&mut stream);
        assert!(matches!(answer, Answer::Sealed(_)), "{answer:?}");
        let refused = opened(initiator, answer).err().unwrap();
        assert!(refused.contains(part), "{refused}");
    }
}

/// Promise: a client with another key cannot join a session, nor can a TCP client that has learnt the session's number.
#[test]
fn another_holders_session_is_not_joined() {
    let scene = Scene::new();
    let host = scene.site.config.volume.add_host_key("host").unwrap();
    let of_host = Claim { key: VolumeKey(host.secret), key_id: KeyId(host.id), ..scene.claim() };
    let _own = Remote::connect(&scene.server, &scene.claim()).unwrap();
    let refused = Remote::connect(&scene.server, &of_host).err().unwrap();
    assert!(refused.contains("another client's"), "{refused}");
    let local = Claim { channel: Channel::Local, ..scene.claim() };
    let refused = local.shake_hands(&mut UnixStream::connect(socket(&scene.server, 0)).unwrap()).err().unwrap();
    assert!(refused.contains("another client's"), "{refused}");
}

/// Promise: a client refuses a server that does not hold the key, whatever the server sends.
#[test]
fn answers_without_the_key_are_refused() {
    let scene = Scene::new();
    let answered = || {
        let (mut stream, greeting) = scene.greeted();
        let (initiator, hello) = scene.claim().hello(&greeting);
        send(&mut stream, &hello);
        let Answer::Sealed(answer) = receive(&mut stream) else { panic!("refused") };
        (initiator, hello, answer)
    };
    let length = answered().2.len();
    for at in (0..length).step_by(3) {
        let (initiator, _, mut answer) = answered();
        answer[at] ^= 1;
        assert!(opened(initiator, Answer::Sealed(answer)).is_err(), "byte {at} flipped");
    }
    let (initiator, hello, _) = answered();
    assert!(opened(initiator, Answer::Sealed(hello.sealed)).is_err(), "its own proof sent back");
    let ((initiator, _, _), (_, _, of_other)) = (answered(), answered());
    assert!(opened(initiator, Answer::Sealed(of_other)).is_err(), "the answer to another");
}

/// Promise: a peer that does not finish its handshake in time gets the reason and is disconnected, whether it has sent
/// nothing or a part.
#[test]
fn slow_handshakes_are_cut_off() {
    let mut site = Site::new(1);
    site.config.listen = Some("127.0.0.1:0".parse().unwrap());
    site.config.limits.handshake = Duration::from_millis(50);
    let server = site.start();
    for bytes in [0, 1, 7, 8, 40] {
        let mut stream = dial(&server, 0);
        let greeting: Greeting = receive(&mut stream);
        let hello = framed(&Claim::of(&site.key, 5, Purpose::Work).hello(&greeting).1);
        stream.write_all(&hello[..bytes]).unwrap();
        let Answer::Refused { reason } = receive(&mut stream) else { panic!("{bytes} bytes: it was not refused") };
        assert!(reason.contains("did not complete within"), "{reason}");
    }
}

/// Promise: a key id that does not exist is refused exactly like a wrong key, with the same text.
#[test]
fn unknown_keys_look_like_wrong_keys() {
    let scene = Scene::new();
    let host = scene.site.config.volume.add_host_key("host").unwrap();
    let refusal = |key_id: u64, key: [u8; 32]| {
        let claim = Claim { key: VolumeKey(key), key_id: KeyId(key_id), ..scene.claim() };
        Remote::connect(&scene.server, &claim).err()
    };
    assert_eq!(refusal(host.id, host.secret), None);
    let wrong = refusal(host.id, [7; 32]).unwrap();
    assert_eq!(refusal(host.id ^ 1, [7; 32]).unwrap(), wrong);
    assert_eq!(refusal(0, host.secret).unwrap(), wrong);
    assert!(wrong.contains("was it revoked"), "{wrong}");
}
