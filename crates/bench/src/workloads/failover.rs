//! Ends servers of a volume with several servers, one after another, while clients work, and measures for how long the
//! clients stood still.
//!
//! Each client has directories of its own, which lie in all shards, and goes through them in turn: it creates a file,
//! looks at it, and removes the oldest one. So soon after the loss of a server every client asks for the shards of that
//! server. The *stall* of a loss is the longest time in which one of the clients completed no operation.
//!
//! At the end all directories are listed. A file whose creation was acknowledged and that is not there is *lost*, and so
//! is the removal of a file that is there again.

mod clients;
mod report;
#[cfg(test)]
mod tests;

pub use report::{FailoverReport, LossReport, Stalls};

use super::fleet::{Fleet, SERVERS_MAX, WAIT_MAX, wait_for_owners, wait_until_spread};
use crate::interrupt::Interrupt;
use crate::progress::ProgressDisplay;
use crate::{Error, Result};
use clients::{Clients, Preload};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use varve_env::random::Seeded;

pub const KILLS_MAX: u32 = 10_000;
pub const ENTRIES_MAX: u64 = 100_000_000;

/// Work between the end of one loss and the next one.
const CALM: Duration = Duration::from_secs(1);

pub struct FailoverConfig {
    /// The volume's store, which only this benchmark uses.
    pub store: PathBuf,
    pub clients: usize,
    /// Losses of each kind.
    pub kills: u32,
    /// Files that exist all the time.
    pub entries: u64,
    pub seed: u64,
    /// Show progress on stderr, if that is a terminal.
    pub progress: bool,
    /// The command line, for the report.
    pub arguments: Vec<String>,
}

/// The way in which a server is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Crash,
    Planned,
}

impl FailoverConfig {
    fn check(&self, servers: usize) -> Result<()> {
        let fail = |text: String| Err(Error::Usage(text));
        if !(2..=SERVERS_MAX).contains(&servers) {
            return fail(format!("the number of servers goes from 2 to {SERVERS_MAX}: with one, nobody takes over"));
        }
        super::check_clients_and_repeat(&[self.clients], 1)?;
        if !(1..=KILLS_MAX).contains(&self.kills) {
            return fail(format!("the number of kills goes from 1 to {KILLS_MAX}"));
        }
        if self.entries > ENTRIES_MAX {
            return fail(format!("the number of entries is at most {ENTRIES_MAX}"));
        }
        Ok(())
    }
}

/// Measures and reports. The volume is left to the caller, who removes it.
pub fn run(config: &FailoverConfig, fleet: &mut dyn Fleet) -> Result<FailoverReport> {
    let servers = fleet.servers();
    config.check(servers)?;
    let _interrupt = Interrupt::listen();
    let begun = Instant::now();
    let steps = config.entries + u64::from(config.kills) * 2;
    let progress = ProgressDisplay::new(config.progress, steps);
    wait_until_spread(fleet)?;
    progress.show_line("making files".to_owned());
    let preload = Preload { entries: config.entries, progress: &progress };
    let clients = Clients::start(&config.store, config.clients, &preload)?;
    let mut random = Seeded::new(config.seed);
    let mut stalls = [Vec::new(), Vec::new()];
    let mut lose_all = |loss: Loss, stalls: &mut Vec<Duration>| -> Result<()> {
        for number in 1..=config.kills {
            progress.show_line(format!("{} {number} of {}", loss.word(), config.kills));
            let place = random.below(servers);
            stalls.push(lose(fleet, &clients, place, loss)?);
            progress.advance(1);
        }
        Ok(())
    };
    let [crash, planned] = &mut stalls;
    let measured = lose_all(Loss::Crash, crash).and_then(|()| lose_all(Loss::Planned, planned));
    // The threads end in any case.
    let ended = clients.end();
    measured?;
    let ended = ended?;
    progress.show_line("looking for every file".to_owned());
    let lost = ended.lost()?;
    let [crash, planned] = stalls;
    Ok(FailoverReport {
        schema_version: FailoverReport::SCHEMA_VERSION,
        command: FailoverReport::COMMAND.to_owned(),
        arguments: config.arguments.clone(),
        servers,
        clients: config.clients,
        shards: fleet.owners().map_err(Error::io("cannot read the map of the cluster"))?.len(),
        entries: ended.entries(),
        operations: ended.operations(),
        failed: ended.failed(),
        first_failure: ended.first_failure(),
        duration_s: begun.elapsed().as_secs_f64(),
        crash: LossReport { kills: config.kills, lost, stall_ms: Stalls::of(&crash) },
        planned: LossReport { kills: config.kills, lost, stall_ms: Stalls::of(&planned) },
    })
}

impl Loss {
    fn word(self) -> &'static str {
        match self {
            Loss::Crash => "crash",
            Loss::Planned => "planned end",
        }
    }
}

/// Ends the server at `place`, waits until all clients have gone through their directories, and replaces it. Returns the
/// longest time in which a client stood still.
fn lose(fleet: &mut dyn Fleet, clients: &Clients, place: usize, loss: Loss) -> Result<Duration> {
    clients.begin_window();
    let ended = match loss {
        Loss::Crash => fleet.kill(place),
        Loss::Planned => fleet.leave(place),
    };
    ended.map_err(Error::io(format!("cannot end server {place}")))?;
    let none_left = |owners: &[Option<usize>]| owners.iter().all(|owner| owner.is_some_and(|owner| owner != place));
    wait_for_owners(fleet, "another server owns the shards of the ended one", none_left)?;
    clients.wait_for_rounds(WAIT_MAX)?;
    let stall = clients.longest_stall();
    fleet.start(place).map_err(Error::io(format!("cannot start server {place}")))?;
    wait_until_spread(fleet)?;
    clients.wait_for_rounds(WAIT_MAX)?;
    std::thread::sleep(CALM);
    Ok(stall)
}
