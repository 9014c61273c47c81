//! The time of an operation by stage. It runs each phase alone and uses the sums that one process keeps of its stages
//! ([`varve_env::stages`]). Client and server must therefore live in one process. That is this process, whose stages
//! [`OwnStages`] has, or another one. A mount must be served by another one, because a process must not wait for itself
//! in the kernel.

use super::{Phase, Plan, pass};
use crate::interrupt::Interrupt;
use crate::progress::ProgressDisplay;
use crate::target::BenchTarget;
use crate::workloads::Workplace;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, Instant};
use varve_env::stages::{self, Stage, StageTime};

/// Long enough for the work after the last reply (releases, forgets).
const AFTERMATH: Duration = Duration::from_millis(50);

/// The name of the counters in errors.
const COUNTERS: &str = "the counters of stages";

/// Number of stage entries used to measure the cost of counting.
const PASSAGES: u32 = 1_000_000;

/// One operation through one frontend, on average, in microseconds. The stage times are summed over all threads, so
/// with several clients they show the amount of work and not the waiting time of a caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationProfile {
    pub operation: String,
    /// From the caller's call to its return.
    pub latency_us: f64,
    /// The kernel's requests to the mount.
    pub requests: f64,
    /// Requests from the client to the server.
    pub calls: f64,
    /// The stages in the order in which an operation passes them. Together they are the latency, except for work that
    /// happens after the caller has its reply.
    pub stages: Vec<StageProfile>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageProfile {
    pub stage: String,
    pub us: f64,
}

/// The cost of counting one stage, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterCost {
    pub off_ns: f64,
    pub on_ns: f64,
}

/// Counts the times of a process's stages.
pub trait Meter {
    /// Starts counting from zero.
    fn begin(&mut self) -> io::Result<()>;
    /// Stops counting.
    fn end(&mut self) -> io::Result<Sums>;
}

/// The stages of this process.
pub struct OwnStages;

impl Meter for OwnStages {
    fn begin(&mut self) -> io::Result<()> {
        Sums::take();
        stages::measure(true);
        Ok(())
    }

    fn end(&mut self) -> io::Result<Sums> {
        stages::measure(false);
        Ok(Sums::take())
    }
}

/// Time and passes of a stage, summed over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct StageSum {
    time: Duration,
    times: u64,
}

/// Sums over one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    #[serde(rename = "door")]
    frontend: StageSum,
    client: StageSum,
    call: StageSum,
    queue: StageSum,
    served: StageSum,
    fetch: StageSum,
    log: StageSum,
    reply: StageSum,
}

/// Measures create, stat and delete of `files` files in one directory of `target`, each phase alone. `meter` counts the
/// stages of the process behind it.
pub fn profile(
    target: &dyn BenchTarget,
    meter: &mut dyn Meter,
    files: u64,
    clients: usize,
) -> Result<Vec<OperationProfile>> {
    crate::workloads::check_clients_and_repeat(&[clients], 1)?;
    if files < clients as u64 {
        return Err(Error::Usage(format!("{files} files are not enough for {clients} clients: each needs one")));
    }
    let _interrupt = Interrupt::listen();
    let mut control = target.connect()?;
    let workplace = Workplace::make(target, &mut *control)?;
    let profiled = profile_in(target, &mut *control, meter, &workplace.directory, files, clients);
    workplace.remove(target, &mut *control, profiled)
}

fn profile_in(
    target: &dyn BenchTarget,
    control: &mut dyn crate::target::TargetClient,
    meter: &mut dyn Meter,
    workplace: &str,
    files: u64,
    clients: usize,
) -> Result<Vec<OperationProfile>> {
    let progress = ProgressDisplay::new(false, 0);
    let mut profiles = Vec::new();
    // The first round warms up.
    for round in ["warm-up", "measured"] {
        let plan = |phase| Plan {
            clients,
            files: if round == "measured" { files } else { (files / 10).max(clients as u64) },
            unique_dirs: false,
            stem: "profile",
            write_bytes: 0,
            phases: vec![phase],
            seed: 1,
        };
        let path = format!("{workplace}/{round}");
        let made = control.enter(workplace).and_then(|()| control.make_directory(round)).and_then(|()| {
            control.enter(&path)?;
            plan(Phase::Create).directories().iter().try_for_each(|name| control.make_directory(name))
        });
        made.map_err(|source| Error::Operation {
            via: target.label(),
            operation: "make directories in",
            path: path.clone(),
            source,
        })?;
        for phase in [Phase::Create, Phase::Stat, Phase::Delete] {
            settle();
            meter.begin().map_err(Error::io(COUNTERS))?;
            let outcomes = pass::run(target, &path, &plan(phase), &progress);
            settle();
            let sums = meter.end().map_err(Error::io(COUNTERS));
            let (outcomes, sums) = (outcomes?, sums?);
            if round == "measured" {
                profiles.extend(outcomes.iter().map(|outcome| sums.of(outcome, clients)));
            }
        }
    }
    Ok(profiles)
}

