//! Starts the ranks of a run and gives them jobs: threads of this process, processes that it starts, or the processes that
//! `mpirun` or `srun` started.

use super::coordinator::Coordinator;
use super::detect::Launched;
use super::link::ThreadLink;
use super::part::PhaseRecord;
use super::rendezvous::{self, Published, Rendezvous, START_MAX, Secrets};
use super::serve::{self, ANSWER_VARIABLE, HUB_VARIABLE, RANK_VARIABLE, TOKEN_VARIABLE};
use super::{RANKS_MAX, RankContext};
use crate::progress::ProgressDisplay;
use crate::target;
use crate::workloads::{self, Job, panicked};
use crate::{Error, Result};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Processes of one host come quickly or not at all.
const CHILD_START_MAX: Duration = Duration::from_secs(30);
/// A process that is to end, or whose connection is closed, does so at its next operation.
const CHILD_END_MAX: Duration = Duration::from_secs(10);
/// A killed process that does not end is in a system call that nobody answers.
const KILLED_MAX: Duration = Duration::from_secs(2);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub struct LauncherConfig {
    /// Each client is a process of its own.
    pub processes: bool,
    /// The rank and the number of ranks, if `mpirun` or `srun` started this process.
    pub launched: Option<Launched>,
    /// The directory in which processes of other hosts find this one.
    pub rendezvous: PathBuf,
    /// The program to start for each process, with its arguments.
    pub program: (PathBuf, Vec<String>),
    /// A rank that says nothing for so long is lost.
    pub silence_max: Duration,
}

/// The result of a job. With an error, `phases` has what was measured until then.
pub struct JobOutcome {
    pub phases: Vec<PhaseRecord>,
    pub error: Option<Error>,
}

/// The ranks of a run. Dropping it ends them.
pub struct Launcher {
    coordinator: Option<Coordinator>,
    /// Processes that this one started, in order of their ranks.
    children: Vec<Child>,
    /// Rank 0 of a run that another launcher started.
    own: Option<JoinHandle<Result<()>>>,
    _published: Option<Published>,
}

impl Launcher {
    /// Starts up to `ranks` ranks. If another launcher started the processes, it decides on their number, and this process
    /// must be rank 0.
    pub fn start(config: &LauncherConfig, ranks: usize) -> Result<Launcher> {
        match &config.launched {
            Some(launched) => Launcher::gather(config, launched),
            None if config.processes => Launcher::spawn(config, ranks),
            None => Ok(Launcher { coordinator: None, children: Vec::new(), own: None, _published: None }),
        }
    }

    /// Connects the processes that another launcher started.
    fn gather(config: &LauncherConfig, launched: &Launched) -> Result<Launcher> {
        if launched.ranks > RANKS_MAX {
            return Err(Error::Usage(format!("{} ranks are more than {RANKS_MAX}", launched.ranks)));
        }
        target::check_for_root(&config.rendezvous.display().to_string(), &config.rendezvous)?;
        let failed = || Error::io("cannot listen for the other ranks");
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
            .map_err(failed())?;
        let port = listener.local_addr().map_err(failed())?.port();
        let secrets = Secrets::new();
        let rendezvous = Rendezvous { addresses: rendezvous::addresses(port), secrets: secrets.clone() };
        let published = Published::publish(&rendezvous::file_of(&config.rendezvous, &launched.job), &rendezvous)?;
        let own_secrets = secrets.clone();
        let own = std::thread::Builder::new()
            .name("rank 0".to_owned())
            .spawn(move || serve::serve_at(&format!("127.0.0.1:{port}"), &own_secrets, 0))
            .map_err(Error::io("cannot start a thread for rank 0"))?;
        let times = (START_MAX, config.silence_max);
        let coordinator = Coordinator::gather(&listener, launched.ranks, &secrets, times, || Ok(()))?;
        Ok(Launcher {
            coordinator: Some(coordinator),
            children: Vec::new(),
            own: Some(own),
            _published: Some(published),
        })
    }

