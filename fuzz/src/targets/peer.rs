//! Messages between shards.
//!
//! Input: `Q` request or `P` response, and the message.

use super::choice;
use varve_schema::peer::codec::{decode_request, decode_response, encode_request, encode_response};
use varve_schema::samples::{peer_calls, peer_replies, peer_request, peer_response};

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'Q', message)) => reads_request(message),
        Some((b'P', message)) => reads_response(message),
        _ => false,
    }
}

fn reads_request(bytes: &[u8]) -> bool {
    let Ok(request) = decode_request(bytes) else { return false };
    let again = encode_request(&request).expect("no longer than what was read");
    assert_eq!(decode_request(&again), Ok(request), "what is read is written and read again");
    true
}

fn reads_response(bytes: &[u8]) -> bool {
    let Ok(response) = decode_response(bytes) else { return false };
    let again = encode_response(&response).expect("no longer than what was read");
    assert_eq!(decode_response(&again), Ok(response), "what is read is written and read again");
    true
}

/// The corpus of this version: a message of every kind, and the name of its file.
pub fn golden() -> Vec<(String, Vec<u8>)> {
    let input = |choice: u8, message: Vec<u8>| [&[choice], &message[..]].concat();
    let requests = peer_calls().into_iter().map(|(about, call)| {
        let bytes = encode_request(&peer_request(call)).expect("a short message");
        (format!("golden-request-{about}"), input(b'Q', bytes))
    });
    let responses = peer_replies().into_iter().map(|(about, reply)| {
        let bytes = encode_response(&peer_response(reply)).expect("a short message");
        (format!("golden-response-{about}"), input(b'P', bytes))
    });
    requests.chain(responses).collect()
}
