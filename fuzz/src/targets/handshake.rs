//! The handshake, from both sides: messages of an unauthenticated client to a server, and answers of a false server.
//!
//! Input: `H` and the body of a `Hello`, read by a server with a fixed key and nonce; `A` and the body of an `Answer`,
//! read by a client that has just sent its `Hello`.

use super::choice;
use varve_proto::frame::{self, HEADER_BYTES};
use varve_proto::handshake::exchange::{Binding, Initiator, Responder};
use varve_proto::handshake::{Answer, Channel, Hello, KeyId, Offer, Purpose, VolumeKey, Welcome};

const KEY: VolumeKey = VolumeKey([7; 32]);
const NONCE: [u8; 16] = [5; 16];

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'H', body)) => decoded::<Hello>(body).is_some_and(accepts),
        Some((b'A', body)) => decoded::<Answer>(body).is_some_and(believes),
        _ => false,
    }
}

fn decoded<M: serde::de::DeserializeOwned>(body: &[u8]) -> Option<M> {
    let mut sealed = Vec::new();
    frame::encode_body(body, &mut sealed).expect("the input is shorter than a frame may be");
    let header: &[u8; HEADER_BYTES] = sealed.first_chunk().expect("encoded above");
    frame::decode(header, &sealed[HEADER_BYTES..]).ok()
}

fn binding(hello: &Hello) -> Binding {
    Binding {
        volume: hello.volume,
        key: hello.key,
        purpose: hello.purpose,
        session: hello.session,
        worker: hello.worker,
        channel: Channel::Network,
        nonce: NONCE,
    }
}

/// A `Hello` that the server of this version accepts, as in `corpus/handshake/golden-hello`.
pub fn golden_hello() -> Vec<u8> {
    let mut hello = unsealed();
    let (_, sealed) = Initiator::begin(&KEY, &binding(&hello), &Offer::default()).expect("it is sound");
    hello.sealed = sealed;
    let mut framed = Vec::new();
    frame::encode(&hello, &mut framed).expect("it is small");
    [b"H", &framed[HEADER_BYTES..]].concat()
}

fn unsealed() -> Hello {
    Hello {
        version: varve_proto::VERSION,
        volume: [1; 16],
        key: KeyId::VOLUME,
        purpose: Purpose::Work,
        session: 3,
        worker: 0,
        sealed: Vec::new(),
    }
}

fn accepts(hello: Hello) -> bool {
    let Ok((responder, _)) = Responder::accept(&KEY, &binding(&hello), &hello.sealed) else { return false };
    let other = Binding { nonce: [6; 16], ..binding(&hello) };
    assert!(Responder::accept(&KEY, &other, &hello.sealed).is_err(), "a proof counts on two connections");
    responder.finish(&Welcome::Refused { reason: "no".into() }).is_ok()
}

/// A client accepts no answer that was not made with the key for this `Hello`; it reads a refusal.
fn believes(answer: Answer) -> bool {
    let hello = unsealed();
    let (initiator, _) = Initiator::begin(&KEY, &binding(&hello), &Offer::default()).expect("it is sound");
    match answer {
        Answer::Sealed(sealed) => {
            assert!(initiator.finish(&sealed).is_err(), "an answer from nowhere is believed");
            false
        }
        Answer::Refused { reason } | Answer::Crowded { reason } => {
            let shown = varve_proto::handshake::printable(&reason);
            assert!(!shown.chars().any(char::is_control), "{shown:?} would move a terminal");
            true
        }
    }
}
