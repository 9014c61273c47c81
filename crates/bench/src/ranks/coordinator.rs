//! The coordinator of ranks that are processes: it gives them jobs, releases their barriers, collects their parts, and finds
//! ranks that died or fell silent.

use super::message::{Ending, FromRank, HELLO_MAX, Hello, LINE_MAX, PROTOCOL, ToRank, receive, send};
use super::part::PhasePart;
use crate::progress::ProgressDisplay;
use crate::workloads::Job;
use crate::{Error, Result, interrupt};
use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A process that connects says at once who it is.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
const ACCEPT_EVERY: Duration = Duration::from_millis(5);
/// Interval of the check for silent ranks and for a signal.
const TICK: Duration = Duration::from_millis(200);
/// After a failure, the other ranks stop at their next operation; one that waits for a file system that does not answer
/// takes longer, and is left behind.
const STOP_MAX: Duration = Duration::from_secs(20);
/// A rank that reads nothing for so long has died without closing its connection.
const SEND_MAX: Duration = Duration::from_secs(20);

pub(super) struct Coordinator {
    ranks: Vec<Connected>,
    events: Receiver<(usize, Event)>,
    /// A rank that says nothing for so long is lost.
    silence_max: Duration,
    /// A rank was lost or left behind: later jobs would wait for it.
    broken: bool,
}

const ENDED: &str = "its process ended";

struct Connected {
    stream: TcpStream,
    host: String,
}

enum Event {
    Message(FromRank),
    Gone(String),
}

/// State of a rank in a job.
struct Member {
    heard: Instant,
    ended: bool,
}

