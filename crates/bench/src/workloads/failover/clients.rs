//! The clients: threads, each with a session of its own, as separate processes would have.

use crate::interrupt;
use crate::progress::{ProgressDisplay, STRIDE};
use crate::workloads::fleet::LOOKED_AT_EVERY;
use crate::workloads::panicked;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varve_client::{Failure, Library, block_on};
use varve_env::volume_dir::VolumeDir;
use varve_types::{Errno, Mode};

/// Directories of a client. With 4 shards a server and 4 servers, a client has two or so in each shard.
const DIRECTORIES: usize = 32;
/// Files of a directory beyond the preloaded ones, before the oldest is removed.
const AHEAD: u64 = 8;

const FILE_MODE: Mode = Mode(0o644);
const DIRECTORY_MODE: Mode = Mode(0o755);

/// Files that the clients make before the measurement.
pub(super) struct Preload<'a> {
    pub entries: u64,
    pub progress: &'a ProgressDisplay,
}

/// Files `first..next` of a directory exist, but for those in `unknown`: the call for them failed, so they may exist or
/// not.
#[derive(Debug, Default)]
pub(super) struct DirectoryLog {
    pub first: u64,
    pub next: u64,
    pub unknown: BTreeSet<u64>,
}

/// The work of a client in the present window.
struct Progress {
    last: Instant,
    longest: Duration,
    /// Completed turns through all directories.
    rounds: u64,
}

#[derive(Default)]
struct Totals {
    operations: u64,
    failed: u64,
    first_failure: Option<String>,
}

/// A client's end: its library, and the state of its directories.
struct ClientEnd {
    number: usize,
    library: Library,
    directories: Vec<DirectoryLog>,
    totals: Totals,
}

pub(super) struct Clients {
    threads: Vec<JoinHandle<ClientEnd>>,
    progress: Vec<Arc<Mutex<Progress>>>,
    stop: Arc<AtomicBool>,
}

struct Worker {
    end: ClientEnd,
    progress: Arc<Mutex<Progress>>,
    stop: Arc<AtomicBool>,
}

fn path(client: usize, directory: usize) -> String {
    format!("/client{client}-{directory}")
}

fn failed(operation: &'static str, path: &str) -> impl FnOnce(Failure) -> Error {
    let path = path.to_owned();
    move |failure| {
        let source = io::Error::other(text(&failure));
        Error::Operation { via: "library".to_owned(), operation, path, source }
    }
}

fn text(failure: &Failure) -> String {
    failure.message.as_ref().map_or_else(|| failure.errno.to_string(), |text| text.to_string())
}

impl Clients {
    /// Connects the clients, makes their directories and the preloaded files, and starts their work.
    pub fn start(store: &Path, clients: usize, preload: &Preload<'_>) -> Result<Clients> {
        let each = preload.entries / (clients * DIRECTORIES) as u64;
        let ends: Vec<Result<ClientEnd>> = std::thread::scope(|scope| {
            let make = |number| scope.spawn(move || ClientEnd::make(store, number, each, preload.progress));
            let threads: Vec<_> = (0..clients).map(make).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| Err(panicked(&*panic)))).collect()
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (mut threads, mut progress) = (Vec::new(), Vec::new());
        for end in ends.into_iter().collect::<Result<Vec<_>>>()? {
            let own = Progress { last: Instant::now(), longest: Duration::ZERO, rounds: 0 };
            progress.push(Arc::new(Mutex::new(own)));
            let worker =
                Worker { end, progress: Arc::clone(progress.last().expect("pushed above")), stop: Arc::clone(&stop) };
            threads.push(std::thread::spawn(move || worker.work()));
        }
        Ok(Clients { threads, progress, stop })
    }

    /// Forgets earlier stalls. A client that stands still at this moment goes on to do so from the time of its last
    /// operation.
    pub fn begin_window(&self) {
        self.progress.iter().for_each(|progress| progress.lock().longest = Duration::ZERO);
    }

    pub fn longest_stall(&self) -> Duration {
        self.progress.iter().map(|progress| progress.lock().longest).max().unwrap_or_default()
    }