    fn spawn(config: &LauncherConfig, ranks: usize) -> Result<Launcher> {
        let failed = || Error::io("cannot listen for the client processes");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?.to_string();
        let secrets = Secrets::new();
        let mut launcher = Launcher { coordinator: None, children: Vec::new(), own: None, _published: None };
        let (program, arguments) = &config.program;
        for rank in 0..ranks {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
            command.env(RANK_VARIABLE, rank.to_string()).env(HUB_VARIABLE, &address);
            command.env(TOKEN_VARIABLE, &secrets.token).env(ANSWER_VARIABLE, &secrets.answer);
            // SIGINT on the terminal is for the benchmark, which ends the clients itself.
            let child = command.process_group(0).spawn();
            launcher.children.push(child.map_err(Error::io(format!("cannot start {}", program.display())))?);
        }
        let children = &mut launcher.children;
        let check = || {
            for (rank, child) in children.iter_mut().enumerate() {
                if let Ok(Some(status)) = child.try_wait() {
                    let reason = format!("its process ended with {status} before it connected");
                    return Err(Error::RankLost { rank, host: rendezvous::host_name(), reason });
                }
            }
            Ok(())
        };
        let times = (CHILD_START_MAX, config.silence_max);
        launcher.coordinator = Some(Coordinator::gather(&listener, ranks, &secrets, times, check)?);
        Ok(launcher)
    }

    /// The number of ranks, where another launcher decided on it.
    pub fn ranks(&self) -> Option<usize> {
        self.coordinator.as_ref().map(Coordinator::len)
    }

    /// The process numbers of the ranks that this process started.
    pub fn processes(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Runs a job on `ranks` ranks.
    pub(crate) fn run(&mut self, job: &Job, ranks: usize, progress: &ProgressDisplay) -> JobOutcome {
        let (parts, error) = match &mut self.coordinator {
            Some(coordinator) => coordinator.run(job, ranks, progress),
            None => run_threads(job, ranks, progress),
        };
        JobOutcome { phases: PhaseRecord::merge(&parts, ranks, error.is_some()), error }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.finish();
        }
        // Without the coordinator, processes that have not connected yet end too.
        self.coordinator = None;
        let end = Instant::now() + CHILD_END_MAX;
        for child in &mut self.children {
            // One that is left waits for a file system that does not answer, or is stopped.
            if !has_ended(child, end) {
                let _ = child.kill();
                has_ended(child, Instant::now() + KILLED_MAX);
            }
        }
        if let Some(own) = self.own.take()
            && own.is_finished()
        {
            let _ = own.join();
        }
    }
}

fn has_ended(child: &mut Child, until: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOKED_AT_EVERY),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}

fn run_threads(job: &Job, ranks: usize, progress: &ProgressDisplay) -> (Vec<super::PhasePart>, Option<Error>) {
    let link = ThreadLink::new(ranks, progress);
    let run_one = |rank: usize| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            workloads::execute(job, &RankContext::new(rank, ranks, &link))
        }));
        let result = result.unwrap_or_else(|payload| Err(panicked(&*payload)));
        if result.is_err() {
            link.gate.give_up();
        }
        result
    };
    let run_one = &run_one;
    let mut failure: Option<Error> = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let thread = std::thread::Builder::new().name(format!("rank {rank}"));
                thread.spawn_scoped(scope, move || run_one(rank)).inspect_err(|_| link.gate.give_up())
            })
            .collect();
        for thread in threads {
            let result = match thread {
                Ok(thread) => thread.join().unwrap_or_else(|payload| Err(panicked(&*payload))),
                Err(error) => Err(Error::io("cannot start a client thread")(error)),
            };
            // A rank that only followed another's failure has a less useful error.
            if let Err(error) = result
                && failure.as_ref().is_none_or(|known| matches!(known, Error::Interrupted))
            {
                failure = Some(error);
            }
        }
    });
    (link.parts.into_inner().unwrap_or_else(PoisonError::into_inner), failure)
}
