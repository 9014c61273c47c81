//! A client that knows nothing but the protocol.

use super::{Server, Site, socket};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use varve_wire::frame::{self, HEADER_BYTES};
use varve_wire::handshake::{Greeting, Hello, Purpose, Side, VolumeKey, Welcome};
use varve_wire::{Call, CallId, Failure, Reply, Request, Response, WireCredentials};

/// An answer that has not come by then never will.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn send<M: serde::Serialize>(stream: &mut impl Write, message: &M) {
    let mut bytes = Vec::new();
    frame::encode(message, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
}

pub fn receive<M: serde::de::DeserializeOwned>(stream: &mut impl Read) -> M {
    try_receive(stream).unwrap()
}

fn try_receive<M: serde::de::DeserializeOwned>(stream: &mut impl Read) -> std::io::Result<M> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; frame::body_len(&header).unwrap()];
    stream.read_exact(&mut body)?;
    Ok(frame::decode(&header, &body).unwrap())
}

pub fn connect(path: &str) -> (UnixStream, Greeting) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let greeting = receive(&mut stream);
    (stream, greeting)
}

pub fn hello(key: &VolumeKey, greeting: &Greeting, session: u64, purpose: Purpose) -> Hello {
    let nonce = varve_world::random::bytes();
    let proof = key.prove(Side::Client, &nonce, &greeting.nonce);
    Hello { version: varve_wire::VERSION, session, purpose, nonce, proof, mailbox: false }
}

pub fn request(session: u64, slot: u32, number: u64, shard: u16, call: Call) -> Request {
    let credentials = WireCredentials { uid: 0, gid: 0, groups: vec![] };
    Request { id: CallId { session, slot, number }, shard, credentials, released: vec![], call }
}

pub struct Client<S> {
    stream: S,
    session: u64,
    /// Of this connection alone: a slot carries one call at a time, wherever that goes.
    pub slot: u32,
    pub number: u64,
}

impl Client<UnixStream> {
    /// At the worker that owns shard 0.
    pub fn of(server: &Server, site: &Site, session: u64, purpose: Purpose) -> Client<UnixStream> {
        Client::at(server, site, 0, session, purpose)
    }

    pub fn at(server: &Server, site: &Site, worker: usize, session: u64, purpose: Purpose) -> Client<UnixStream> {
        let stream = UnixStream::connect(socket(server, worker)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client::new(stream, &site.key, session, purpose).unwrap();
        client.slot = 1 + worker as u32;
        client
    }
}

impl<S: Read + Write> Client<S> {
    /// The error is the server's reason.
    pub fn new(mut stream: S, key: &VolumeKey, session: u64, purpose: Purpose) -> Result<Client<S>, String> {
        let greeting: Greeting = receive(&mut stream);
        send(&mut stream, &hello(key, &greeting, session, purpose));
        match receive(&mut stream) {
            Welcome::Accepted { .. } => Ok(Client { stream, session, slot: 1, number: 0 }),
            Welcome::Refused { reason } | Welcome::Crowded { reason } => Err(reason),
        }
    }

    pub fn into_stream(self) -> S {
        self.stream
    }

    pub fn call(&mut self, shard: u16, call: Call) -> Result<Reply, Failure> {
        self.try_call(shard, call).unwrap()
    }

    /// The outer error: the connection has ended.
    pub fn try_call(&mut self, shard: u16, call: Call) -> std::io::Result<Result<Reply, Failure>> {
        self.number += 1;
        let number = self.number;
        self.exchange(request(self.session, self.slot, number, shard, call))
    }

    pub fn exchange(&mut self, request: Request) -> std::io::Result<Result<Reply, Failure>> {
        let mut bytes = Vec::new();
        frame::encode(&request, &mut bytes).unwrap();
        self.stream.write_all(&bytes)?;
        let response: Response = try_receive(&mut self.stream)?;
        assert_eq!(response.id, request.id);
        Ok(response.result)
    }
}
