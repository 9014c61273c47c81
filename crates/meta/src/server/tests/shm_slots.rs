//! Requests that clients post in their shared-memory slots.

use super::client::{call_bytes, decoded, opened, receive, reply, request};
use super::*;
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use varve_env::shm_slot::ClientSide;
use varve_proto::handshake::{self, Greeting, Offer};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client with a shared-memory slot.
struct Poster {
    stream: UnixStream,
    shm_slot: ClientSide,
    session: u64,
    /// Calls that went through the shared-memory slot.
    posted: usize,
    number: u64,
}

impl Poster {
    fn of(server: &Server, site: &Site, session: u64) -> Poster {
        let mut stream = UnixStream::connect(socket(server, 0)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let greeting: Greeting = receive(&mut stream);
        let offer = Offer { shm_slot: true, ..Offer::default() };
        let (initiator, hello) = Claim { offer, ..Claim::of(&site.key, session, Purpose::Work) }.hello(&greeting);
        client::send(&mut stream, &hello);
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        let mut shared = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let shared = shared.next().expect("the server shares a shared-memory slot");
        assert!(fcntl_getfd(&shared).unwrap().contains(FdFlags::CLOEXEC));
        let (answer, length) = frame::take::<handshake::Answer>(&bytes[..received.bytes]).unwrap().unwrap();
        assert!(opened(initiator, answer).is_ok() && length == received.bytes);
        Poster { stream, shm_slot: ClientSide::open(&shared).unwrap(), session, posted: 0, number: 0 }
    }

    fn framed(&mut self, slot: u32, call: Call) -> Vec<u8> {
        self.number += 1;
        call_bytes(&request(self.session, slot, self.number, 0, call))
    }

    fn call(&mut self, call: Call) -> Result<Reply, CallFailure> {
        let bytes = self.framed(1, call);
        self.shm_slot.listen();
        match self.shm_slot.post(&bytes) {
            true => self.posted += 1,
            false => self.stream.write_all(&bytes).unwrap(),
        }
        let begun = Instant::now();
        while !self.shm_slot.listen() {
            assert!(begun.elapsed() < PATIENCE, "no answer");
            std::thread::yield_now();
        }
        let mut bytes = Vec::new();
        match self.shm_slot.take_posted(&mut bytes) {
            true => decoded(&bytes).result,
            false => reply(&mut self.stream).result,
        }
    }

    /// Posts `bytes`, and the reply comes through the socket. `false`: the worker no longer polls this shared-memory slot.
    fn post(&mut self, other: &mut Poster, bytes: &[u8]) -> bool {
        (0..100).any(|_| {
            other.ping();
            self.shm_slot.sleep() && self.shm_slot.post(bytes)
        })
    }

    /// Calls until the worker polls its shared-memory slot.
    fn be_polled(&mut self, other: &mut Poster) {
        let (posted, begun) = (self.posted, Instant::now());
        while self.posted == posted {
            other.ping();
            self.ping();
            assert!(
                begun.elapsed() < PATIENCE,
                "the worker has not looked into the shared-memory slot for {PATIENCE:?}"
            );
        }
    }

    /// Posts `bytes` as the first request in a slot that the worker polls.
    fn post_first(&mut self, other: &mut Poster, bytes: &[u8]) {
        let begun = Instant::now();
        self.be_polled(other);
        while !self.post(other, bytes) {
            self.be_polled(other);
            assert!(
                begun.elapsed() < PATIENCE,
                "the worker has not looked into the shared-memory slot for {PATIENCE:?}"
            );
        }
    }

    fn ping(&mut self) {
        assert_eq!(self.call(Call::Ping { payload: b"x".to_vec() }), Ok(Reply::Pong { payload: b"x".to_vec() }));
    }
}

fn lookup(name: String) -> Call {
    Call::Lookup { parent: 1, name: name.into() }
}

/// Promise: several clients that post calls, including calls that wait, each get the replies to their own calls.
#[test]
fn shm_calls_are_answered() {
    let site = Site::new(1);
    let server = site.start();
    let mut clients: Vec<Poster> = (1..4).map(|session| Poster::of(&server, &site, session)).collect();
    for round in 0..300 {
        for client in &mut clients {
            let name = format!("{}-{round}", client.session);
            let Ok(Reply::Node(made)) = client.call(create(name.clone())) else { panic!("{name} is not made") };
            let Ok(Reply::Entry { entry: varve_proto::EntryReply::Node(found), .. }) =
                client.call(lookup(name.clone()))
            else {
                panic!("{name} is not found")
            };
            assert_eq!(found.inode, made.inode);
            assert_eq!(client.call(create(name.clone())), Err(CallFailure::Errno(libc::EEXIST)));
            if round % 50 == 0 {
                assert!(client.call(Call::Sync).is_ok());
            }
            if round % 3 == 0 {
                let removed = client.call(Call::Unlink { parent: 1, name: name.clone().into() });
                assert!(matches!(removed, Ok(Reply::Removed { .. })), "{removed:?}");
                assert_eq!(client.call(lookup(name)), Err(CallFailure::Errno(libc::ENOENT)));
            }
        }
    }
    for client in &clients {
        assert!(client.posted > 0, "client {} has posted nothing", client.session);
    }
    server.stop(STOP).unwrap();
}

/// Promise: a client that posts call after call without waiting gets all replies through the socket.
#[test]
fn shm_calls_are_pipelined() {
    let site = Site::new(1);
    let server = site.start();
    let mut other = Poster::of(&server, &site, 2);
    let mut one = Poster::of(&server, &site, 1);
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    for slot in 2..2000 {
        let call = match slot % 3 {
            0 => Call::Sync,
            1 => create(format!("file{slot}")),
            _ => Call::Ping { payload: vec![0; slot as usize % 100] },
        };
        let bytes = one.framed(slot, call);
        while !one.post(&mut other, &bytes) {
            // The other client's calls, some of which only make the worker poll it again, must not go through the
            // socket between these.
            while answered.len() < sent.len() {
                answered.push(reply(&mut one.stream).id.slot);
            }
            one.be_polled(&mut other);
        }
        sent.push(slot);
        // The socket buffer holds this many.
        while slot % 50 == 0 && answered.len() < sent.len() {
            answered.push(reply(&mut one.stream).id.slot);
        }
    }
    while answered.len() < sent.len() {
        answered.push(reply(&mut one.stream).id.slot);
    }
    answered.sort();
    assert_eq!(answered, sent);
    server.stop(STOP).unwrap();
}

/// Promise: posted bytes that are no request, a part of one, or a request in another session's name, end their connection
/// and affect nothing else; two requests in one post are two.
#[test]
fn invalid_shm_requests_end_the_connection() {
    let site = Site::new(1);
    let server = site.start();
    let mut other = Poster::of(&server, &site, 2);
    let foreign = call_bytes(&request(8, 1, 1, 0, Call::Sync));
    let whole = call_bytes(&request(1, 1, 1, 0, Call::Sync));
    for bytes in [&[0xff; 64][..], &foreign, &whole[..whole.len() / 2]] {
        let mut odd = Poster::of(&server, &site, 1);
        odd.post_first(&mut other, bytes);
        assert_closed(odd.stream);
    }
    let mut one = Poster::of(&server, &site, 1);
    let both = [one.framed(2, create("first".into())), one.framed(3, create("second".into()))];
    one.post_first(&mut other, &both.concat());
    let mut slots: Vec<u32> = (0..2).map(|_| reply(&mut one.stream).id.slot).collect();
    slots.sort();
    assert_eq!(slots, [2, 3]);
    one.ping();
    assert_serves(&server, &site);
    server.stop(STOP).unwrap();
}
