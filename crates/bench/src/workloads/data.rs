//! Data: checkpoints with a file a rank (N-N), one file of all ranks (N-1, segmented or strided), frames in one data set,
//! the first byte of random files among many, and random reads.
//!
//! Each write pattern runs in the phases of the checkpoint benchmark: open, barrier, write all transfers, barrier, sync,
//! close. So its rate is known as the application sees it (`write`), with the time of metadata calls (`overall`), and until
//! the file system below has all bytes (`drained`). Before reading, the caches are dropped, and ranks read what other ranks
//! have written.

mod caches;
mod file;
mod open_files;
mod pattern;
mod rank;
#[cfg(test)]
mod tests;

pub(crate) use rank::run_rank;

use super::campaign::{Campaign, CampaignConfig, Point};
use super::{RankWork, check_clients_and_repeat};
use crate::ranks::PhaseRecord;
use crate::results::{Figure, MARK_APPLICATION, MARK_DRAINED, MARK_PAGE_CACHE, Parameters, RunResults};
use crate::target::Via;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataPattern {
    /// A file a rank.
    NToN,
    /// One file; each rank has one part of it.
    Segmented,
    /// One file; the ranks' blocks alternate.
    Strided,
    /// One data set of three dimensions; each block is a frame, and the ranks' frames alternate.
    Frames,
    /// Open, first byte and close of random files among many.
    OpenFiles,
    /// Transfers at random places of a file a rank.
    RandomRead,
}

impl DataPattern {
    pub const ALL: [DataPattern; 6] = [
        DataPattern::NToN,
        DataPattern::Segmented,
        DataPattern::Strided,
        DataPattern::Frames,
        DataPattern::OpenFiles,
        DataPattern::RandomRead,
    ];

    /// The workload of its figures.
    pub(crate) fn workload(self) -> &'static str {
        match self {
            DataPattern::NToN => "checkpoint",
            DataPattern::Segmented | DataPattern::Strided => "shared-file",
            DataPattern::Frames => "frames",
            DataPattern::OpenFiles => "open-files",
            DataPattern::RandomRead => "random-read",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            DataPattern::NToN => "n-n",
            DataPattern::Segmented => "n-1-segmented",
            DataPattern::Strided => "n-1-strided",
            DataPattern::Frames => "frames",
            DataPattern::OpenFiles => "open-files",
            DataPattern::RandomRead => "random-read",
        }
    }
}

impl fmt::Display for DataPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataPattern {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<DataPattern, String> {
        DataPattern::ALL.into_iter().find(|pattern| pattern.name() == text).ok_or_else(|| {
            let names = DataPattern::ALL.map(DataPattern::name).join(", ");
            format!("there is no such pattern: use one of {names}")
        })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataOptions {
    pub pattern: DataPattern,
    /// Bytes that each rank writes.
    pub bytes: u64,
    /// Bytes of one write or read.
    pub transfer_bytes: u64,
    /// Bytes of one block of a strided file, or of one frame.
    pub block_bytes: u64,
    /// O_DIRECT.
    pub direct: bool,
    /// Compare every byte that is read with what was written.
    pub verify: bool,
    pub drop_caches: bool,
    /// Write only.
    pub write_only: bool,
    /// Files of all ranks together, for `open-files`.
    pub files: u64,
    /// Opens, or random reads, of each rank.
    pub operations: u64,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions {
            pattern: DataPattern::NToN,
            bytes: 1 << 30,
            transfer_bytes: 1 << 20,
            block_bytes: 1 << 20,
            direct: false,
            verify: false,
            drop_caches: true,
            write_only: false,
            files: 100_000,
            operations: 2000,
        }
    }
}

pub const TRANSFER_BYTES_MAX: u64 = 256 << 20;
/// A file of each of these is a row in the directory of `open-files`.
pub const OPEN_FILES_MAX: u64 = 100_000_000;
/// Memory pages and the sectors of all disks fit in it.
pub(crate) const DIRECT_ALIGNMENT: u64 = 4096;
const MIB: f64 = 1048576.0;
/// Data that is so many times as large as the memory does not stay in it.
const MEMORIES_MIN: f64 = 5.0;

impl DataOptions {
    pub(super) fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::Usage(text));
        if self.bytes == 0 || self.transfer_bytes == 0 || self.transfer_bytes > TRANSFER_BYTES_MAX {
            return fail(format!("each client has at least 1 byte, in transfers of 1 to {TRANSFER_BYTES_MAX} bytes"));
        }
        if self.block_bytes == 0 {
            return fail("a block has at least 1 byte".to_owned());
        }
        let blocks = matches!(self.pattern, DataPattern::Strided | DataPattern::Frames);
        if blocks && !self.bytes.is_multiple_of(self.block_bytes) {
            return fail(format!(
                "{} bytes of each client are no whole number of blocks of {}",
                self.bytes, self.block_bytes
            ));
        }
        let aligned = [self.bytes, self.transfer_bytes, if blocks { self.block_bytes } else { self.bytes }];
        if self.direct && !aligned.iter().all(|bytes| bytes.is_multiple_of(DIRECT_ALIGNMENT)) {
            return fail(format!("direct I/O needs sizes that are multiples of {DIRECT_ALIGNMENT} bytes"));
        }
        if self.files == 0 || self.files > OPEN_FILES_MAX || self.operations == 0 {
            return fail(format!("1 to {OPEN_FILES_MAX} files, and at least one operation of each client"));
        }
        Ok(())
    }

    fn parameters(&self) -> Parameters {
        let mut parameters = Parameters::from([("pattern".to_owned(), self.pattern.name().into())]);
        match self.pattern {
            DataPattern::OpenFiles => {
                parameters.insert("files".to_owned(), self.files.into());
            }
            _ => {
                parameters.insert("bytes_per_client".to_owned(), self.bytes.into());
                parameters.insert("transfer_bytes".to_owned(), self.transfer_bytes.into());
            }
        }
        if matches!(self.pattern, DataPattern::Strided | DataPattern::Frames) {
            parameters.insert("block_bytes".to_owned(), self.block_bytes.into());
        }
        for (name, set) in [("direct", self.direct), ("verified", self.verify)] {
            if set {
                parameters.insert(name.to_owned(), true.into());
            }
        }
        parameters
    }
}

