//! Protocol messages, as frames and as bodies of valid frames.
//!
//! Input: `Q` request, `P` response, `G` greeting, `H` hello, `A` answer or `W` welcome, and the body of a frame; `T`
//! and a stream of frames.

use super::choice;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use varve_proto::frame::{self, HEADER_BYTES};
use varve_proto::handshake::{Answer, Greeting, Hello, Welcome};
use varve_proto::{Request, Response};

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'Q', body)) => reads_body::<Request>(body),
        Some((b'P', body)) => reads_body::<Response>(body),
        Some((b'G', body)) => reads_body::<Greeting>(body),
        Some((b'H', body)) => reads_body::<Hello>(body),
        Some((b'A', body)) => reads_body::<Answer>(body),
        Some((b'W', body)) => reads_body::<Welcome>(body),
        Some((b'T', stream)) => reads_stream(stream),
        _ => false,
    }
}

fn reads_body<M: Serialize + DeserializeOwned + PartialEq + Debug>(body: &[u8]) -> bool {
    let mut sealed = Vec::new();
    frame::encode_body(body, &mut sealed).expect("the input is shorter than a frame may be");
    let header: &[u8; HEADER_BYTES] = sealed.first_chunk().expect("encoded above");
    let Ok(message) = frame::decode::<M>(header, &sealed[HEADER_BYTES..]) else { return false };
    let mut again = Vec::new();
    frame::encode(&message, &mut again).expect("no longer than what was read");
    let (read, length) = frame::take::<M>(&again).expect("what is written is read").expect("the frame is whole");
    assert!(read == message && length == again.len(), "{message:?} came back as {read:?}");
    true
}

fn reads_stream(mut stream: &[u8]) -> bool {
    while let Ok(Some((_, length))) = frame::take::<Request>(stream) {
        stream = &stream[length..];
    }
    stream.is_empty()
}
