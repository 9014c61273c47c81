//! A rank's process: it connects to the coordinator and runs the jobs that come, until there are no more.

use super::RankContext;
use super::link::Link;
use super::message::{Ending, FromRank, HELLO_MAX, Hello, Input, LINE_MAX, PROTOCOL, ToRank, Welcome, receive, send};
use super::part::PhasePart;
use super::rendezvous::{self, Rendezvous, Secrets};
use crate::interrupt::Interrupt;
use crate::workloads::{self, Job};
use crate::{Error, Result, interrupt};
use std::io::{self, BufReader};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use varve_detector_stream::token;

/// Environment of a rank that the benchmark itself starts.
pub const RANK_VARIABLE: &str = "VARVE_BENCH_RANK";
pub const HUB_VARIABLE: &str = "VARVE_BENCH_COORDINATOR";
pub const TOKEN_VARIABLE: &str = "VARVE_BENCH_TOKEN";
pub const ANSWER_VARIABLE: &str = "VARVE_BENCH_ANSWER";

/// An address of another network gives no answer at all.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Another program at an address of the list may take a connection and never answer. The next address has its turn then.
const WELCOME_MAX: Duration = Duration::from_secs(5);
/// The benchmark that started this process has one address, and answers when it has started all its processes.
const OWN_WELCOME_MAX: Duration = Duration::from_secs(30);
/// A rank whose signs of life are not acknowledged for so long has lost its coordinator, and ends.
const UNREACHABLE_MAX_MS: u32 = 60_000;
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long a waiting rank takes to see a signal.
const SIGNAL_TICK: Duration = Duration::from_millis(200);

/// Runs the jobs of a coordinator that a file in `directory` names. For a process that `mpirun` or `srun` started.
///
/// # Errors
/// If the coordinator is not found or is lost. Failures of jobs are reported to the coordinator.
pub fn serve_rank(directory: &Path, job: &str, rank: usize) -> Result<()> {
    let _interrupt = Interrupt::listen();
    let file = rendezvous::file_of(directory, job);
    let (stream, input) = rendezvous::wait_for(&file, |found| connect(found, rank, WELCOME_MAX))?;
    serve(stream, input, rank)
}

/// Runs the jobs of the benchmark that started this process.
///
/// # Errors
/// As [`serve_rank`].
pub fn serve_child(address: &str, secrets: &Secrets, rank: usize) -> Result<()> {
    let _interrupt = Interrupt::listen();
    serve_at(address, secrets, rank)
}

pub(super) fn serve_at(address: &str, secrets: &Secrets, rank: usize) -> Result<()> {
    let found = Rendezvous { addresses: vec![address.to_owned()], secrets: secrets.clone() };
    let connected = connect(&found, rank, OWN_WELCOME_MAX);
    let (stream, input) = connected.map_err(Error::io(format!("cannot reach the benchmark at {address}")))?;
    serve(stream, input, rank)
}

/// Connects to the first address at which the coordinator proves itself within `welcome_max`.
pub(super) fn connect(
    found: &Rendezvous,
    rank: usize,
    welcome_max: Duration,
) -> io::Result<(TcpStream, BufReader<Input>)> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in found.addresses.iter().flat_map(|address| address.to_socket_addrs().into_iter().flatten()) {
        let connected = TcpStream::connect_timeout(&address, CONNECT_MAX);
        match connected.and_then(|stream| introduce(stream, &found.secrets, rank, welcome_max)) {
            Ok(welcomed) => return Ok(welcomed),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends the token, and waits until the coordinator has proved that it knows the answer.
fn introduce(
    mut stream: TcpStream,
    secrets: &Secrets,
    rank: usize,
    welcome_max: Duration,
) -> io::Result<(TcpStream, BufReader<Input>)> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREACHABLE_MAX_MS)?;
    let mut input = Input::new(&stream, welcome_max)?;
    let host = rendezvous::host_name();
    send(&mut stream, &Hello { protocol: PROTOCOL, token: secrets.token.clone(), rank, host })?;
    let welcome: Welcome = receive(&mut input, HELLO_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if !token::matches(&secrets.answer, &welcome.answer) {
        return Err(io::Error::other("it is not the benchmark of this run"));
    }
    input.get_mut().trust()?;
    Ok((stream, input))
}

/// The link of a rank to its coordinator.
struct RemoteLink {
    rank: usize,
    stream: Mutex<TcpStream>,
    state: Mutex<RankState>,
    changed: Condvar,
    stopped: AtomicBool,
    operations: AtomicU64,
    finished: AtomicBool,
    /// The coordinator said that there are no more jobs.
    dismissed: AtomicBool,
}

#[derive(Default)]
struct RankState {
    /// Barriers that were released in this job, and those at which this rank was.
    released: u64,
    passed: u64,
}

impl RemoteLink {
    fn send(&self, message: &FromRank) -> Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        send(&mut *stream, message).map_err(Error::io("cannot report to rank 0"))
    }

    /// All waits of this rank end.
    fn stop(&self) {
        let _state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.stopped.store(true, Relaxed);
        self.changed.notify_all();
    }
}

