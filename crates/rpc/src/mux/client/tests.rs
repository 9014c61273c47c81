use super::*;
use crate::wire::NotBegun;
use futures::task::noop_waker;

const WAIT: Duration = Duration::from_secs(5);

fn half(in_flight: usize, waiting: usize, queued_bytes: usize) -> ClientHalf {
    ClientHalf::new(Limits { in_flight, waiting, queued_bytes, ..Limits::default() })
}

fn begin(half: &mut ClientHalf) -> u64 {
    assert_eq!(half.admit(&mut None, &noop_waker()), Ok(true));
    half.begin(Bytes::from_static(b"request"), WAIT)
}

fn sent(half: &mut ClientHalf) -> Vec<Message> {
    std::iter::from_fn(|| half.next_outgoing()).collect()
}

fn reply(call: u64) -> Message {
    Message::Reply { call, body: Bytes::from_static(b"reply") }
}

fn receive(half: &mut ClientHalf, message: Message) -> Result<(), LinkError> {
    half.received(message, Instant(Duration::ZERO))
}

fn polled(half: &mut ClientHalf, call: u64) -> Option<Result<Bytes, CallError>> {
    half.poll(call, &noop_waker())
}

/// Promise: replies go to their calls, whatever their order.
#[test]
fn replies_find_their_calls() {
    let mut half = half(8, 8, 1 << 20);
    let calls = [begin(&mut half), begin(&mut half), begin(&mut half)];
    assert_eq!(sent(&mut half).len(), 3);
    receive(&mut half, Message::NotBegun { call: calls[2], reason: NotBegun::Expired }).unwrap();
    receive(&mut half, reply(calls[0])).unwrap();
    assert_eq!(polled(&mut half, calls[1]), None);
    assert_eq!(polled(&mut half, calls[0]), Some(Ok(Bytes::from_static(b"reply"))));
    assert_eq!(polled(&mut half, calls[2]), Some(Err(CallError::NotBegun(NotBegun::Expired))));
    assert_eq!((half.in_flight(), half.calls.len()), (1, 1));
}

/// Promise: replies to calls that were not sent, or were answered, end the connection.
#[test]
fn unasked_replies_are_refused() {
    let mut half = half(8, 8, 1 << 20);
    let call = begin(&mut half);
    assert!(receive(&mut half, reply(call)).is_err(), "it was not sent");
    let call = begin(&mut half);
    sent(&mut half);
    receive(&mut half, reply(call)).unwrap();
    assert!(receive(&mut half, reply(call)).is_err(), "twice");
    assert!(receive(&mut half, reply(99)).is_err());
    assert!(receive(&mut half, Message::Ping).is_err());
    assert!(receive(&mut half, Message::Pong).is_ok());
}

/// Promise: callers beyond the limits wait in line, and each place goes to the one that waits longest.
#[test]
fn callers_wait_in_line() {
    let mut half = half(1, 2, 1 << 20);
    let (first, waker) = (begin(&mut half), noop_waker());
    let (mut second, mut third) = (None, None);
    assert_eq!(half.admit(&mut second, &waker), Ok(false));
    assert_eq!(half.admit(&mut third, &waker), Ok(false));
    assert_eq!(half.admit(&mut None, &waker), Err(Cause::Overload(2)));
    sent(&mut half);
    receive(&mut half, reply(first)).unwrap();
    assert_eq!(half.take_woken().len(), 1, "the second caller; nobody polls the first call");
    assert_eq!(half.admit(&mut third, &waker), Ok(false), "not its turn");
    assert_eq!(half.admit(&mut None, &waker), Err(Cause::Overload(2)), "nobody overtakes");
    half.leave(second.unwrap());
    assert_eq!(half.take_woken().len(), 1);
    assert_eq!(half.admit(&mut third, &waker), Ok(true));
    assert_eq!(third, None);
}

/// Promise: queued bytes limit how many calls are let in, also of callers that left.
#[test]
fn queued_bytes_are_limited() {
    let mut half = half(1000, 8, 100);
    let calls = (0..4).map(|_| begin(&mut half)).collect::<Vec<_>>();
    assert!(half.outgoing.bytes >= 100);
    for call in calls {
        assert!(!half.abandon(call));
    }
    let mut ticket = None;
    assert_eq!(half.admit(&mut ticket, &noop_waker()), Ok(false));
    assert_eq!(sent(&mut half), [], "their callers left");
    assert_eq!((half.admit(&mut ticket, &noop_waker()), half.in_flight()), (Ok(true), 0));
}

/// Promise: a call that was sent and given up keeps its place until the server answers, and the server is told.
#[test]
fn abandoned_calls_keep_their_place() {
    let mut half = half(1, 8, 1 << 20);
    let call = begin(&mut half);
    sent(&mut half);
    assert!(half.abandon(call));
    assert_eq!(sent(&mut half), [Message::Cancel { call }]);
    let mut ticket = None;
    assert_eq!(half.admit(&mut ticket, &noop_waker()), Ok(false));
    receive(&mut half, reply(call)).unwrap();
    assert_eq!((half.take_woken().len(), half.calls.len()), (1, 0));
    assert_eq!(half.admit(&mut ticket, &noop_waker()), Ok(true));
}

/// Promise: when a connection breaks, calls that were sent have an unknown outcome, others have none, and nothing is
/// let in.
#[test]
fn broken_connection_ends_all_calls() {
    let mut half = half(4, 8, 1 << 20);
    let (answered, unknown, abandoned) = (begin(&mut half), begin(&mut half), begin(&mut half));
    sent(&mut half);
    let unsent = begin(&mut half);
    receive(&mut half, reply(answered)).unwrap();
    half.abandon(abandoned);
    half.ended(&LinkError::Closed);
    let lost = || Cause::Lost(LinkError::Closed.to_string());
    assert_eq!(polled(&mut half, answered).unwrap().as_deref(), Ok(&b"reply"[..]));
    assert_eq!(polled(&mut half, unknown), Some(Err(CallError::Unknown(lost()))));
    assert_eq!(polled(&mut half, unsent), Some(Err(CallError::NotSent(lost()))));
    assert_eq!(half.admit(&mut None, &noop_waker()), Err(lost()));
    assert!(half.calls.is_empty() && half.next_outgoing().is_none() && !half.awaits());
}
