use super::*;
use crate::handshake::exchange::{Binding, Initiator, Responder};
use crate::handshake::{Channel, KeyId, Offer, Purpose, VolumeKey, Welcome};

/// The two ends of one connection.
fn ends() -> (Records, Records) {
    let binding = Binding {
        volume: [1; 16],
        key: KeyId::VOLUME,
        purpose: Purpose::Work,
        session: 3,
        worker: 0,
        channel: Channel::Network,
        nonce: [5; 16],
    };
    let key = VolumeKey([7; 32]);
    let (client, hello) = Initiator::begin(&key, &binding, &Offer::default()).unwrap();
    let (server, _) = Responder::accept(&key, &binding, &hello).unwrap();
    let (answer, server) = server.finish(&Welcome::Refused { reason: String::new() }).unwrap();
    (client.finish(&answer).unwrap().1, server)
}

fn sealed(records: &mut Records, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    records.seal(plain, &mut out).unwrap();
    out
}

/// Promise: a stream of any length is decrypted unchanged, however it is split on arrival, also across a change of key.
#[test]
fn a_stream_comes_out_as_it_went_in() {
    let (mut client, mut server) = ends();
    for length in [0, 1, 100, PLAIN_BYTES_MAX - 1, PLAIN_BYTES_MAX, PLAIN_BYTES_MAX + 1, 3 * PLAIN_BYTES_MAX] {
        let plain: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let bytes = sealed(&mut client, &plain);
        let (mut received, mut opened) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(1000) {
            received.extend_from_slice(piece);
            server.open_all(&mut received, &mut opened).unwrap();
        }
        assert!(opened == plain && received.is_empty(), "{length} bytes");
    }
}

/// Promise: each direction changes its key after a fixed number of records, and both sides change it at the same
/// record.
#[test]
fn keys_change_after_so_many_records() {
    let (mut client, mut server) = ends();
    let (mut out, mut plain) = (Vec::new(), Vec::new());
    for record in 0..2 * REKEY_RECORDS + 5 {
        out.clear();
        plain.clear();
        client.seal(&record.to_le_bytes(), &mut out).unwrap();
        assert_eq!(server.open(&out, &mut plain).unwrap(), out.len());
        assert_eq!(plain, record.to_le_bytes());
    }
    // The other direction still has its first key.
    let answer = sealed(&mut server, b"answer");
    assert!(client.open(&answer, &mut plain).is_ok());
}

/// Promise: records that are reordered, repeated, left out, changed or sent back fail to decrypt, and so does
/// everything after them.
#[test]
fn only_the_next_record_opens() {
    type Attack = fn(&mut Records, &mut Records) -> Vec<u8>;
    let cases: [(&str, Attack); 6] = [
        ("exchanged", |client, _| {
            let [one, other] = [b"1", b"2"].map(|plain| sealed(client, plain));
            [other, one].concat()
        }),
        ("repeated", |client, server| {
            let one = sealed(client, b"1");
            server.open(&one, &mut Vec::new()).unwrap();
            one
        }),
        ("left out", |client, _| {
            sealed(client, b"1");
            sealed(client, b"2")
        }),
        ("changed", |client, _| {
            let mut one = sealed(client, b"1");
            *one.last_mut().unwrap() ^= 0x80;
            one
        }),
        ("sent back", |_, server| sealed(server, b"1")),
        ("of another connection", |_, _| sealed(&mut ends().0, b"1")),
    ];
    for (name, wrong) in cases {
        let (mut client, mut server) = ends();
        let wrong = wrong(&mut client, &mut server);
        let mut plain = Vec::new();
        assert!(matches!(server.open(&wrong, &mut plain), Err(RecordError::Unauthentic(_))), "{name}");
        assert!(plain.is_empty(), "{name}: something came out");
        let next = sealed(&mut client, b"next");
        assert_eq!(server.open(&next, &mut plain), Err(RecordError::Ended), "{name}");
    }
}

/// Promise: an incomplete record is kept until the rest arrives; a length that no record has ends the connection.
#[test]
fn parts_are_waited_for() {
    let (mut client, mut server) = ends();
    let whole = sealed(&mut client, b"whole");
    let mut plain = Vec::new();
    for cut in 0..whole.len() {
        assert_eq!(server.open(&whole[..cut], &mut plain), Ok(0));
    }
    assert_eq!(server.open(&whole, &mut plain), Ok(whole.len()));
    for short in 0..=16_u16 {
        let (_, mut server) = ends();
        let bytes = [&short.to_le_bytes()[..], &[0; 16]].concat();
        assert_eq!(server.open(&bytes, &mut plain), Err(RecordError::TooShort(short.into())));
    }
}
