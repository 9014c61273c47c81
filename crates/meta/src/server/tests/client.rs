//! A client that uses only the protocol.

use super::{Server, Site, socket};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve_proto::frame::{self, HEADER_BYTES};
use varve_proto::handshake::exchange::{Binding, Initiator};
use varve_proto::handshake::{Answer, Channel, Greeting, Hello, KeyId, Offer, Purpose, VolumeKey, Welcome};
use varve_proto::record::Records;
use varve_proto::{Call, CallFailure, CallId, Reply, Request, Response, WireCredentials};
use varve_rpc::wire::{self, Decoder, Message};

/// After this time a reply is taken to be lost.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn send<M: serde::Serialize>(stream: &mut impl Write, message: &M) {
    let mut bytes = Vec::new();
    frame::encode(message, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
}

pub fn receive<M: serde::de::DeserializeOwned>(stream: &mut impl Read) -> M {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; frame::body_len(&header).unwrap()];
    stream.read_exact(&mut body).unwrap();
    frame::decode(&header, &body).unwrap()
}

/// The bytes of a request, as a call with a number of its own.
pub fn call_bytes(request: &Request) -> Vec<u8> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let (call, body) = (CALLS.fetch_add(1, Relaxed) + 1, frame::body_of(request).unwrap().into());
    let mut bytes = Vec::new();
    Message::Request { call, deadline: PATIENCE, body }.encode(&mut bytes);
    bytes
}

/// The next reply of a connection.
pub fn reply(stream: &mut impl Read) -> Response {
    try_reply(stream).unwrap()
}

fn try_reply(stream: &mut impl Read) -> std::io::Result<Response> {
    let mut header = [0; wire::HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; u32::from_le_bytes(*header.first_chunk().unwrap()) as usize];
    stream.read_exact(&mut body)?;
    Ok(decoded(&[&header[..], &body].concat()))
}

/// The response in the bytes of one message.
pub fn decoded(bytes: &[u8]) -> Response {
    let mut decoder = Decoder::default();
    decoder.input().extend_from_slice(bytes);
    let Some(Message::Reply { body, .. }) = decoder.take().unwrap() else { panic!("no reply") };
    assert!(decoder.is_empty(), "more than one message");
    frame::decode_body(&body).unwrap()
}

pub fn connect(path: &str) -> (UnixStream, Greeting) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let greeting = receive(&mut stream);
    (stream, greeting)
}

/// The fields that a client states in the handshake; a test changes one of them.
#[derive(Clone)]
pub struct Claim {
    pub key: VolumeKey,
    pub key_id: KeyId,
    pub session: u64,
    pub purpose: Purpose,
    pub worker: u16,
    pub channel: Channel,
    pub offer: Offer,
}

impl Claim {
    pub fn of(key: &VolumeKey, session: u64, purpose: Purpose) -> Claim {
        let (key, key_id, offer) = (key.clone(), KeyId::VOLUME, Offer::default());
        Claim { key, key_id, session, purpose, worker: 0, channel: Channel::Local, offer }
    }

    pub fn binding(&self, greeting: &Greeting) -> Binding {
        Binding {
            volume: greeting.volume,
            key: self.key_id,
            purpose: self.purpose,
            session: self.session,
            worker: self.worker,
            channel: self.channel,
            nonce: greeting.nonce,
        }
    }

    pub fn hello(&self, greeting: &Greeting) -> (Initiator, Hello) {
        let binding = self.binding(greeting);
        let (initiator, sealed) = Initiator::begin(&self.key, &binding, &self.offer).unwrap();
        let Binding { volume, key, purpose, session, worker, .. } = binding;
        (initiator, Hello { version: varve_proto::VERSION, volume, key, purpose, session, worker, sealed })
    }

    /// Performs the whole handshake. The error is the server's reason.
    pub fn shake_hands(&self, stream: &mut (impl Read + Write)) -> Result<(Welcome, Records), String> {
        let greeting: Greeting = receive(stream);
        let (initiator, hello) = self.hello(&greeting);
        send(stream, &hello);
        opened(initiator, receive(stream))
    }
}

