//! The bytes that `formats/wire.md` shows.

use varve_proto::{Call, CallId, Request, WireCredentials, frame};

const EXAMPLE: &str = "82 02 03 ac 02 05 e8 07 64 01 07 00 00 02 01 03 72 75 6e ed 03";

/// formats/wire.md, "Example".
#[test]
fn golden_bytes() {
    let request = Request {
        id: CallId { session: 0x0102, slot: 3, number: 300 },
        shard: 5,
        credentials: WireCredentials::user(1000, 100, vec![7]),
        released: vec![],
        call: Call::MakeDirectory { parent: 1, name: b"run".to_vec(), mode: 0o755 },
    };
    let bytes = frame::body_of(&request).unwrap();
    let shown: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown.join(" "), EXAMPLE);
    assert_eq!(frame::decode_body::<Request>(&bytes).unwrap(), request);
}
