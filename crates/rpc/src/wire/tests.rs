use super::*;
use proptest::prelude::*;

fn taken(decoder: &mut Decoder) -> Vec<Message> {
    std::iter::from_fn(|| decoder.take().unwrap()).collect()
}

fn one(bytes: &[u8]) -> Result<Option<Message>, WireError> {
    let mut decoder = Decoder::default();
    decoder.input().extend_from_slice(bytes);
    decoder.take()
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

/// Corrects the checksum of a message that was changed.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = xxh3_64(&bytes[8..]) as u32;
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn any_message() -> impl Strategy<Value = Message> {
    let body = prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    let call = 1..u64::MAX;
    prop_oneof![
        (call.clone(), 0..u32::MAX, body.clone()).prop_map(|(call, wait, body)| {
            Message::Request { call, deadline: Duration::from_millis(wait.into()), body }
        }),
        (call.clone(), body).prop_map(|(call, body)| Message::Reply { call, body }),
        call.clone().prop_map(|call| Message::Cancel { call }),
        call.prop_map(|call| Message::NotBegun { call, reason: NotBegun::Expired }),
        Just(Message::Ping),
        Just(Message::Pong),
    ]
}

proptest! {
    /// Promise: messages come out as they went in, however the stream is cut.
    #[test]
    fn messages_survive_any_cut(messages in prop::collection::vec(any_message(), 1..8), piece in 1_usize..100) {
        let mut stream = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut stream));
        let (mut decoder, mut found) = (Decoder::default(), Vec::new());
        for piece in stream.chunks(piece) {
            decoder.input().extend_from_slice(piece);
            found.extend(taken(&mut decoder));
        }
        prop_assert_eq!(found, messages);
        prop_assert!(decoder.is_empty());
    }

    /// Promise: any bytes are a message, a part of one, or an error.
    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..200), sealed: bool) {
        let noise = if sealed && noise.len() >= HEADER_BYTES { resealed(noise) } else { noise };
        let _ = one(&noise);
    }
}

/// Promise: the bytes are those of formats/rpc.md.
#[test]
fn golden_messages() {
    let deadline = Duration::from_millis(2000);
    let golden = [
        (
            Message::Request { call: 7, deadline, body: Bytes::from_static(b"stat") },
            "040000004c85c8b901000000d0070000070000000000000073746174",
        ),
        (
            Message::Reply { call: 7, body: Bytes::from_static(b"ok") },
            "02000000cb836027020000000000000007000000000000006f6b",
        ),
        (Message::Cancel { call: 7 }, "000000003f2d9ff803000000000000000700000000000000"),
        (Message::NotBegun { call: 7, reason: NotBegun::Stopping }, "00000000d4b1e83904020000000000000700000000000000"),
        (Message::Ping, "00000000f6a1411505000000000000000000000000000000"),
        (Message::Pong, "00000000c0cd58cd06000000000000000000000000000000"),
    ];
    for (message, hex) in golden {
        let bytes = encoded(&message);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{message:?}");
        assert_eq!(one(&bytes), Ok(Some(message)));
    }
}

/// Promise: a length above the limit is refused before its bytes arrive, and nothing is reserved for it.
#[test]
fn long_messages_are_refused_early() {
    let mut header = encoded(&Message::Ping);
    header[..4].copy_from_slice(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
    assert_eq!(one(&header), Err(WireError::TooLong(BODY_BYTES_MAX + 1)));
    header[..4].copy_from_slice(&(BODY_BYTES_MAX as u32).to_le_bytes());
    assert_eq!(one(&header), Ok(None));
    let largest = Message::Reply { call: 1, body: Bytes::from(vec![7; BODY_BYTES_MAX]) };
    assert_eq!(one(&encoded(&largest)), Ok(Some(largest)));
}

/// Promise: a changed bit anywhere in a message is noticed.
#[test]
fn changed_messages_are_refused() {
    let sound = encoded(&Message::Reply { call: 1 << 40, body: Bytes::from_static(b"reply") });
    for bit in 0..sound.len() * 8 {
        let mut changed = sound.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // A greater length waits for more bytes.
        assert!(!matches!(one(&changed), Ok(Some(_))), "bit {bit}");
    }
}

/// Promise: headers that no side sends are refused, even with a correct checksum.
#[test]
fn impossible_headers_are_refused() {
    let cancel = encoded(&Message::Cancel { call: 1 });
    let ping = encoded(&Message::Ping);
    for (sound, at, value) in [(&cancel, 8, 0), (&cancel, 8, 7), (&cancel, 9, 1), (&cancel, 10, 1), (&cancel, 12, 1)] {
        let mut changed = sound.clone();
        changed[at] = value;
        assert!(matches!(one(&resealed(changed)), Err(WireError::Header { .. })), "byte {at} is {value}");
    }
    let mut numbered = ping.clone();
    numbered[16] = 1;
    let mut unnumbered = cancel.clone();
    unnumbered[16] = 0;
    let mut reason = encoded(&Message::NotBegun { call: 1, reason: NotBegun::Cancelled });
    reason[9] = 3;
    let mut body = ping;
    body.push(0);
    body[0] = 1;
    for changed in [numbered, unnumbered, reason, body] {
        assert!(matches!(one(&resealed(changed)), Err(WireError::Header { .. })));
    }
}
