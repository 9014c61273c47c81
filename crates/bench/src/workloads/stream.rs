//! Sequential writing and reading of large files, one per client, through plain directories and mounts side by side.
//!
//! The files of a turn lie in a directory of their own, because file systems place files by their directories. In one
//! fixed directory, a plain directory's files would always lie in one part of the disk, and a volume's files in all of
//! them. Parts may differ by a fifth in speed.
//!
//! The write time includes the final fsync. Before reading, the benchmark drops the kernel's cache of the files as far
//! as this process may, and for a volume's files also the cache of their store files. If it may not, the report says
//! so. Then it reads the files again, from the kernel's cache.

#[cfg(test)]
mod tests;

use super::{Workplace, panicked};
use crate::environment::Environment;
use crate::interrupt::{self, Interrupt};
use crate::measure::{Gate, Latencies};
use crate::progress::ProgressDisplay;
use crate::report::{self, BenchReport};
use crate::target::{self, BenchTarget, TargetClient, Via};
use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub struct StreamConfig {
    /// Plain directories and mounts; measured in turns, in this order.
    pub via: Vec<Via>,
    /// Bytes that each client writes and reads.
    pub bytes: u64,
    /// Bytes of one write(2) or read(2).
    pub block_bytes: usize,
    pub clients: Vec<usize>,
    pub repeat: u32,
    /// Drop all caches of the kernel before reading. Without root, only the caches of the files themselves are dropped.
    pub drop_caches: bool,
    pub progress: bool,
    pub arguments: Vec<String>,
}

impl Default for StreamConfig {
    fn default() -> StreamConfig {
        StreamConfig {
            via: Vec::new(),
            bytes: 1 << 30,
            block_bytes: 1 << 20,
            clients: vec![1, 2],
            repeat: 3,
            drop_caches: true,
            progress: true,
            arguments: Vec::new(),
        }
    }
}

/// Samples of one phase at one target with one number of clients.
pub struct StreamSeries {
    pub via: Via,
    pub phase: &'static str,
    pub clients: usize,
    pub mib_per_s: Vec<f64>,
    /// Latencies of single blocks.
    pub latencies: Latencies,
}

pub const BLOCK_BYTES_MAX: usize = 64 << 20;
const MIB: f64 = 1048576.0;