impl Coordinator {
    /// Waits until all ranks have connected. `check` fails if one of them cannot come any more.
    pub(super) fn gather(
        listener: &TcpListener,
        ranks: usize,
        token: &str,
        (wait_max, silence_max): (Duration, Duration),
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<Coordinator> {
        let failed = || Error::io("cannot wait for the ranks");
        listener.set_nonblocking(true).map_err(failed())?;
        let (sender, events) = channel();
        let mut found: Vec<Option<Connected>> = (0..ranks).map(|_| None).collect();
        let end = Instant::now() + wait_max;
        while found.iter().any(Option::is_none) {
            interrupt::check()?;
            match listener.accept() {
                Ok((stream, _)) => {
                    // A connection that is no rank of this run is closed; a port scanner must not end the run.
                    if let Ok((rank, connected, input)) = greet(stream, token, ranks)
                        && found[rank].is_none()
                    {
                        start_reader(rank, input, sender.clone())?;
                        found[rank] = Some(connected);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    check()?;
                    if Instant::now() > end {
                        let missing: Vec<String> =
                            (0..ranks).filter(|rank| found[*rank].is_none()).map(|rank| rank.to_string()).collect();
                        let what =
                            format!("ranks {} did not start within {} s", missing.join(", "), wait_max.as_secs());
                        return Err(Error::RanksMissing(what));
                    }
                    std::thread::sleep(ACCEPT_EVERY);
                }
                Err(error) => return Err(failed()(error)),
            }
        }
        Ok(Coordinator { ranks: found.into_iter().flatten().collect(), events, silence_max, broken: false })
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Runs a job on the first `ranks` ranks. Returns the parts that arrived, and the failure.
    pub(super) fn run(
        &mut self,
        job: &Job,
        ranks: usize,
        progress: &ProgressDisplay,
    ) -> (Vec<PhasePart>, Option<Error>) {
        let mut running = Running {
            ranks: &mut self.ranks[..ranks],
            members: (0..ranks).map(|_| Member { heard: Instant::now(), ended: false }).collect(),
            arrived: 0,
            parts: Vec::new(),
            failure: self.broken.then(|| Error::RanksMissing("an earlier job lost one".to_owned())),
            stop_by: None,
            progress,
        };
        if running.failure.is_none() {
            running.start(job);
            while running.members.iter().any(|member| !member.ended) {
                match self.events.recv_timeout(TICK) {
                    Ok((rank, _)) if rank >= ranks => {}
                    Ok((rank, event)) => running.handle(rank, event),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                }
                if !running.look(self.silence_max) {
                    self.broken = true;
                    break;
                }
            }
        }
        let Running { parts, failure, .. } = running;
        self.broken |= matches!(failure, Some(Error::RankLost { .. }));
        (parts, failure)
    }

    /// Ends the ranks.
    pub(super) fn finish(&mut self) {
        for rank in &mut self.ranks {
            // A rank that is gone needs no word.
            let _ = send(&mut rank.stream, &ToRank::Finish);
        }
    }
}

struct Running<'a> {
    ranks: &'a mut [Connected],
    members: Vec<Member>,
    arrived: usize,
    parts: Vec<PhasePart>,
    failure: Option<Error>,
    /// After a failure: when ranks that have not ended are left behind.
    stop_by: Option<Instant>,
    progress: &'a ProgressDisplay,
}

impl Running<'_> {
    fn start(&mut self, job: &Job) {
        let ranks = self.ranks.len();
        self.send_all(&ToRank::Run { job: job.clone(), ranks });
    }

    fn send_all(&mut self, message: &ToRank) {
        for rank in 0..self.ranks.len() {
            if !self.members[rank].ended
                && let Err(error) = send(&mut self.ranks[rank].stream, message)
            {
                self.lose(rank, format!("cannot send to it: {error}"));
            }
        }
    }

    fn handle(&mut self, rank: usize, event: Event) {
        self.members[rank].heard = Instant::now();
        match event {
            Event::Message(FromRank::Arrived) => self.arrived += 1,
            Event::Message(FromRank::Part(part)) if part.rank == rank && part.timeline.is_sound() => {
                self.parts.push(part)
            }
            Event::Message(FromRank::Part(part)) => self.lose(rank, format!("its report of {} is damaged", part.phase)),
            Event::Message(FromRank::Alive(operations)) => self.progress.advance(operations),
            Event::Message(FromRank::Ended(ending)) => {
                self.members[rank].ended = true;
                match ending {
                    Ending::Done | Ending::Stopped => {}
                    Ending::Interrupted => self.fail(Error::Interrupted),
                    Ending::Failed(reason) => {
                        let host = self.ranks[rank].host.clone();
                        self.fail(Error::RankFailed { rank, host, reason });
                    }
                }
            }
            Event::Gone(reason) => self.lose(rank, reason),
        }
        let ended = self.members.iter().filter(|member| member.ended).count();
        if self.failure.is_none() && self.arrived == self.ranks.len() {
            self.arrived = 0;
            self.send_all(&ToRank::Release);
        } else if self.failure.is_none() && self.arrived > 0 && ended > 0 && self.arrived + ended == self.ranks.len() {
            let reason = "it ended while others wait at a barrier".to_owned();
            self.fail(Error::RankFailed { rank, host: self.ranks[rank].host.clone(), reason });
        }
    }

    /// Finds silent ranks. `false`: ranks that do not end are left behind.
    fn look(&mut self, silence_max: Duration) -> bool {
        let now = Instant::now();
        if interrupt::raised() {
            self.fail(Error::Interrupted);
        }
        for rank in 0..self.members.len() {
            if !self.members[rank].ended && now - self.members[rank].heard > silence_max {
                self.lose(rank, format!("it has not answered for {} s", silence_max.as_secs()));
            }
        }
        self.stop_by.is_none_or(|stop_by| now < stop_by)
    }

    fn lose(&mut self, rank: usize, reason: String) {
        if self.members[rank].ended {
            return;
        }
        self.members[rank].ended = true;
        self.fail(Error::RankLost { rank, host: self.ranks[rank].host.clone(), reason });
    }

    /// Keeps the first failure and stops all ranks.
    fn fail(&mut self, error: Error) {
        // A rank that is killed by the terminal's signal is not the cause.
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error);
        self.stop_by = Some(Instant::now() + STOP_MAX);
        self.send_all(&ToRank::Stop);
    }
}

fn greet(stream: TcpStream, token: &str, ranks: usize) -> io::Result<(usize, Connected, BufReader<TcpStream>)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_TIME_MAX))?;
    stream.set_write_timeout(Some(SEND_MAX))?;
    let mut input = BufReader::new(stream.try_clone()?);
    let hello: Hello = receive(&mut input, HELLO_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if hello.protocol != PROTOCOL || hello.token != token || hello.rank >= ranks {
        return Err(io::Error::other("it is no rank of this run"));
    }
    stream.set_read_timeout(None)?;
    Ok((hello.rank, Connected { stream, host: hello.host }, input))
}

fn start_reader(rank: usize, mut input: BufReader<TcpStream>, sender: Sender<(usize, Event)>) -> Result<()> {
    let read = move || {
        loop {
            let event = match receive(&mut input, LINE_MAX) {
                Ok(Some(message)) => Event::Message(message),
                Ok(None) => Event::Gone(ENDED.to_owned()),
                // The kernel of a killed process resets connections with unread messages.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Event::Gone(ENDED.to_owned()),
                Err(error) => Event::Gone(format!("its connection broke: {error}")),
            };
            let is_last = matches!(event, Event::Gone(_));
            if sender.send((rank, event)).is_err() || is_last {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name(format!("rank {rank}")).spawn(read);
    started.map(drop).map_err(Error::io("cannot start a thread for a rank"))
}
