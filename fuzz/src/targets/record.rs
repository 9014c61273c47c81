//! Records of a connection.
//!
//! Input: `R` and bytes in place of records; `S`, the length of pieces, and bytes to be sent in records, which arrive
//! in such pieces; `X`, a position, a mask and bytes, whose records are changed at that position.

use super::choice;
use std::cell::RefCell;
use varve_proto::handshake::exchange::{Binding, Initiator, Responder};
use varve_proto::handshake::{Channel, KeyId, Offer, Purpose, VolumeKey, Welcome};
use varve_proto::record::Records;

thread_local! {
    /// Endpoints that have not failed yet: a key exchange takes far longer than a record.
    static ENDS: RefCell<Option<(Records, Records)>> = const { RefCell::new(None) };
}

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
    let (client, hello) = Initiator::begin(&key, &binding, &Offer::default()).expect("it is sound");
    let (server, _) = Responder::accept(&key, &binding, &hello).expect("it is sound");
    let (answer, server) = server.finish(&Welcome::Refused { reason: String::new() }).expect("it is short");
    (client.finish(&answer).expect("it is sound").1, server)
}

pub fn reads(bytes: &[u8]) -> bool {
    let (mut client, mut server) = ENDS.with(|ends_kept| ends_kept.borrow_mut().take()).unwrap_or_else(ends);
    let read = match choice(bytes) {
        Some((b'R', noise)) => {
            let mut plain = Vec::new();
            // Decrypts nothing, or reads the beginning of a record that never ends, or fails; never yields bytes.
            let _ = server.open_all(&mut noise.to_vec(), &mut plain);
            assert!(plain.is_empty(), "noise was opened");
            return false;
        }
        Some((b'S', [piece, plain @ ..])) => whole(&mut client, &mut server, 1 + usize::from(*piece), plain),
        Some((b'X', [high, low, mask, plain @ ..])) => {
            let at = usize::from(u16::from_be_bytes([*high, *low]));
            return changed(&mut client, &mut server, at, *mask, plain);
        }
        _ => false,
    };
    ENDS.with(|ends_kept| *ends_kept.borrow_mut() = Some((client, server)));
    read
}

fn whole(client: &mut Records, server: &mut Records, piece: usize, plain: &[u8]) -> bool {
    let (mut sealed, mut received, mut opened) = (Vec::new(), Vec::new(), Vec::new());
    client.seal(plain, &mut sealed).expect("any bytes can be sealed");
    for piece in sealed.chunks(piece) {
        received.extend_from_slice(piece);
        server.open_all(&mut received, &mut opened).expect("nothing was changed");
    }
    assert!(opened == plain && received.is_empty(), "the stream came out otherwise");
    true
}

fn changed(client: &mut Records, server: &mut Records, at: usize, mask: u8, plain: &[u8]) -> bool {
    let mut sealed = Vec::new();
    client.seal(plain, &mut sealed).expect("any bytes can be sealed");
    if sealed.is_empty() || mask == 0 {
        return false;
    }
    let at = at % sealed.len();
    sealed[at] ^= mask;
    let mut opened = Vec::new();
    // A record with a longer length waits for more bytes.
    let _ = server.open_all(&mut sealed, &mut opened);
    assert!(opened.len() < plain.len() && plain.starts_with(&opened), "a record that was changed was opened");
    true
}