fn settle() {
    std::thread::sleep(AFTERMATH);
}

impl Sums {
    fn take() -> Sums {
        let take = |stage| {
            let StageTime { time, times } = stages::take(stage);
            StageSum { time, times }
        };
        Sums {
            frontend: take(Stage::Frontend),
            client: take(Stage::Client),
            call: take(Stage::Call),
            queue: take(Stage::Queue),
            served: take(Stage::Served),
            fetch: take(Stage::Fetch),
            log: take(Stage::Log),
            reply: take(Stage::Reply),
        }
    }

    /// Each stage's own time: its sum minus the sums of the stages within it.
    fn of(&self, outcome: &pass::PhaseOutcome, clients: usize) -> OperationProfile {
        let operations = outcome.operations.max(1) as f64;
        let us = |time: Duration| time.as_secs_f64() * 1e6 / operations;
        let own = |outer: Duration, inner: Duration| us(outer.saturating_sub(inner));
        let elapsed = outcome.elapsed * clients as u32;
        let server = self.queue.time + self.served.time + self.reply.time;
        let mut stages = Vec::new();
        let mut add = |stage: &str, us: f64| stages.push(StageProfile { stage: stage.to_owned(), us });
        // The library has no other frontend than its caller.
        if self.frontend.times > 0 {
            add("kernel", own(elapsed, self.frontend.time));
            add("door", own(self.frontend.time, self.client.time));
        } else {
            add("door", own(elapsed, self.client.time));
        }
        add("client", own(self.client.time, self.call.time));
        add("wire", own(self.call.time, server));
        add("queue", us(self.queue.time));
        add("fetch", us(self.fetch.time));
        add("decide", own(self.served.time, self.fetch.time + self.log.time));
        add("log", us(self.log.time));
        add("reply", us(self.reply.time));
        OperationProfile {
            operation: outcome.phase.name().to_owned(),
            latency_us: us(elapsed),
            requests: self.frontend.times as f64 / operations,
            calls: self.call.times as f64 / operations,
            stages,
        }
    }
}

/// Measures the cost of the counters themselves.
pub fn counter_cost() -> CounterCost {
    let passage = || {
        let begun = Instant::now();
        for _ in 0..PASSAGES {
            drop(std::hint::black_box(stages::enter(std::hint::black_box(Stage::Queue))));
        }
        begun.elapsed().as_nanos() as f64 / f64::from(PASSAGES)
    };
    let off_ns = passage();
    stages::measure(true);
    let on_ns = passage();
    stages::measure(false);
    stages::take(Stage::Queue);
    CounterCost { off_ns, on_ns }
}

/// The profiles of several frontends side by side: a table per operation, with stages as rows.
pub fn table(frontends: &[(String, Vec<OperationProfile>)]) -> String {
    const STAGES: [&str; 9] = ["kernel", "door", "client", "wire", "queue", "fetch", "decide", "log", "reply"];
    let Some((_, first)) = frontends.first() else { return String::new() };
    let width = |name: &str| name.len().max(8);
    let mut text = String::new();
    let mut row = |title: &str, cells: Vec<String>| {
        text.push_str(&format!("{title:12}"));
        for ((name, _), cell) in frontends.iter().zip(cells) {
            text.push_str(&format!("  {cell:>width$}", width = width(name)));
        }
        text.push('\n');
    };
    for (index, operation) in first.iter().enumerate() {
        let of = |cell: &dyn Fn(&OperationProfile) -> String| -> Vec<String> {
            frontends.iter().map(|(_, profiles)| profiles.get(index).map(cell).unwrap_or_default()).collect()
        };
        row(&format!("{}, µs", operation.operation), frontends.iter().map(|(name, _)| name.clone()).collect());
        for stage in STAGES {
            let find = |profile: &OperationProfile| {
                let found = profile.stages.iter().find(|found| found.stage == stage);
                found.map_or_else(|| "-".to_owned(), |found| format!("{:.1}", found.us))
            };
            row(&format!("  {stage}"), of(&find));
        }
        row("  latency", of(&|profile| format!("{:.1}", profile.latency_us)));
        row("  requests", of(&|profile| format!("{:.2}", profile.requests)));
        row("  calls", of(&|profile| format!("{:.2}", profile.calls)));
        row("", Vec::new());
    }
    text
}