impl Link for RemoteLink {
    fn barrier(&self) -> Result<()> {
        self.send(&FromRank::Arrived)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.passed += 1;
        while state.released < state.passed {
            if self.is_stopped() || interrupt::raised() {
                return Err(Error::Interrupted);
            }
            let waited = self.changed.wait_timeout(state, SIGNAL_TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn report(&self, part: PhasePart) -> Result<()> {
        self.send(&FromRank::Part(part))
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    fn advance(&self, operations: u64) {
        self.operations.fetch_add(operations, Relaxed);
    }
}

fn serve(stream: TcpStream, input: BufReader<Input>, rank: usize) -> Result<()> {
    let link = RemoteLink {
        rank,
        stream: Mutex::new(stream),
        state: Mutex::default(),
        changed: Condvar::new(),
        stopped: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        finished: AtomicBool::new(false),
        dismissed: AtomicBool::new(false),
    };
    let (jobs, next) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| follow(&link, input, jobs));
        scope.spawn(|| keep_alive(&link));
        let served = run_jobs(&link, &next);
        link.finished.store(true, Relaxed);
        // Ends the thread that reads.
        let stream = link.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(std::net::Shutdown::Both);
        served
    })
}

/// Reads the coordinator's messages. At the end of the connection, the rank stops.
fn follow(link: &RemoteLink, mut input: BufReader<Input>, jobs: Sender<(Job, usize)>) {
    loop {
        match receive(&mut input, LINE_MAX) {
            Ok(Some(ToRank::Run { job, ranks })) => {
                *link.state.lock().unwrap_or_else(PoisonError::into_inner) = RankState::default();
                link.stopped.store(false, Relaxed);
                if jobs.send((job, ranks)).is_err() {
                    return;
                }
            }
            Ok(Some(ToRank::Release)) => {
                link.state.lock().unwrap_or_else(PoisonError::into_inner).released += 1;
                link.changed.notify_all();
            }
            Ok(Some(ToRank::Stop)) => link.stop(),
            Ok(end @ (Some(ToRank::Finish) | None)) => {
                link.dismissed.store(end.is_some(), Relaxed);
                link.stop();
                return;
            }
            Err(_) => {
                link.stop();
                return;
            }
        }
    }
}

fn keep_alive(link: &RemoteLink) {
    while !link.finished.load(Relaxed) {
        if link.send(&FromRank::Alive(link.operations.swap(0, Relaxed))).is_err() {
            return;
        }
        let mut slept = Duration::ZERO;
        while slept < ALIVE_EVERY && !link.finished.load(Relaxed) {
            std::thread::sleep(SIGNAL_TICK);
            slept += SIGNAL_TICK;
        }
    }
}

fn run_jobs(link: &RemoteLink, next: &Receiver<(Job, usize)>) -> Result<()> {
    while let Ok((job, ranks)) = next.recv() {
        let result = workloads::execute(&job, &RankContext::new(link.rank, ranks, link));
        let ending = match result {
            Ok(()) => Ending::Done,
            Err(Error::Interrupted) if interrupt::raised() => Ending::Interrupted,
            Err(Error::Interrupted) => Ending::Stopped,
            Err(error) => Ending::Failed(error.to_string()),
        };
        link.send(&FromRank::Ended(ending))?;
    }
    if link.dismissed.load(Relaxed) {
        return Ok(());
    }
    Err(Error::RankLost {
        rank: 0,
        host: String::new(),
        reason: "it closed the connection before the run was over".to_owned(),
    })
}
