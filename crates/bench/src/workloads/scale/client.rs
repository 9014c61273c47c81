//! The clients: processes that create files. Both sides of their pipes.
//!
//! A client writes [`Answer::Ready`] when it is connected. Then it carries out each line of its stdin, `FIRST COUNT`, and
//! answers it. It ends with its stdin.

use super::{DIRECTORY, failed};
use crate::measure::cpu_seconds;
use crate::{Error, Result, interrupt};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use varve_client::{Library, RetryCause, block_on};
use varve_env::volume_dir::VolumeDir;
use varve_types::Mode;

const FILE_MODE: Mode = Mode(0o644);

/// The resolution of timelines.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// How soon an interrupt is noticed while clients work.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(100);

/// One client's part of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ClientPhase {
    pub seconds: f64,
    pub cpu_s: f64,
    /// Requests to servers, repeated ones included.
    pub calls: u64,
    /// Requests that were sent to a shard or a server that no longer has the partition.
    pub redirects: u64,
    /// Files created in each [`TICK`].
    pub ticks: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Ready,
    Created(ClientPhase),
    Failed(String),
}

/// The client process.
pub fn work(store: &Path, number: usize, orders: impl BufRead, mut answers: impl Write) -> Result<()> {
    let mut answer = |answer: &Answer| {
        let line = serde_json::to_string(answer).expect("it has string keys and finite numbers");
        writeln!(answers, "{line}").and_then(|()| answers.flush()).map_err(Error::io("cannot answer the benchmark"))
    };
    let worked = (|| -> Result<()> {
        let library = Library::open_volume(VolumeDir::new(store)).map_err(failed("open", "the volume"))?;
        answer(&Answer::Ready)?;
        for order in orders.lines() {
            let order = order.map_err(Error::io("cannot read an order"))?;
            let (first, count) = parse(&order).ok_or_else(|| Error::Usage(format!("{order} is not an order")))?;
            answer(&Answer::Created(create(&library, number, first, count)?))?;
        }
        Ok(())
    })();
    if let Err(error) = &worked {
        // If the benchmark has ended, nobody reads it.
        let _ = answer(&Answer::Failed(error.to_string()));
    }
    worked
}

fn parse(order: &str) -> Option<(u64, u64)> {
    let (first, count) = order.split_once(' ')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}

fn create(library: &Library, client: usize, first: u64, count: u64) -> Result<ClientPhase> {
    let counters = library.file_system().counters();
    let redirects =
        || [RetryCause::Moved, RetryCause::NotOwner].into_iter().map(|cause| counters.retries_for(cause)).sum::<u64>();
    let before = (counters.requests(), redirects(), cpu_seconds());
    let mut ticks = Vec::new();
    let begun = Instant::now();
    for number in first..first + count {
        let path = format!("{DIRECTORY}/c{client}-{number}");
        block_on(library.create(path.as_bytes(), FILE_MODE)).map_err(failed("create", &path))?;
        let tick = (begun.elapsed().as_nanos() / TICK.as_nanos()) as usize;
        if ticks.len() <= tick {
            ticks.resize(tick + 1, 0);
        }
        ticks[tick] += 1;
    }
    Ok(ClientPhase {
        seconds: begun.elapsed().as_secs_f64(),
        cpu_s: cpu_seconds() - before.2,
        calls: counters.requests() - before.0,
        redirects: redirects() - before.1,
        ticks,
    })
}

/// The stdin and stdout of a client process.
pub fn with_pipes(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped())
}

/// The benchmark's side.
pub(super) struct ClientProcess {
    number: usize,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<io::Result<String>>,
}

impl ClientProcess {
    pub fn new(number: usize, started: io::Result<Child>) -> Result<ClientProcess> {
        let mut child = started.map_err(Error::io(format!("cannot start client {number}")))?;
        let orders = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (send, answers) = channel();
        // It ends with the process, and with its reader.
        std::thread::spawn(move || lines.map(|line| send.send(line)).take_while(std::result::Result::is_ok).count());
        Ok(ClientProcess { number, child, orders, answers })
    }

    pub fn wait_until_ready(&mut self) -> Result<()> {
        match self.answer()? {
            Answer::Ready => Ok(()),
            _ => Err(self.failed("it gave a wrong answer")),
        }
    }

    pub fn begin_creating(&mut self, first: u64, count: u64) -> Result<()> {
        writeln!(self.orders, "{first} {count}").map_err(Error::io(format!("client {} has ended", self.number)))
    }

    pub fn wait_until_created(&mut self) -> Result<ClientPhase> {
        match self.answer()? {
            Answer::Created(phase) => Ok(phase),
            _ => Err(self.failed("it gave a wrong answer")),
        }
    }

    fn answer(&mut self) -> Result<Answer> {
        loop {
            interrupt::check()?;
            let line = match self.answers.recv_timeout(LOOKED_AT_EVERY) {
                Ok(line) => line.map_err(Error::io(format!("cannot read from client {}", self.number)))?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(self.failed("it has ended")),
            };
            return match serde_json::from_str(&line)? {
                Answer::Failed(reason) => Err(self.failed(&reason)),
                answer => Ok(answer),
            };
        }
    }

    fn failed(&self, reason: &str) -> Error {
        Error::Io { what: format!("client {}", self.number), source: io::Error::other(reason.to_owned()) }
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
