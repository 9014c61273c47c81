//! Messages between the coordinator and the ranks: one line of JSON each.

use super::part::PhasePart;
use crate::workloads::Job;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Changes with the messages: all ranks must be of one version.
pub(super) const PROTOCOL: u32 = 2;

/// A part with two full histograms is below 2 MiB.
pub(super) const LINE_MAX: u64 = 16 << 20;
/// The first line of a connection comes from a process that has proved nothing yet.
pub(super) const HELLO_MAX: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub protocol: u32,
    pub token: String,
    pub rank: usize,
    pub host: String,
}

/// The reply to a valid [`Hello`]. A rank takes jobs only from a coordinator that knows the answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub answer: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromRank {
    /// The rank is at its next barrier.
    Arrived,
    Part(PhasePart),
    /// Sent every second, with the operations since the last one: a host that does not answer is found by its silence.
    Alive(u64),
    /// The rank's function has returned.
    Ended(Ending),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ending {
    Done,
    /// It only followed the end of the job.
    Stopped,
    Failed(String),
    /// SIGINT or SIGTERM.
    Interrupted,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToRank {
    Run {
        job: Job,
        ranks: usize,
    },
    Release,
    Stop,
    /// No more jobs.
    Finish,
}

/// A connection from which one reads. Until its peer has proved itself, all that it sends must come before one deadline.
pub(super) struct Input {
    stream: TcpStream,
    deadline: Option<Instant>,
}

impl Input {
    pub(super) fn new(stream: &TcpStream, time_max: Duration) -> io::Result<BufReader<Input>> {
        let deadline = Some(Instant::now() + time_max);
        Ok(BufReader::new(Input { stream: stream.try_clone()?, deadline }))
    }

    /// The peer has proved itself: later messages have no deadline.
    pub(super) fn trust(&mut self) -> io::Result<()> {
        self.deadline = None;
        self.stream.set_read_timeout(None)
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

pub(super) fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_string(message).map_err(io::Error::other)?;
    line.push('\n');
    to.write_all(line.as_bytes())
}

/// The next message; `None` at the end of the stream.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl BufRead, max: u64) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(max).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => serde_json::from_slice(&line).map(Some).map_err(io::Error::other),
        Some(_) if line.len() as u64 + 1 >= max => Err(io::Error::other("a message is too long")),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
