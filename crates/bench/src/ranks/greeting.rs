//! The first messages of a connection: the rank sends the token, the coordinator the answer, and the rank its first sign of
//! life. Each greeting has a thread of its own, so that an unauthenticated connection delays nobody.

use super::coordinator::Connected;
use super::message::{FromRank, HELLO_MAX, Hello, Input, LINE_MAX, PROTOCOL, Welcome, receive, send};
use super::rendezvous::Secrets;
use crate::{Error, Result};
use std::io::{self, BufReader};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use varve_detector_stream::token;

/// A whole greeting takes no longer: a process that connects says at once who it is.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Greetings at once. Further connections wait in the kernel's queue.
const GREETINGS_MAX: usize = 256;
/// A rank that reads nothing for so long has died without closing its connection.
const SEND_MAX: Duration = Duration::from_secs(20);

/// A rank that has proved itself.
pub(super) struct Greeted {
    pub rank: usize,
    pub connected: Connected,
    pub input: BufReader<Input>,
}

/// The greetings of a run.
pub(super) struct Greetings {
    secrets: Secrets,
    ranks: usize,
    sender: Sender<Option<Greeted>>,
    ended: Receiver<Option<Greeted>>,
    running: usize,
}

impl Greetings {
    pub(super) fn new(secrets: &Secrets, ranks: usize) -> Greetings {
        let (sender, ended) = channel();
        Greetings { secrets: secrets.clone(), ranks, sender, ended, running: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.running >= GREETINGS_MAX
    }

    pub(super) fn start(&mut self, stream: TcpStream) -> Result<()> {
        let (secrets, ranks, sender) = (self.secrets.clone(), self.ranks, self.sender.clone());
        // A connection that is no rank of this run is closed; a port scanner must not end the run.
        let greet = move || drop(sender.send(greet(stream, &secrets, ranks).ok()));
        let started = std::thread::Builder::new().name("greeting".to_owned()).spawn(greet);
        started.map_err(Error::io("cannot start a thread for a rank"))?;
        self.running += 1;
        Ok(())
    }

    /// The next rank that has proved itself.
    pub(super) fn next(&mut self) -> Option<Greeted> {
        while let Ok(ended) = self.ended.try_recv() {
            self.running -= 1;
            if ended.is_some() {
                return ended;
            }
        }
        None
    }
}

fn greet(mut stream: TcpStream, secrets: &Secrets, ranks: usize) -> io::Result<Greeted> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SEND_MAX))?;
    let mut input = Input::new(&stream, GREETING_MAX)?;
    let hello: Hello = receive(&mut input, HELLO_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if hello.protocol != PROTOCOL || !token::matches(&secrets.token, &hello.token) || hello.rank >= ranks {
        return Err(io::Error::other("it is no rank of this run"));
    }
    send(&mut stream, &Welcome { answer: secrets.answer.clone() })?;
    // A rank that has given up waiting for the answer has closed this connection, and connects again.
    match receive(&mut input, LINE_MAX)? {
        Some(FromRank::Alive(_)) => {}
        _ => return Err(io::Error::other("it did not wait for the answer")),
    }
    input.get_mut().trust()?;
    Ok(Greeted { rank: hello.rank, connected: Connected { stream, host: hello.host }, input })
}
