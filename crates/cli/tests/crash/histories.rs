//! Histories of single names: several clients create, replace, remove and read one name, and each history must be
//! linearizable: its results are those of one order in which each change happens once, between its call and its
//! return.
//!
//! The content of each file is as long as the number that its writer chose, so that stat(2) shows which file has the
//! name. A change whose outcome is unknown may happen at any time after its call, or never.

use super::common::Volume;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Barrier, Mutex};
use std::time::Duration;
use varve_client::{Failure, Library, RenameFlags, block_on};
use varve_env::random::Seeded;
use varve_env::volume_dir::VolumeDir;
use varve_types::{Errno, Mode};

/// Clients of one name. The time of a check grows exponentially with them.
const CLIENTS: usize = 3;

/// Operations of one client on one name.
const OPERATIONS: usize = 6;

/// Names in use at a time, each with clients of its own.
const NAMES: usize = 2;

/// Directories of the names: their homes are spread over the shards.
const DIRECTORIES: u64 = 16;

/// A check takes milliseconds. One that finds no order tries all of them.
const CHECKED: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum NameOperation {
    /// Makes an empty file; the name must be free.
    Create,
    /// Gives a file of this length the name, which must be free.
    Link(u64),
    /// Gives a file of this length the name.
    Rename(u64),
    Unlink,
    Stat,
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum NameResult {
    Done,
    Exists,
    Absent,
    Length(u64),
}

/// The length of the file that has the name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct NamedFile(Option<u64>);

impl SequentialSpec for NamedFile {
    type Op = NameOperation;
    type Ret = NameResult;

    fn invoke(&mut self, operation: &NameOperation) -> NameResult {
        match (operation, self.0) {
            (NameOperation::Create | NameOperation::Link(_), Some(_)) => NameResult::Exists,
            (NameOperation::Create, None) => {
                self.0 = Some(0);
                NameResult::Done
            }
            (NameOperation::Link(length), None) | (NameOperation::Rename(length), _) => {
                self.0 = Some(*length);
                NameResult::Done
            }
            (_, None) => NameResult::Absent,
            (NameOperation::Unlink, Some(_)) => {
                self.0 = None;
                NameResult::Done
            }
            (NameOperation::Stat | NameOperation::Read, Some(length)) => NameResult::Length(length),
        }
    }
}

/// A client, and how many of its operations had an unknown outcome: each of those is as one of another client that
/// never returns.
type Thread = (usize, usize);

type History = LinearizabilityTester<Thread, NamedFile>;

/// The clients of one name after the other.
pub struct Histories {
    number: u64,
    clients: Vec<Library>,
    random: Seeded,
    pub checked: AtomicU64,
    pub unknown: AtomicU64,
}

impl Histories {
    /// Some names at a time. The calling thread must be on the network of the servers.
    pub fn in_library(volume: &Volume, seed: u64) -> Vec<Histories> {
        let open = || Library::open_volume(VolumeDir::new(volume.store())).expect("the server answers");
        let first = open();
        for directory in 0..DIRECTORIES {
            block_on(first.make_directory(format!("/names{directory}").as_bytes(), Mode(0o755))).expect("a directory");
        }
        let histories = |number| Histories {
            number,
            clients: (0..CLIENTS).map(|_| open()).collect(),
            random: Seeded::new(seed + number),
            checked: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        };
        (0..NAMES as u64).map(histories).collect()
    }

    /// Works until it is stopped.
    ///
    /// # Panics
    /// If a history is not linearizable, or an operation fails otherwise than the name explains.
    pub fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let generation = self.checked.fetch_add(1, Relaxed);
            let name = format!("/names{}/{}-{generation}", generation % DIRECTORIES, self.number);
            let history = Mutex::new(History::new(NamedFile::default()));
            let (seed, barrier) = (self.random.number(), Barrier::new(CLIENTS));
            std::thread::scope(|scope| {
                for (number, library) in self.clients.iter().enumerate() {
                    let (name, history, barrier, unknown) = (&name, &history, &barrier, &self.unknown);
                    scope.spawn(move || {
                        let random = Seeded::new(seed + number as u64);
                        let mut client = NameClient { number, library, name, history, random, lost: 0 };
                        barrier.wait();
                        (0..OPERATIONS).for_each(|_| client.operate());
                        unknown.fetch_add(client.lost as u64, Relaxed);
                    });
                }
            });
            check(&name, history.into_inner().expect("no client panicked"));
            let _ = block_on(self.clients[0].unlink(name.as_bytes()));
        }
    }
}

struct NameClient<'a> {
    number: usize,
    library: &'a Library,
    name: &'a str,
    history: &'a Mutex<History>,
    random: Seeded,
    lost: usize,
}