    /// Returns when every client has gone through all its directories, from begin to end.
    pub fn wait_for_rounds(&self, wait_max: Duration) -> Result<()> {
        let rounds = || self.progress.iter().map(|progress| progress.lock().rounds);
        let wanted: Vec<u64> = rounds().map(|rounds| rounds + 2).collect();
        let end = Instant::now() + wait_max;
        while !rounds().zip(&wanted).all(|(rounds, wanted)| rounds >= *wanted) {
            interrupt::check()?;
            if Instant::now() > end || self.threads.iter().any(JoinHandle::is_finished) {
                let source = io::Error::other(format!("not within {} s", wait_max.as_secs()));
                return Err(Error::Io { what: "the clients do not go on".to_owned(), source });
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
        Ok(())
    }

    /// Ends the clients' work.
    pub fn end(self) -> Result<EndedClients> {
        self.stop.store(true, Relaxed);
        let joined = self.threads.into_iter().map(JoinHandle::join);
        let ends: Vec<_> = joined.collect();
        let ends = ends.into_iter().map(|end| end.map_err(|panic| panicked(&*panic)));
        Ok(EndedClients(ends.collect::<Result<_>>()?))
    }
}

impl ClientEnd {
    fn make(store: &Path, number: usize, files: u64, progress: &ProgressDisplay) -> Result<ClientEnd> {
        let library = Library::open_volume(VolumeDir::new(store)).map_err(failed("open the volume for", "a client"))?;
        let mut directories = Vec::with_capacity(DIRECTORIES);
        for directory in 0..DIRECTORIES {
            let within = path(number, directory);
            let made = block_on(library.make_directory(within.as_bytes(), DIRECTORY_MODE));
            made.map_err(failed("make", &within))?;
            for file in 0..files {
                if file % STRIDE == 0 {
                    interrupt::check()?;
                    progress.advance(STRIDE.min(files - file));
                }
                let name = format!("{within}/f{file}");
                block_on(library.create(name.as_bytes(), FILE_MODE)).map_err(failed("create", &name))?;
            }
            directories.push(DirectoryLog { next: files, ..DirectoryLog::default() });
        }
        Ok(ClientEnd { number, library, directories, totals: Totals::default() })
    }
}

impl Worker {
    fn work(mut self) -> ClientEnd {
        let kept = self.end.directories.first().map_or(0, |log| log.next) + AHEAD;
        while !self.stop.load(Relaxed) {
            for directory in 0..DIRECTORIES {
                self.step(directory, kept);
            }
            self.progress.lock().rounds += 1;
        }
        self.end
    }

    /// Creates a file, looks at it, and removes the oldest one if there are more than `kept`.
    fn step(&mut self, directory: usize, kept: u64) {
        let within = path(self.end.number, directory);
        let new = self.end.directories[directory].next;
        let name = format!("{within}/f{new}");
        let made = self.call(|library| block_on(library.create(name.as_bytes(), FILE_MODE)));
        let log = &mut self.end.directories[directory];
        log.next += 1;
        if made.is_err() {
            log.unknown.insert(new);
        } else {
            let found = self.call(|library| block_on(library.stat(name.as_bytes())).map(drop));
            // It was acknowledged just now. The search at the end shows whether it is lost.
            debug_assert!(!found.is_err_and(|errno| errno == Errno::ENOENT), "{name} is gone");
        }
        let log = &self.end.directories[directory];
        if log.next - log.first <= kept {
            return;
        }
        let (oldest, is_unknown) = (log.first, log.unknown.contains(&log.first));
        let name = format!("{within}/f{oldest}");
        let removed = self.call(|library| match block_on(library.unlink(name.as_bytes())) {
            Err(failure) if is_unknown && failure.errno == Errno::ENOENT => Ok(()),
            removed => removed,
        });
        let log = &mut self.end.directories[directory];
        log.first += 1;
        match removed {
            Ok(()) => drop(log.unknown.remove(&oldest)),
            Err(_) => drop(log.unknown.insert(oldest)),
        }
    }

    fn call(&mut self, operation: impl FnOnce(&Library) -> varve_client::Result<()>) -> std::result::Result<(), Errno> {
        let done = operation(&self.end.library);
        match &done {
            Ok(()) => self.end.totals.operations += 1,
            Err(failure) => {
                self.end.totals.failed += 1;
                self.end.totals.first_failure.get_or_insert_with(|| text(failure));
            }
        }
        let mut progress = self.progress.lock();
        let now = Instant::now();
        let stood_still = now - progress.last;
        progress.longest = progress.longest.max(stood_still);
        progress.last = now;
        drop(progress);
        done.map_err(|failure| failure.errno)
    }
}

/// The clients after their work.
pub(super) struct EndedClients(Vec<ClientEnd>);

impl EndedClients {
    /// Number of acknowledged changes that are not there.
    pub fn lost(&self) -> Result<u64> {
        let mut lost = 0;
        for end in &self.0 {
            for (number, log) in end.directories.iter().enumerate() {
                interrupt::check()?;
                let within = path(end.number, number);
                let mut found = BTreeSet::new();
                let listed = block_on(end.library.list(within.as_bytes(), &mut |entry| {
                    found.insert(entry.name.to_vec());
                    true
                }));
                listed.map_err(failed("list", &within))?;
                lost += log.difference(&found);
            }
        }
        Ok(lost)
    }

    pub fn entries(&self) -> u64 {
        self.0.iter().flat_map(|end| &end.directories).map(|log| log.next - log.first).sum()
    }

    pub fn operations(&self) -> u64 {
        self.0.iter().map(|end| end.totals.operations).sum()
    }

    /// The reason of a client's first operation that failed.
    pub fn first_failure(&self) -> Option<String> {
        self.0.iter().find_map(|end| end.totals.first_failure.clone())
    }

    pub fn failed(&self) -> u64 {
        self.0.iter().map(|end| end.totals.failed).sum()
    }
}

impl DirectoryLog {
    /// How many files are missing, and how many are there that should not be.
    pub(super) fn difference(&self, found: &BTreeSet<Vec<u8>>) -> u64 {
        let number_of = |name: &Vec<u8>| std::str::from_utf8(name).ok()?.strip_prefix('f')?.parse::<u64>().ok();
        let numbers: BTreeSet<u64> = found.iter().filter_map(number_of).collect();
        let known = |number: &u64| !self.unknown.contains(number);
        let missing = (self.first..self.next).filter(known).filter(|number| !numbers.contains(number)).count();
        let expected = |number: &u64| (self.first..self.next).contains(number);
        let excess = numbers.iter().filter(|number| known(number) && !expected(number)).count();
        (missing + excess + (found.len() - numbers.len())) as u64
    }
}