/// The server's Welcome. The error is its reason.
pub fn opened(initiator: Initiator, answer: Answer) -> Result<(Welcome, Records), String> {
    match answer {
        Answer::Sealed(sealed) => match initiator.finish(&sealed).map_err(|error| error.to_string())? {
            (Welcome::Refused { reason } | Welcome::Crowded { reason }, _) => Err(reason),
            welcomed => Ok(welcomed),
        },
        Answer::Refused { reason } | Answer::Crowded { reason } => Err(reason),
    }
}

pub fn request(session: u64, slot: u32, number: u64, shard: u16, call: Call) -> Request {
    let credentials = WireCredentials::user(0, 0, vec![]);
    Request { id: CallId { session, slot, number }, shard, credentials, released: vec![], call }
}

pub struct TestClient<S> {
    stream: S,
    session: u64,
    /// Used by this connection only: a slot carries one call at a time, whichever worker gets it.
    pub slot: u32,
    pub number: u64,
}

impl TestClient<UnixStream> {
    /// A client connected to the worker that owns shard 0.
    pub fn of(server: &Server, site: &Site, session: u64, purpose: Purpose) -> TestClient<UnixStream> {
        TestClient::at(server, site, 0, session, purpose)
    }

    pub fn at(server: &Server, site: &Site, worker: usize, session: u64, purpose: Purpose) -> TestClient<UnixStream> {
        let stream = UnixStream::connect(socket(server, worker)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let claim = Claim { worker: worker as u16, ..Claim::of(&site.key, session, purpose) };
        let mut client = TestClient::claiming(stream, &claim).unwrap();
        client.slot = 1 + worker as u32;
        client
    }
}

impl<S: Read + Write> TestClient<S> {
    /// The error is the server's reason.
    pub fn new(stream: S, key: &VolumeKey, session: u64, purpose: Purpose) -> Result<TestClient<S>, String> {
        TestClient::claiming(stream, &Claim::of(key, session, purpose))
    }

    pub fn claiming(mut stream: S, claim: &Claim) -> Result<TestClient<S>, String> {
        claim.shake_hands(&mut stream)?;
        Ok(TestClient { stream, session: claim.session, slot: 1, number: 0 })
    }

    pub fn into_stream(self) -> S {
        self.stream
    }

    pub fn call(&mut self, shard: u16, call: Call) -> Result<Reply, CallFailure> {
        self.try_call(shard, call).unwrap()
    }

    /// The outer error means that the connection has ended.
    pub fn try_call(&mut self, shard: u16, call: Call) -> std::io::Result<Result<Reply, CallFailure>> {
        self.number += 1;
        let number = self.number;
        self.exchange(request(self.session, self.slot, number, shard, call))
    }

    pub fn exchange(&mut self, request: Request) -> std::io::Result<Result<Reply, CallFailure>> {
        self.stream.write_all(&call_bytes(&request))?;
        let response = try_reply(&mut self.stream)?;
        assert_eq!(response.id, request.id);
        Ok(response.result)
    }
}

/// A TCP connection after its handshake, as a stream of the bytes in its records.
pub struct Remote {
    pub stream: TcpStream,
    pub records: Records,
    pub received: Vec<u8>,
    plain: Vec<u8>,
}

impl Remote {
    pub fn connect(server: &Server, claim: &Claim) -> Result<Remote, String> {
        let claim = Claim { channel: Channel::Network, ..claim.clone() };
        let mut stream = dial(server, claim.worker.into());
        let (_, records) = claim.shake_hands(&mut stream)?;
        Ok(Remote { stream, records, received: Vec::new(), plain: Vec::new() })
    }

    /// The records of `plain`, which count as sent.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        self.records.seal(plain, &mut sealed).unwrap();
        sealed
    }

    pub fn into_client(self, session: u64) -> TestClient<Remote> {
        TestClient { stream: self, session, slot: 1, number: 0 }
    }
}

impl Read for Remote {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.plain.is_empty() {
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Ok(0);
            }
            self.received.extend_from_slice(&bytes[..count]);
            self.records.open_all(&mut self.received, &mut self.plain).map_err(std::io::Error::other)?;
        }
        let count = self.plain.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.plain[..count]);
        self.plain.drain(..count);
        Ok(count)
    }
}

impl Write for Remote {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sealed = self.seal(bytes);
        self.stream.write_all(&sealed).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A TCP connection to a worker on which nothing has been sent.
pub fn dial(server: &Server, worker: usize) -> TcpStream {
    let address = server.addresses()[worker].tcp.clone().expect("the server listens by TCP");
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}