impl NameClient<'_> {
    fn operate(&mut self) {
        let length = 1 + self.random.below(3000) as u64;
        let operation = match self.random.below(8) {
            0 => NameOperation::Create,
            1 => NameOperation::Link(length),
            2 | 3 => NameOperation::Rename(length),
            4 => NameOperation::Unlink,
            5 | 6 => NameOperation::Stat,
            _ => NameOperation::Read,
        };
        let other = format!("{}-{}-{length}", self.name, self.number);
        if matches!(operation, NameOperation::Link(_) | NameOperation::Rename(_)) {
            let content = vec![7; length as usize];
            // A file that may be half written is of no use.
            if block_on(self.library.write_file(other.as_bytes(), Mode(0o600), &content)).is_err() {
                return;
            }
        }
        let thread = (self.number, self.lost);
        self.history(|history| history.on_invoke(thread, operation.clone()).map(drop));
        let result = self.perform(&operation, &other);
        match result {
            Some(result) => self.history(|history| history.on_return(thread, result).map(drop)),
            None => self.lost += 1,
        }
        if matches!(operation, NameOperation::Link(_) | NameOperation::Rename(_)) {
            // A rename has taken it away, as a rule.
            let _ = block_on(self.library.unlink(other.as_bytes()));
        }
    }

    fn history(&self, note: impl FnOnce(&mut History) -> Result<(), String>) {
        note(&mut self.history.lock().expect("no client panicked")).expect("each thread does one thing at a time");
    }

    /// `None`: the outcome is unknown.
    fn perform(&self, operation: &NameOperation, other: &str) -> Option<NameResult> {
        let (library, name) = (self.library, self.name.as_bytes());
        let result = match operation {
            NameOperation::Create => block_on(library.create(name, Mode(0o600))).map(|()| NameResult::Done),
            NameOperation::Link(_) => block_on(library.link(other.as_bytes(), name)).map(|()| NameResult::Done),
            NameOperation::Rename(_) => {
                block_on(library.rename(other.as_bytes(), name, RenameFlags::Replace)).map(|()| NameResult::Done)
            }
            NameOperation::Unlink => block_on(library.unlink(name)).map(|()| NameResult::Done),
            NameOperation::Stat => block_on(library.stat(name)).map(|found| NameResult::Length(found.attributes.size)),
            NameOperation::Read => {
                block_on(library.read_file(name)).map(|content| NameResult::Length(content.len() as u64))
            }
        };
        match result {
            Ok(result) => Some(result),
            Err(Failure { errno: Errno::EEXIST, .. }) => Some(NameResult::Exists),
            Err(Failure { errno: Errno::ENOENT, .. }) => Some(NameResult::Absent),
            // The file that was found under the name was removed before it was read.
            Err(Failure { errno: Errno::ESTALE, .. }) if *operation == NameOperation::Read => None,
            Err(failure) if failure.outcome_unknown => None,
            Err(failure) => panic!("{operation:?} of {}: {failure}", self.name),
        }
    }
}

fn check(name: &str, history: History) {
    let (sender, checked) = mpsc::channel();
    let shown = format!("{history:#?}");
    std::thread::spawn(move || sender.send(history.is_consistent()));
    match checked.recv_timeout(CHECKED) {
        Ok(true) => {}
        Ok(false) => panic!("the history of {name} is not linearizable:\n{shown}"),
        Err(_) => panic!("no order of the history of {name} was found within {CHECKED:?}:\n{shown}"),
    }
}

/// Checks the checker.
#[test]
fn histories_with_lost_or_repeated_changes_are_found() {
    let history = |steps: &[(usize, NameOperation, Option<NameResult>)]| {
        let mut history = History::new(NamedFile::default());
        for (client, operation, result) in steps {
            history.on_invoke((*client, 0), operation.clone()).expect("one at a time");
            if let Some(result) = result {
                history.on_return((*client, 0), result.clone()).expect("it was called");
            }
        }
        history.is_consistent()
    };
    use NameOperation::{Create, Rename, Stat, Unlink};
    use NameResult::{Absent, Done, Exists, Length};
    let made = (0, Create, Some(Done));
    assert!(history(&[made.clone(), (1, Stat, Some(Length(0))), (0, Unlink, Some(Done)), (1, Stat, Some(Absent))]));
    assert!(!history(&[made.clone(), (1, Stat, Some(Absent))]), "a change is lost");
    assert!(!history(&[made.clone(), (1, Create, Some(Done))]), "two winners");
    assert!(!history(&[made.clone(), (0, Unlink, Some(Done)), (1, Unlink, Some(Done))]), "done twice");
    assert!(!history(&[made.clone(), (0, Rename(5), Some(Done)), (1, Stat, Some(Length(0)))]), "an old file");
    assert!(history(&[(2, Create, None), (1, Stat, Some(Absent)), (1, Create, Some(Exists))]), "an unknown outcome");
}
