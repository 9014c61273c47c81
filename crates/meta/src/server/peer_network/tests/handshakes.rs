//! Admission of servers, and their proofs.

use super::*;
use crate::server::tests::client::{Claim, receive, send};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use varve_proto::handshake::{Answer, Greeting, KeyId, Purpose, Welcome};
use varve_rpc::wire::Message;

const MEMBER: u64 = 1;

fn claim(server: u64) -> Claim {
    Claim::of(&KEY, MEMBER, Purpose::Peer { server })
}

fn connect(node: &Node) -> UnixStream {
    let stream = UnixStream::connect(node.network.address().unix.as_ref().unwrap()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn shake_hands(node: &Node, claim: &Claim) -> Result<Welcome, String> {
    claim.shake_hands(&mut connect(node)).map(|(welcome, _)| welcome)
}

/// Sets which numbers the server knows. It takes the list over soon, not at once.
fn admit(node: &Node, numbers: &[u64]) {
    let address = WorkerAddress { unix: None, tcp: None };
    let member = |number: &u64| PeerMember { number: *number, boot_id: String::new(), address: address.clone() };
    node.network.handle().set_members(numbers.iter().map(member).collect());
    std::thread::sleep(Duration::from_millis(100));
}

/// Promise: only a holder of the volume's own key, who names this server and is a member, may call it.
#[test]
fn only_members_with_the_volumes_key_are_admitted() {
    let node = Node::start(2);
    admit(&node, &[MEMBER, 2]);
    assert_eq!(shake_hands(&node, &claim(2)), Ok(Welcome::Peer));
    let wrong = "the proof does not fit";
    let cases = [
        ("another key", Claim { key: VolumeKey([1; 32]), ..claim(2) }, wrong),
        ("a host's key", Claim { key_id: KeyId(7), ..claim(2) }, wrong),
        ("another server", claim(3), "this is server 0000000000000002"),
        ("itself", Claim { session: 2, ..claim(2) }, "does not call itself"),
        ("no member", Claim { session: 8, ..claim(2) }, "does not know server 0000000000000008"),
        ("a client", Claim { purpose: Purpose::Work, ..claim(2) }, "for servers of the volume"),
        ("an observer", Claim { purpose: Purpose::Observe, ..claim(2) }, "for servers of the volume"),
        ("an administrator", Claim { purpose: Purpose::Administer, ..claim(2) }, "for servers of the volume"),
        ("a worker's connection", Claim { worker: 1, ..claim(2) }, "this is worker 0"),
    ];
    for (name, claim, expected) in cases {
        let refused = shake_hands(&node, &claim).unwrap_err();
        assert!(refused.contains(expected), "{name}: {refused}");
    }
}

/// Promise: both numbers are part of the proof, so a relay that changes one of them gets a refusal.
#[test]
fn numbers_are_part_of_the_proof() {
    let node = Node::start(2);
    admit(&node, &[MEMBER, 5]);
    for (name, sent) in [("caller", Claim { session: 5, ..claim(2) }), ("server", claim(3))] {
        let mut stream = connect(&node);
        let greeting: Greeting = receive(&mut stream);
        let (_, mut hello) = sent.hello(&greeting);
        (hello.session, hello.purpose) = (MEMBER, Purpose::Peer { server: 2 });
        send(&mut stream, &hello);
        let answer: Answer = receive(&mut stream);
        assert!(matches!(&answer, Answer::Refused { reason } if reason.contains("the proof does not fit")), "{name}");
    }
}

/// Promise: a caller that the server does not know yet waits, and its call is carried out once the server knows it.
#[test]
fn caller_of_a_newer_map_waits() {
    let (a, b) = (Node::start(1), Node::start(2));
    a.knows(&[&b]);
    let call = a.begin(&b, fresh(1));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!call.is_finished());
    b.knows(&[&a]);
    assert_eq!(call.join().unwrap().unwrap(), done(&fresh(1)));
}

/// Promise: processes of other users are sent a reason only, and get no greeting.
#[test]
fn process_of_another_user_is_refused() {
    let path = sockets().join("trust");
    let mut config = Setup::new(2).config(path.clone());
    config.trusted = vec![rustix::process::geteuid().as_raw() + 1];
    let _network = PeerNetwork::start(config).unwrap();
    let mut stream = UnixStream::connect(path).unwrap();
    let answer: Answer = receive(&mut stream);
    assert!(matches!(&answer, Answer::Refused { reason } if reason.contains("may not serve")), "{answer:?}");
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

/// Promise: a peer with the key that breaks the protocol loses its connection, and others go on; a request that cannot
/// be read gets an error.
#[test]
fn garbage_of_a_peer_costs_its_connection_only() {
    let (a, b) = (Node::start(3), Node::start(2));
    a.knows(&[&b]);
    b.network.handle().set_members(vec![a.member(), PeerMember { number: MEMBER, ..a.member() }]);
    assert!(a.call(&b, &fresh(1)).is_ok());
    let unreadable = Message::Request { call: 1, deadline: SOON, body: Bytes::from_static(b"\x01junk") };
    for (garbage, ends) in [(vec![0; 100], true), (encoded(&Message::Pong), true), (encoded(&unreadable), false)] {
        let mut stream = connect(&b);
        claim(2).shake_hands(&mut stream).unwrap();
        stream.write_all(&garbage).unwrap();
        if ends {
            let mut rest = Vec::new();
            let closed = stream.read_to_end(&mut rest);
            assert!(closed.is_ok() || closed.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset));
        } else {
            let mut header = [0; varve_rpc::wire::HEADER_BYTES];
            stream.read_exact(&mut header).unwrap();
            let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
            stream.read_exact(&mut body).unwrap();
            let response = varve_schema::peer::codec::decode_response(&body).unwrap();
            assert!(matches!(&response.reply, PeerReply::Failed(why) if why.reason.contains("cannot read")));
        }
    }
    assert!(a.call(&b, &fresh(2)).is_ok());
}
