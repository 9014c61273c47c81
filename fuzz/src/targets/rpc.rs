//! Messages that carry calls, and the state machines of both halves of a connection.
//!
//! Input: the length of pieces, and bytes that arrive in such pieces, at a client and at a server. The client has made
//! calls 1 and 2, has sent them, and has given 2 up.

use super::choice;
use bytes::Bytes;
use futures::task::noop_waker;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_rpc::Limits;
use varve_rpc::mux::Half;
use varve_rpc::mux::client::ClientHalf;
use varve_rpc::mux::server::ServerHalf;
use varve_rpc::wire::{Decoder, Message};

const NOW: Instant = Instant(Duration::from_secs(1000));

/// Calls that run at a server: more than a few never matter.
const LIMITS: Limits = Limits { in_flight: 4, waiting: 4, queued_bytes: 4096, silence: Duration::from_secs(60) };

pub fn reads(bytes: &[u8]) -> bool {
    let Some((piece, stream)) = choice(bytes) else { return false };
    let mut decoder = Decoder::default();
    let (mut client, mut server) = (Some(client()), Some(ServerHalf::new(LIMITS)));
    for piece in stream.chunks(1 + usize::from(piece)) {
        decoder.input().extend_from_slice(piece);
        loop {
            let message = match decoder.take() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => return false,
            };
            repeats(&message);
            client = client.and_then(|client| at_client(client, message.clone()));
            server = server.and_then(|server| at_server(server, message));
        }
    }
    decoder.is_empty()
}

/// A message that was read is written as it was, and read again.
fn repeats(message: &Message) {
    let (mut bytes, mut decoder) = (Vec::new(), Decoder::default());
    message.encode(&mut bytes);
    decoder.input().extend_from_slice(&bytes);
    assert_eq!(decoder.take().as_ref(), Ok(&Some(message.clone())));
}

fn client() -> ClientHalf {
    let mut client = ClientHalf::new(LIMITS);
    for call in [1, 2] {
        assert_eq!(client.admit(&mut None, &noop_waker()), Ok(true));
        assert_eq!(client.begin(Bytes::new(), Duration::from_secs(5)), call);
    }
    while client.next_outgoing().is_some() {}
    client.abandon(2);
    client
}

fn at_client(mut client: ClientHalf, message: Message) -> Option<ClientHalf> {
    let answers = matches!(&message, Message::Reply { call: 1 | 2, .. } | Message::NotBegun { call: 1 | 2, .. });
    let received = client.received(message.clone(), NOW);
    assert!(received.is_err() || answers || message == Message::Pong, "{message:?} was taken");
    assert!(client.in_flight() <= 2);
    received.is_ok().then_some(client)
}

fn at_server(mut server: ServerHalf, message: Message) -> Option<ServerHalf> {
    if server.capacity() == 0 {
        // It reads no further.
        return None;
    }
    server.received(message, NOW).ok()?;
    for (number, call) in server.take_received().into_iter().enumerate() {
        if number % 2 == 0 {
            server.answer(call.number, call.body).expect("it is no longer than the request");
        }
    }
    server.next_outgoing();
    assert!(server.capacity() <= LIMITS.in_flight + 1);
    Some(server)
}