pub struct DataConfig {
    pub campaign: CampaignConfig,
    pub options: DataOptions,
    pub clients: Vec<usize>,
    pub repeat: u32,
}

/// Measures and reports. All files of the run are removed, after success and after failure.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn run(config: &DataConfig) -> Result<RunResults> {
    config.options.check()?;
    check_clients_and_repeat(&config.clients, config.repeat)?;
    no_library(&config.campaign.via)?;
    let most = config.clients.iter().copied().max().unwrap_or(1);
    let mut campaign = Campaign::open(&config.campaign, "bench data", most, None)?;
    let clients = campaign.fixed_clients().map_or(config.clients.clone(), |ranks| vec![ranks]);
    let outcome = clients.iter().try_for_each(|clients| {
        (0..config.repeat).try_for_each(|turn| {
            turn_at(&mut campaign, &config.options, config.options.pattern.workload(), *clients, turn)
        })
    });
    campaign.finish(outcome)
}

pub(super) fn turn_at(
    campaign: &mut Campaign,
    options: &DataOptions,
    workload: &'static str,
    clients: usize,
    turn: u32,
) -> Result<()> {
    let memory_bytes = campaign.memory_bytes;
    let work = RankWork::Data(options.clone());
    let point = Point { workload, clients, parameters: options.parameters(), work };
    campaign.turn(&point, turn, &|phases| figures(phases, options, memory_bytes))
}

pub(super) fn no_library(via: &[Via]) -> Result<()> {
    match via.iter().find(|via| matches!(via, Via::Library(_))) {
        Some(library) => {
            Err(Error::Usage(format!("{library}: data goes through directories only; use mount:DIR or path:DIR")))
        }
        None => Ok(()),
    }
}

fn figures(phases: &[PhaseRecord], options: &DataOptions, memory_bytes: u64) -> Vec<Figure> {
    let of = |name: &str| phases.iter().find(|phase| phase.phase == name && phase.operations > 0);
    let seconds = |name: &str| of(name).map_or(0.0, PhaseRecord::seconds);
    let mut figures = Vec::new();
    if let Some(open) = of("open") {
        figures.push(Figure::rate("open", "ops/s", open.operations as f64 / open.seconds(), "open"));
    }
    let written = of("write").map_or(0, |write| write.bytes);
    let fits = (written as f64) < MEMORIES_MIN * memory_bytes as f64;
    if let Some(write) = of("write") {
        let mib = write.bytes as f64 / MIB;
        // The application's rate of data that the memory can hold is that of the memory.
        let cached = (fits && !options.direct).then_some(MARK_PAGE_CACHE);
        let application = [Some(MARK_APPLICATION), cached].into_iter().flatten().collect::<Vec<_>>();
        figures.push(Figure::rate("write", "MiB/s", mib / write.seconds(), "write").marked(application.clone()));
        let overall = seconds("open") + write.seconds() + seconds("close");
        figures.push(Figure::plain("write_overall", "MiB/s", true, mib / overall).marked(application));
        if of("sync").is_some() {
            let drained = mib / (write.seconds() + seconds("sync"));
            figures.push(Figure::plain("write_drained", "MiB/s", true, drained).marked([MARK_DRAINED]));
        }
    }
    let kept = of("drop").is_none_or(|drop| drop.missed > 0) && fits && !options.direct;
    let cached = kept.then_some(MARK_PAGE_CACHE);
    if let Some(read) = of("read") {
        let mib = read.bytes as f64 / MIB;
        figures.push(Figure::rate("read", "MiB/s", mib / read.seconds(), "read").marked(cached));
    }
    for (name, mark) in [("open_cold", cached), ("open_warm", None), ("random_read", cached)] {
        if let Some(phase) = of(name) {
            let rate = phase.operations as f64 / phase.seconds();
            figures.push(Figure::rate(name, "ops/s", rate, name).marked(mark));
        }
    }
    figures
}
