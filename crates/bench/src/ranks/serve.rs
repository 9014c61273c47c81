//! A rank's process: it connects to the coordinator and runs the jobs that come, until there are no more.

use super::RankContext;
use super::link::Link;
use super::message::{Ending, FromRank, Hello, LINE_MAX, PROTOCOL, ToRank, receive, send};
use super::part::PhasePart;
use super::rendezvous::{self, Rendezvous};
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

/// Environment of a rank that the benchmark itself starts.
pub const RANK_VARIABLE: &str = "VARVE_BENCH_RANK";
pub const HUB_VARIABLE: &str = "VARVE_BENCH_COORDINATOR";
pub const TOKEN_VARIABLE: &str = "VARVE_BENCH_TOKEN";

/// An address of another network gives no answer at all.
const CONNECT_MAX: Duration = Duration::from_secs(2);
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
    let stream = rendezvous::wait_for(&file, |found| connect(found, rank))?;
    serve(stream, rank)
}

/// Runs the jobs of the benchmark that started this process.
///
/// # Errors
/// As [`serve_rank`].
pub fn serve_child(address: &str, token: &str, rank: usize) -> Result<()> {
    let _interrupt = Interrupt::listen();
    serve_at(address, token, rank)
}

pub(super) fn serve_at(address: &str, token: &str, rank: usize) -> Result<()> {
    let found = Rendezvous { addresses: vec![address.to_owned()], token: token.to_owned() };
    let stream = connect(&found, rank).map_err(Error::io(format!("cannot reach the benchmark at {address}")))?;
    serve(stream, rank)
}

fn connect(found: &Rendezvous, rank: usize) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in found.addresses.iter().flat_map(|address| address.to_socket_addrs().into_iter().flatten()) {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREACHABLE_MAX_MS)?;
                let (token, host) = (found.token.clone(), rendezvous::host_name());
                send(&mut stream, &Hello { protocol: PROTOCOL, token, rank, host })?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
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

fn serve(stream: TcpStream, rank: usize) -> Result<()> {
    let failed = || Error::io("cannot use the connection to rank 0");
    let input = BufReader::new(stream.try_clone().map_err(failed())?);
    let link = RemoteLink {
        rank,
        stream: Mutex::new(stream),
        state: Mutex::default(),
        changed: Condvar::new(),
        stopped: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        finished: AtomicBool::new(false),
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
fn follow(link: &RemoteLink, mut input: BufReader<TcpStream>, jobs: Sender<(Job, usize)>) {
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
            Ok(Some(ToRank::Finish) | None) | Err(_) => {
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
    Ok(())
}
