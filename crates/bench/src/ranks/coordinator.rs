//! The coordinator of ranks that are processes: it gives them jobs, releases their barriers, collects their parts, and finds
//! ranks that died or fell silent.

use super::greeting::{Greeted, Greetings};
use super::hearing::Hearing;
use super::message::{Ending, FromRank, Input, LINE_MAX, ToRank, receive, send};
use super::part::PhasePart;
use super::rendezvous::Secrets;
use crate::progress::ProgressDisplay;
use crate::workloads::Job;
use crate::{Error, Result, interrupt};
use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const ACCEPT_EVERY: Duration = Duration::from_millis(5);
/// Interval of the check for silent ranks and for a signal.
const TICK: Duration = Duration::from_millis(200);
/// After a failure, the other ranks stop at their next operation; one that waits for a file system that does not answer
/// takes longer, and is left behind.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Messages that are handled before the next check: ranks that send without end must not put it off for ever.
const DRAINED_MAX: usize = 10_000;

pub(super) struct Coordinator {
    ranks: Vec<Connected>,
    events: Receiver<(usize, Event)>,
    /// A rank that says nothing for so long is lost.
    silence_max: Duration,
    /// A rank was lost or left behind: later jobs would wait for it.
    broken: bool,
}

const ENDED: &str = "its process ended";

pub(super) struct Connected {
    pub stream: TcpStream,
    pub host: String,
}

enum Event {
    Message(FromRank),
    Gone(String),
}

impl Coordinator {
    /// Waits until all ranks have connected. `check` fails if one of them cannot come any more.
    pub(super) fn gather(
        listener: &TcpListener,
        ranks: usize,
        secrets: &Secrets,
        (wait_max, silence_max): (Duration, Duration),
        check: impl FnMut() -> Result<()>,
    ) -> Result<Coordinator> {
        let mut found: Vec<Option<Greeted>> = (0..ranks).map(|_| None).collect();
        if let Err(error) = collect(listener, secrets, &mut found, wait_max, check) {
            for greeted in found.iter_mut().flatten() {
                // A rank that is gone needs no word.
                let _ = send(&mut greeted.connected.stream, &ToRank::Finish);
            }
            return Err(error);
        }
        let (sender, events) = channel();
        let mut ranks = Vec::with_capacity(found.len());
        for Greeted { rank, connected, input } in found.into_iter().flatten() {
            start_reader(rank, input, sender.clone())?;
            ranks.push(connected);
        }
        Ok(Coordinator { ranks, events, silence_max, broken: false })
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
            ended: vec![false; ranks],
            hearing: Hearing::new(ranks, Instant::now()),
            arrived: 0,
            parts: Vec::new(),
            failure: self.broken.then(|| Error::RanksMissing("an earlier job lost one".to_owned())),
            stop_by: None,
            progress,
        };
        if running.failure.is_none() {
            running.start(job);
            while running.ended.contains(&false) {
                // A rank whose messages wait here is not silent.
                let first = self.events.recv_timeout(TICK).ok();
                for (rank, event) in first.into_iter().chain(self.events.try_iter()).take(DRAINED_MAX) {
                    // Later jobs would wait for a rank that has gone, even if its part of this one is over.
                    self.broken |= matches!(event, Event::Gone(_));
                    if rank < ranks {
                        running.handle(rank, event);
                    }
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
    /// The ranks whose part of the job is over.
    ended: Vec<bool>,
    hearing: Hearing,
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
            if !self.ended[rank]
                && let Err(error) = send(&mut self.ranks[rank].stream, message)
            {
                self.lose(rank, format!("cannot send to it: {error}"));
            }
        }
    }

    fn handle(&mut self, rank: usize, event: Event) {
        self.hearing.hears(rank, Instant::now());
        match event {
            Event::Message(FromRank::Arrived) => self.arrived += 1,
            Event::Message(FromRank::Part(part)) if part.rank == rank && part.timeline.is_sound() => {
                self.parts.push(part)
            }
            Event::Message(FromRank::Part(part)) => self.lose(rank, format!("its report of {} is damaged", part.phase)),
            Event::Message(FromRank::Alive(operations)) => self.progress.advance(operations),
            Event::Message(FromRank::Ended(ending)) => {
                self.ended[rank] = true;
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
        let ended = self.ended.iter().filter(|ended| **ended).count();
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
        for rank in self.hearing.silent(now, silence_max) {
            self.lose(rank, format!("it has not answered for {} s", silence_max.as_secs()));
        }
        self.stop_by.is_none_or(|stop_by| now < stop_by)
    }

    fn lose(&mut self, rank: usize, reason: String) {
        if self.ended[rank] {
            return;
        }
        self.ended[rank] = true;
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

fn collect(
    listener: &TcpListener,
    secrets: &Secrets,
    found: &mut [Option<Greeted>],
    wait_max: Duration,
    mut check: impl FnMut() -> Result<()>,
) -> Result<()> {
    let failed = || Error::io("cannot wait for the ranks");
    listener.set_nonblocking(true).map_err(failed())?;
    let mut greetings = Greetings::new(secrets, found.len());
    let end = Instant::now() + wait_max;
    while found.iter().any(Option::is_none) {
        interrupt::check()?;
        // Before anything else: unauthenticated connections must not keep the run from its end.
        if Instant::now() > end {
            let missing = (0..found.len()).filter(|rank| found[*rank].is_none()).map(|rank| rank.to_string());
            let missing = missing.collect::<Vec<_>>().join(", ");
            return Err(Error::RanksMissing(format!("ranks {missing} did not start within {} s", wait_max.as_secs())));
        }
        while let Some(greeted) = greetings.next() {
            let rank = greeted.rank;
            // A rank that connects again has lost its first connection.
            found[rank] = Some(greeted);
        }
        if !greetings.is_full() {
            match listener.accept() {
                Ok((stream, _)) => {
                    greetings.start(stream)?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed()(error)),
            }
        }
        check()?;
        std::thread::sleep(ACCEPT_EVERY);
    }
    Ok(())
}

fn start_reader(rank: usize, mut input: BufReader<Input>, sender: Sender<(usize, Event)>) -> Result<()> {
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
