//! Guarantees of `formats/peer.md`: these bytes, and an error for everything else.

use super::*;
use crate::samples::{peer_calls, peer_replies, peer_request, peer_response};

const REQUEST: &str = "0101030201ac0205e807";
const RESPONSE: &str = "010502ac02";

/// The calls, in the order of [`peer_calls`].
const CALLS: &[&str] = &[
    "00020944000700000000000a014d",
    "01010304010944000700000000000a",
    "028a8080808080c003",
    "0340",
    "0403010944000700000000000a001245000700000000000a65d507b3925745856e0401090200028a8080808080c003016e02010200",
    "05010304010203010944000700000000000a001245000700000000000a65d507b3925745856e0401090200028a8080808080c003016e02010200010944000700000000000a01ac020001090105",
    "0601030401",
    "0702010304010304",
    "08010304",
    "09010304",
    "0a8a8080808080c003040103",
    "0b8a8080808080c0030302",
    "0c8a8080808080c003030203010944000700000000000a001245000700000000000a65d507b3925745856e0401090200028a8080808080c003016e0201020001010203018a8080808080c00310026f6b",
    "0d8a8080808080c00303020f01010102ed03000103021205040103",
    "0e8a8080808080c00301",
    "0f8a8080808080c00301",
    "100002090a",
    "100101090101010000",
    "10010109000101020301",
    "100201090100",
    "10030109020300",
    "100409",
];

/// The replies, in the order of [`peer_replies`].
const REPLIES: &[&str] = &[
    "00",
    "010200014f03010200",
    "020101500f01010102ed03000103021205040103",
    "03040103",
    "048a8080808080c003040103",
    "05ac02",
    "0601",
    "0700",
    "080302",
    "0900",
    "0901",
    "0a",
    "0b",
    "0c380466756c6c",
    "0d",
    "0e04",
    "0f",
    "100003000102",
    "100101",
    "100200",
    "100300",
    "100302ac02",
    "1004",
    "11",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn all_requests() -> Vec<(&'static str, PeerRequest)> {
    peer_calls().into_iter().map(|(about, call)| (about, peer_request(call))).collect()
}

fn all_responses() -> Vec<(&'static str, PeerResponse)> {
    peer_replies().into_iter().map(|(about, reply)| (about, peer_response(reply))).collect()
}

#[test]
fn golden_messages() {
    let requests: Vec<_> = all_requests().iter().map(|(_, request)| hex(&encode_request(request).unwrap())).collect();
    let golden: Vec<_> = CALLS.iter().map(|call| format!("{REQUEST}{call}")).collect();
    assert_eq!(requests, golden);
    let responses: Vec<_> =
        all_responses().iter().map(|(_, response)| hex(&encode_response(response).unwrap())).collect();
    let golden: Vec<_> = REPLIES.iter().map(|reply| format!("{RESPONSE}{reply}")).collect();
    assert_eq!(responses, golden);
}

#[test]
fn messages_survive_their_bytes() {
    for (about, request) in all_requests() {
        let bytes = encode_request(&request).unwrap();
        assert_eq!(decode_request(&bytes), Ok(request), "{about}");
    }
    for (about, response) in all_responses() {
        let bytes = encode_response(&response).unwrap();
        assert_eq!(decode_response(&bytes), Ok(response), "{about}");
    }
}

#[test]
fn truncated_and_extended_messages_are_refused() {
    for (about, request) in all_requests() {
        let mut bytes = encode_request(&request).unwrap();
        for end in 0..bytes.len() {
            assert!(decode_request(&bytes[..end]).is_err(), "{about} of {end} bytes");
        }
        bytes.push(0);
        assert!(matches!(decode_request(&bytes), Err(MessageError::Malformed(..))), "{about}");
    }
}

#[test]
fn other_versions_are_refused() {
    let mut bytes = encode_response(&peer_response(PeerReply::Done)).unwrap();
    bytes[0] = PEER_VERSION + 1;
    assert_eq!(decode_response(&bytes), Err(MessageError::Version { found: PEER_VERSION + 1 }));
}

#[test]
fn long_messages_are_refused_and_long_reasons_are_cut() {
    let keys = vec![Key::Directory(InodeId(1)); MESSAGE_BYTES_MAX / 10];
    assert!(matches!(encode_request(&peer_request(PeerCall::Fetch(keys))), Err(MessageError::TooLong(_))));
    assert!(matches!(decode_request(&vec![PEER_VERSION; MESSAGE_BYTES_MAX + 1]), Err(MessageError::TooLong(_))));
    let reason = "ä".repeat(REASON_BYTES_MAX);
    let bytes = encode_response(&peer_response(PeerReply::Failed(reason.into()))).unwrap();
    match decode_response(&bytes).unwrap().reply {
        PeerReply::Failed(cause) => assert_eq!(cause.reason, "ä".repeat(REASON_BYTES_MAX / 2)),
        other => panic!("{other:?}"),
    }
}
