//! Trouble from outside: damaged files, a full, frozen, read-only or failing store, unauthenticated connections on the
//! socket, names of all kinds. Each causes a clear error within its deadline. Nothing is lost, nothing panics, and the
//! work continues when the cause is gone.

mod common;
#[path = "trouble/damage.rs"]
mod damage;
#[path = "trouble/names.rs"]
mod names;
#[path = "trouble/partial_damage.rs"]
mod partial_damage;
#[path = "trouble/sockets.rs"]
mod sockets;
#[path = "trouble/stores.rs"]
mod stores;
#[path = "trouble/unknown_outcomes.rs"]
mod unknown_outcomes;
#[path = "trouble/unreachable.rs"]
mod unreachable;

use common::{Outcome, SHORT, Volume, run, varve};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use varve_env::random::Seeded;

/// The mounts' timeout for a server that does not answer.
const DEADLINE: Duration = Duration::from_secs(3);
const DEADLINE_OPTION: &str = "deadline=3s";
/// A call fails at its deadline. A busy machine may take a while longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time to reopen a failed shard, and to reconnect.
const RECOVERY: Duration = Duration::from_secs(45);

/// Files that were closed and fsynced, with their content.
#[derive(Default)]
struct Kept {
    files: BTreeMap<String, Vec<u8>>,
}

impl Kept {
    /// Writes and fsyncs some files, small and large.
    fn write(&mut self, directory: &Path, prefix: &str) {
        for (index, length) in [0, 100, 5_000, 70_000, 200_000].into_iter().enumerate() {
            let name = format!("{prefix}-{index}");
            self.write_one(directory, &name, length).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    fn write_one(&mut self, directory: &Path, name: &str, length: usize) -> io::Result<()> {
        let bytes = Seeded::new(length as u64 + self.files.len() as u64).bytes(length);
        let mut file = std::fs::File::create(directory.join(name))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        self.files.insert(name.to_owned(), bytes);
        Ok(())
    }

    fn expect(&self, directory: &Path) {
        for (name, bytes) in &self.files {
            let found = std::fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found == *bytes, "{name} has {} other bytes", found.len());
        }
    }
}

/// Runs `work`, which must fail within the deadline of a mount; returns the errno.
fn fails<T>(what: &str, work: impl FnOnce() -> io::Result<T>) -> i32 {
    let begun = Instant::now();
    let Err(error) = work() else { panic!("{what} should fail") };
    assert!(begun.elapsed() < DEADLINE + PATIENCE, "{what} failed only after {:?}: {error}", begun.elapsed());
    error.raw_os_error().unwrap_or_else(|| panic!("{what}: {error} is no answer of the system"))
}

/// Repeats `work` until it succeeds.
fn comes_back<T>(what: &str, mut work: impl FnMut() -> io::Result<T>) -> T {
    let end = Instant::now() + RECOVERY;
    loop {
        match work() {
            Ok(done) => return done,
            Err(error) if Instant::now() > end => panic!("{what} does not come back within {RECOVERY:?}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Expects `varve serve` to refuse: it exits with 1 and prints all of `words`.
fn refuses_to_serve(volume: &Volume, words: &[&str]) {
    let mut command = varve();
    command.arg("serve").arg(volume.store()).arg("--unix-dir").arg(volume.beside("sockets"));
    says("varve serve", &run(&mut command, SHORT), words);
}

/// Expects a command to have failed with its documented exit code and all of `words`.
fn says(what: &str, outcome: &Outcome, words: &[&str]) {
    // The code of fsck(8), where 1 would mean that something was repaired.
    let code = if what.ends_with("fsck") { 8 } else { 1 };
    assert_eq!(outcome.code(), Some(code), "{what}: {}{}", outcome.stdout, outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "{what} does not say {word:?}: {}", outcome.stderr);
    }
    expect_no_panic(what, &outcome.stderr);
}

fn expect_no_panic(what: &str, log: &str) {
    assert!(!log.contains("panicked"), "{what} panicked:\n{log}");
}
