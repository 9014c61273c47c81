//! One pass: all phases of a plan at one target, by client threads with a connection each.

use super::plan::{Phase, Plan, push_decimal};
use crate::measure::{Gate, Latencies};
use crate::progress::{ProgressDisplay, STRIDE};
use crate::target::{BenchTarget, TargetClient};
use crate::workloads::panicked;
use crate::{Error, Result, interrupt};
use std::io;
use std::time::{Duration, Instant};

/// The result of one phase of a pass.
pub struct PhaseOutcome {
    pub phase: Phase,
    pub operations: u64,
    /// From the first client's start to the last client's end, as mdtest counts.
    pub elapsed: Duration,
    pub latencies: Latencies,
}

impl PhaseOutcome {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

struct ClientPhase {
    begun: Instant,
    ended: Instant,
    operations: u64,
    latencies: Latencies,
}

/// State that the threads of a pass share.
struct PassShared<'a> {
    target: &'a dyn BenchTarget,
    directory: &'a str,
    plan: &'a Plan,
    gate: Gate,
    progress: &'a ProgressDisplay,
}

/// Runs `plan` in `directory` of `target`, in which the plan's directories exist. The first error of a client ends the
/// pass for all of them.
pub(super) fn run(
    target: &dyn BenchTarget,
    directory: &str,
    plan: &Plan,
    progress: &ProgressDisplay,
) -> Result<Vec<PhaseOutcome>> {
    let shared = PassShared { target, directory, plan, gate: Gate::new(plan.clients), progress };
    let shared = &shared;
    let results: Vec<Result<Vec<ClientPhase>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.clients)
            .map(|rank| {
                std::thread::Builder::new().name(format!("client {rank}")).spawn_scoped(scope, move || {
                    let _last_words = GiveUpOnUnwind(&shared.gate);
                    let result = client_thread(shared, rank);
                    if result.is_err() {
                        shared.gate.give_up();
                    }
                    result
                })
            })
            .collect();
        if threads.iter().any(|thread| thread.is_err()) {
            shared.gate.give_up();
        }
        threads
            .into_iter()
            .map(|thread| match thread.map_err(Error::io("cannot start a client thread"))?.join() {
                Ok(result) => result,
                Err(payload) => Err(panicked(&*payload)),
            })
            .collect()
    });
    let mut clients = Vec::with_capacity(results.len());
    for result in results {
        clients.push(result?);
    }
    if clients.iter().any(|phases| phases.len() < plan.phases.len()) {
        // A client that stopped without an error of its own followed another's; that client's error was returned above.
        return Err(Error::Interrupted);
    }
    Ok(merge(plan, clients))
}

struct GiveUpOnUnwind<'a>(&'a Gate);

impl Drop for GiveUpOnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}

fn merge(plan: &Plan, clients: Vec<Vec<ClientPhase>>) -> Vec<PhaseOutcome> {
    let of_phase = |(index, phase): (usize, &Phase)| {
        let mut parts = clients.iter().map(|phases| &phases[index]);
        let first = parts.next()?;
        let (mut begun, mut ended) = (first.begun, first.ended);
        let (mut operations, mut latencies) = (first.operations, first.latencies.clone());
        for part in parts {
            begun = begun.min(part.begun);
            ended = ended.max(part.ended);
            operations += part.operations;
            latencies.add(&part.latencies);
        }
        Some(PhaseOutcome { phase: *phase, operations, elapsed: ended - begun, latencies })
    };
    plan.phases.iter().enumerate().filter_map(of_phase).collect()
}

/// All phases of one client; fewer where another client's error ended the pass.
fn client_thread(shared: &PassShared, rank: usize) -> Result<Vec<ClientPhase>> {
    let PassShared { target, directory, plan, gate, .. } = shared;
    let mut done = Vec::with_capacity(plan.phases.len());
    let mut client = target.connect()?;
    for phase in &plan.phases {
        let owner = plan.owner(*phase, rank);
        let place = format!("{directory}/{}", plan.directory(owner));
        client.enter(&place).map_err(|source| Error::Operation {
            via: target.label(),
            operation: "open the directory",
            path: place.clone(),
            source,
        })?;
        let order = plan.order(*phase, rank);
        let mut work = ClientWork::new(plan, *phase, owner);
        if !gate.wait() {
            return Ok(done);
        }
        let begun = Instant::now();
        let mut last = begun;
        let mut latencies = Latencies::default();
        for position in 0..order.len() {
            work.name_file(order.at(position));
            work.operate(&mut *client).map_err(|fault| work.explain(fault, target.label(), &place))?;
            let now = Instant::now();
            latencies.record(now - last);
            last = now;
            if (position + 1) % STRIDE == 0 {
                shared.progress.advance(STRIDE);
            }
            if interrupt::raised() {
                return Err(Error::Interrupted);
            }
            if gate.given_up() {
                return Ok(done);
            }
        }
        done.push(ClientPhase { begun, ended: last, operations: order.len(), latencies });
        shared.progress.advance(order.len() % STRIDE);
        if !gate.wait() {
            return Ok(done);
        }
    }
    Ok(done)
}

enum Fault {
    Failed(io::Error),
    WrongSize(u64),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Failed(error)
    }
}

/// One client's operations of one phase.
struct ClientWork {
    phase: Phase,
    name: String,
    prefix_len: usize,
    content: Vec<u8>,
    buffer: Vec<u8>,
    bytes: u64,
}

/// The read size of coreutils.
const READ_BYTES: usize = 128 * 1024;

impl ClientWork {
    fn new(plan: &Plan, phase: Phase, owner: usize) -> ClientWork {
        let name = plan.prefix(phase, owner);
        let content = match phase {
            // Not all zero: a store must not be able to omit it.
            Phase::Create => (0..plan.write_bytes).map(|i| (i % 251) as u8 + 1).collect(),
            _ => Vec::new(),
        };
        let buffer = if phase == Phase::Read { vec![0; READ_BYTES] } else { Vec::new() };
        ClientWork { phase, prefix_len: name.len(), name, content, buffer, bytes: plan.write_bytes as u64 }
    }

    fn name_file(&mut self, number: u64) {
        self.name.truncate(self.prefix_len);
        push_decimal(&mut self.name, number);
    }

    fn operate(&mut self, client: &mut dyn TargetClient) -> std::result::Result<(), Fault> {
        let size = match self.phase {
            Phase::Create => return Ok(client.create(&self.name, &self.content)?),
            Phase::Delete => return Ok(client.unlink(&self.name)?),
            Phase::Mkdir => return Ok(client.make_directory(&self.name)?),
            Phase::Rmdir => return Ok(client.remove_directory(&self.name)?),
            Phase::Stat => client.stat(&self.name)?,
            Phase::Read => client.read(&self.name, &mut self.buffer)?,
        };
        if size == self.bytes { Ok(()) } else { Err(Fault::WrongSize(size)) }
    }

    fn explain(&self, fault: Fault, via: String, place: &str) -> Error {
        let path = format!("{place}/{}", self.name);
        match fault {
            Fault::Failed(source) => Error::Operation { via, operation: self.phase.name(), path, source },
            Fault::WrongSize(size) => Error::WrongAnswer {
                via,
                what: format!("{} of {path} reports {size} bytes, but {} were written", self.phase.name(), self.bytes),
            },
        }
    }
}
