use super::*;
use std::time::Duration;

const NOW: Instant = Instant(Duration::from_secs(100));

fn half(in_flight: usize, queued_bytes: usize) -> ServerHalf {
    ServerHalf::new(Limits { in_flight, queued_bytes, ..Limits::default() })
}

fn request(call: u64, wait: u64) -> Message {
    Message::Request { call, deadline: Duration::from_secs(wait), body: Bytes::from_static(b"request") }
}

fn sent(half: &mut ServerHalf) -> Vec<Message> {
    std::iter::from_fn(|| half.next_outgoing()).collect()
}

/// Promise: calls are begun with their deadline, and answered in any order.
#[test]
fn calls_are_answered_in_any_order() {
    let mut half = half(8, 1 << 20);
    half.received(request(1, 5), NOW).unwrap();
    half.received(request(2, 5), NOW).unwrap();
    let calls = half.take_received();
    assert!(calls.iter().all(|call| call.deadline == NOW.after(Duration::from_secs(5))));
    half.answer(2, Bytes::from_static(b"two")).unwrap();
    half.answer(1, Bytes::from_static(b"one")).unwrap();
    let numbers: Vec<u64> = sent(&mut half)
        .iter()
        .map(|message| if let Message::Reply { call, .. } = message { *call } else { 0 })
        .collect();
    assert_eq!(numbers, [2, 1]);
}

/// Promise: calls that are late, that come while the server stops, or that were cancelled before, are not begun.
#[test]
fn calls_are_refused_before_they_begin() {
    let mut half = half(8, 1 << 20);
    half.received(request(1, 0), NOW).unwrap();
    half.received(request(2, 5), NOW).unwrap();
    half.received(Message::Cancel { call: 2 }, NOW).unwrap();
    half.received(Message::Cancel { call: 77 }, NOW).unwrap();
    half.received(request(3, 5), NOW).unwrap();
    half.stop();
    half.received(request(4, 5), NOW).unwrap();
    let refused = |call, reason| Message::NotBegun { call, reason };
    let expected = [refused(1, NotBegun::Expired), refused(2, NotBegun::Cancelled), refused(4, NotBegun::Stopping)];
    assert_eq!(sent(&mut half), expected);
    assert_eq!(half.take_received().len(), 1);
    assert!(!half.is_done(), "one call runs");
    half.answer(3, Bytes::new()).unwrap();
    sent(&mut half);
    assert!(half.is_done());
}

/// Promise: a running call learns that its caller left, and that the connection ended; its reply is then dropped.
#[test]
fn running_calls_learn_of_cancellation() {
    let mut half = half(8, 1 << 20);
    half.received(request(1, 5), NOW).unwrap();
    half.received(request(2, 5), NOW).unwrap();
    let calls = half.take_received();
    half.received(Message::Cancel { call: 1 }, NOW).unwrap();
    assert!(calls[0].cancel.is_cancelled() && !calls[1].cancel.is_cancelled());
    half.ended(&LinkError::Closed);
    assert!(calls[1].cancel.is_cancelled());
    half.answer(2, Bytes::new()).unwrap();
    assert_eq!(sent(&mut half), []);
}

/// Promise: a client at the limit can still cancel and ask; one above it is not read any more, nor one that does not
/// read its replies.
#[test]
fn reading_stops_at_the_limits() {
    let mut half = half(2, 1000);
    half.received(request(1, 5), NOW).unwrap();
    half.received(request(2, 5), NOW).unwrap();
    assert_eq!(half.capacity(), 1);
    half.received(request(3, 5), NOW).unwrap();
    assert_eq!(half.capacity(), 0);
    half.take_received();
    half.answer(1, Bytes::from(vec![0; 1000])).unwrap();
    assert_eq!(half.capacity(), 0, "the reply is not sent");
    sent(&mut half);
    assert_eq!(half.capacity(), 1);
    (0..100).for_each(|_| half.received(Message::Ping, NOW).unwrap());
    assert_eq!(sent(&mut half), [Message::Pong], "one for all");
}

/// Promise: messages that a client may not send end the connection.
#[test]
fn foreign_messages_are_refused() {
    let mut half = half(8, 1 << 20);
    half.received(request(1, 5), NOW).unwrap();
    assert!(half.received(request(1, 5), NOW).is_err(), "the number is in use");
    assert!(half.received(Message::Pong, NOW).is_err());
    assert!(half.received(Message::Reply { call: 1, body: Bytes::new() }, NOW).is_err());
    half.take_received();
    assert!(half.answer(1, Bytes::from(vec![0; BODY_BYTES_MAX + 1])).is_err(), "too long a reply");
}