impl StreamConfig {
    fn check(&self) -> Result<()> {
        super::check_clients_and_repeat(&self.clients, self.repeat)?;
        super::check_each_once(&self.via)?;
        let fail = |text: String| Err(Error::Usage(text));
        if self.via.is_empty() {
            return fail("nothing to measure: give at least one --via path:DIR or mount:DIR".to_owned());
        }
        if let Some(library) = self.via.iter().find(|via| matches!(via, Via::Library(_))) {
            return fail(format!("{library}: streams go through directories only; use mount:DIR or path:DIR"));
        }
        if self.bytes == 0 || self.block_bytes == 0 || self.block_bytes > BLOCK_BYTES_MAX {
            return fail(format!("a stream has at least 1 byte, in blocks of 1 to {BLOCK_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

struct StreamContender {
    via: Via,
    target: Box<dyn BenchTarget>,
    control: Box<dyn TargetClient>,
    workplace: Workplace,
}

/// Measures and reports. All files of the run are removed, after success and after failure.
pub fn run(config: &StreamConfig) -> Result<BenchReport> {
    config.check()?;
    let _interrupt = Interrupt::listen();
    let environment = Environment::gather(&config.via)?;
    let each: u64 = config.clients.iter().map(|clients| *clients as u64 * config.bytes).sum();
    let steps = 3 * each * u64::from(config.repeat) * config.via.len() as u64;
    let progress = ProgressDisplay::new(config.progress, steps);
    let mut contenders = Vec::new();
    let mut measured = StreamMeasurement::default();
    let mut outcome = config.via.iter().try_for_each(|via| {
        let target = target::open(via)?;
        let mut control = target.connect()?;
        let workplace = Workplace::make(&*target, &mut *control)?;
        contenders.push(StreamContender { via: via.clone(), target, control, workplace });
        Ok(())
    });
    if outcome.is_ok() {
        outcome = measure(config, &contenders, &mut measured, &progress);
    }
    for StreamContender { target, mut control, workplace, .. } in contenders {
        outcome = workplace.remove(&*target, &mut *control, outcome);
    }
    drop(progress);
    outcome?;
    Ok(report::of_stream(config, environment.finished(), measured.series, measured.notes))
}

#[derive(Default)]
struct StreamMeasurement {
    series: Vec<StreamSeries>,
    notes: Vec<String>,
}

impl StreamMeasurement {
    fn keep(&mut self, via: &Via, phase: &'static str, clients: usize, outcome: (f64, Latencies)) {
        let (rate, latencies) = outcome;
        let known =
            |series: &&mut StreamSeries| series.via == *via && series.phase == phase && series.clients == clients;
        match self.series.iter_mut().find(known) {
            Some(series) => {
                series.mib_per_s.push(rate);
                series.latencies.add(&latencies);
            }
            None => {
                let mib_per_s = vec![rate];
                self.series.push(StreamSeries { via: via.clone(), phase, clients, mib_per_s, latencies });
            }
        }
    }

    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }
}

fn measure(
    config: &StreamConfig,
    all: &[StreamContender],
    measured: &mut StreamMeasurement,
    progress: &ProgressDisplay,
) -> Result<()> {
    for clients in &config.clients {
        for turn in 0..config.repeat {
            for contender in all {
                progress.show_line(format!("{clients} clients, turn {}, {}", turn + 1, contender.target.label()));
                let workplace = contender.via.directory().join(&contender.workplace.directory);
                let directory = workplace.join(format!("{clients}.{turn}"));
                std::fs::create_dir(&directory).map_err(Error::io(directory.display().to_string()))?;
                let files: Vec<PathBuf> = (0..*clients).map(|rank| directory.join(format!("stream.{rank}"))).collect();
                measured.keep(&contender.via, "write", *clients, pass(config, &files, write, progress)?);
                if let Err(note) = drop_caches(config, &files)? {
                    measured.note(note);
                }
                measured.keep(&contender.via, "read", *clients, pass(config, &files, read, progress)?);
                measured.keep(&contender.via, "reread", *clients, pass(config, &files, read, progress)?);
                for file in &files {
                    std::fs::remove_file(file).map_err(Error::io(file.display().to_string()))?;
                }
                std::fs::remove_dir(&directory).map_err(Error::io(directory.display().to_string()))?;
            }
        }
    }
    Ok(())
}

type Streamed = fn(&StreamConfig, &Path, &mut dyn FnMut(u64) -> Result<bool>) -> Result<()>;

/// Runs all clients at once. Returns MiB a second of all together, from the first client's start to the last client's
/// end.
fn pass(
    config: &StreamConfig,
    files: &[PathBuf],
    stream: Streamed,
    progress: &ProgressDisplay,
) -> Result<(f64, Latencies)> {
    let gate = &Gate::new(files.len());
    let one = |file: &Path| {
        let mut latencies = Latencies::default();
        if !gate.wait() {
            return Err(Error::Interrupted);
        }
        let begun = Instant::now();
        let mut last = begun;
        let result = stream(config, file, &mut |bytes| {
            let now = Instant::now();
            latencies.record(now - last);
            last = now;
            progress.advance(bytes);
            interrupt::check()?;
            Ok(!gate.given_up())
        });
        if result.is_err() {
            gate.give_up();
        }
        result.map(|()| (begun, Instant::now(), latencies))
    };
    let one = &one;
    let results: Vec<Result<(Instant, Instant, Latencies)>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            files.iter().map(|file| std::thread::Builder::new().spawn_scoped(scope, move || one(file))).collect();
        if threads.iter().any(|thread| thread.is_err()) {
            gate.give_up();
        }
        let ended = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| {
            let thread = thread.map_err(Error::io("cannot start a client thread"))?;
            thread.join().unwrap_or_else(|payload| Err(panicked(&*payload)))
        };
        threads.into_iter().map(ended).collect()
    });
    // A client that only followed an abort has a less useful error than the client that caused it.
    let (reported, tellers): (Vec<_>, Vec<_>) =
        results.into_iter().partition(|result| matches!(result, Err(Error::Interrupted)));
    let mut latencies = Latencies::default();
    let mut span: Option<(Instant, Instant)> = None;
    for result in tellers.into_iter().chain(reported) {
        let (begun, ended, part) = result?;
        latencies.add(&part);
        span = Some(span.map_or((begun, ended), |(first, last)| (first.min(begun), last.max(ended))));
    }
    let elapsed = span.map_or(Duration::ZERO, |(begun, ended)| ended - begun);
    let bytes = config.bytes as f64 * files.len() as f64;
    Ok((bytes / MIB / elapsed.as_secs_f64().max(1e-9), latencies))
}

fn write(config: &StreamConfig, path: &Path, done: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
    let fail = || Error::io(format!("cannot write {}", path.display()));
    let block = block(config.block_bytes);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(fail())?;
    let mut left = config.bytes;
    while left > 0 {
        let bytes = left.min(block.len() as u64);
        file.write_all(&block[..bytes as usize]).map_err(fail())?;
        left -= bytes;
        if !done(bytes)? {
            return Ok(());
        }
    }
    file.sync_all().map_err(fail())
}

/// Bytes that no store can compress or omit.
fn block(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(bytes + 8);
    while block.len() < bytes {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block.truncate(bytes);
    block
}

fn read(config: &StreamConfig, path: &Path, done: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
    let fail = || Error::io(format!("cannot read {}", path.display()));
    let mut block = vec![0; config.block_bytes];
    let mut file = File::open(path).map_err(fail())?;
    let mut total = 0;
    loop {
        let bytes = file.read(&mut block).map_err(fail())? as u64;
        if bytes == 0 {
            break;
        }
        total += bytes;
        if !done(bytes)? {
            return Ok(());
        }
    }
    if total == config.bytes {
        return Ok(());
    }
    let what = format!("{} has {total} bytes where {} were written", path.display(), config.bytes);
    Err(Error::WrongAnswer { via: "stream".to_owned(), what })
}

const NOT_DROPPED: &str = "The kernel's caches could not be dropped before reading (that needs root); only the files' own were, where \
their file system does so. Reads may be of memory.";
const NOT_ASKED: &str = "The kernel's caches were not dropped before reading; reads are of memory.";

/// Returns `Ok(Err(note))` if the caches could not be dropped as requested.
fn drop_caches(config: &StreamConfig, files: &[PathBuf]) -> Result<std::result::Result<(), &'static str>> {
    if !config.drop_caches {
        return Ok(Err(NOT_ASKED));
    }
    for path in files {
        forget(path)?;
        // Best effort: a user who may read a file through the mount but not in the store cannot drop the cache of the
        // store's file.
        if let Some(beneath) = beneath(path) {
            let _ = forget(&beneath);
        }
    }
    // 1: page cache only. The files were fsynced, so all of it is clean.
    Ok(std::fs::write("/proc/sys/vm/drop_caches", "1").map_err(|_| NOT_DROPPED))
}

/// Makes the kernel drop its cache of a file.
fn forget(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(Error::io(path.display().to_string()))?;
    // This is a hint. A file system that refuses it keeps its cache, which the note mentions.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

/// The store file that holds the bytes of a file of a mounted volume, if there is one (`varve info` shows the same).
pub(super) fn beneath(path: &Path) -> Option<PathBuf> {
    let mut reported = vec![0; 64 * 1024];
    let length = rustix::fs::getxattr(path, "varve.info", &mut reported).ok()?;
    let info: serde_json::Value = serde_json::from_slice(&reported[..length]).ok()?;
    info["content"]["path"].as_str().map(PathBuf::from)
}
