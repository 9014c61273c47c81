//! The benchmark's own mounts, each served by a separate process. A process that waits in the kernel for a mount which
//! it serves itself cannot be killed: it waits for itself for ever, and so does every other user of the mount.
//!
//! The separate process is this program again, in a process group of its own, so that a signal which interrupts the
//! benchmark leaves the mount in place until the end. The process never accesses the mount that it serves. On its
//! stdout it writes [`READY`] or the reason for its failure. Then it executes the commands on its stdin until end of
//! file, which comes when the benchmark ends, in whatever way. Then it unmounts.

use super::profile::ProfileSite;
use crate::problem::{Exit, Problem, Result};
use crate::stdout::Stdout;
use clap::{Args, Subcommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use varve_bench::ceilings::NullFuseMount;
use varve_bench::workloads::mdtest::{Meter, OwnStages, Sums};
use varve_client::Timeouts;
use varve_fuse::MountOptions;
use varve_fuse::unmount::{Unwritten, unmount};

const READY: &str = "ready";
const BEGIN: &str = "begin";
const BEGUN: &str = "begun";
const END: &str = "end";

/// Time for the process to end after it has unmounted and has closed the benchmark's volume.
const END_MAX: Duration = Duration::from_secs(60);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);
/// Maximum wait for an answer to a command, and for making and mounting a volume. On a slow disk the start of a server
/// takes some seconds. A longer wait is pointless.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Maximum number of further lines to read of an error.
const LINES_MAX: usize = 100;

/// Serve a mount for a benchmark, which starts this by itself
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A null file system; the kernel may cache its answers for this many nanoseconds
    Null { directory: PathBuf, directories: u64, files: u64, absent: u64 },
    /// A new volume, made by this command
    Volume {
        store: PathBuf,
        directory: PathBuf,
        /// The mount's own process is the server
        #[arg(long)]
        embedded: bool,
    },
}

/// The process that serves a mount.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    match &arguments.what {
        What::Null { directory, directories, files, absent } => {
            let [directories, files, absent] = [*directories, *files, *absent].map(Duration::from_nanos);
            let timeouts = Timeouts { directories, files, absent };
            let mounted = varve_fuse::null::mount(directory, timeouts, &MountOptions::new("null"));
            let mounted = mounted.map_err(|error| reported(Problem::new("cannot mount").caused_by(&error)))?;
            obey()?;
            mounted.unmount().map_err(|error| Problem::new("the mount did not end well").caused_by(&error))?;
        }
        What::Volume { store, directory, embedded } => {
            let site = ProfileSite::new(store, *embedded).map_err(reported)?;
            let mounted = site.mount(directory).map_err(reported)?;
            obey()?;
            mounted.unmount().map_err(|error| Problem::new("the mount did not end well").caused_by(&error))?;
            site.end()?;
        }
    }
    Ok(Exit::Done)
}

/// Also sends the error to the benchmark, which reports it.
fn reported(problem: Problem) -> Problem {
    // If the benchmark has ended, nobody reads it.
    let _ = say(&problem.to_string());
    problem
}

fn say(line: &str) -> io::Result<()> {
    Stdout.write_all(format!("{line}\n").as_bytes())
}

/// Executes the commands on stdin, which start and stop the counting of stages, until stdin ends.
fn obey() -> Result<()> {
    let failed = |error: io::Error| Problem::new("cannot reply to the benchmark").caused_by(&error);
    say(READY).map_err(failed)?;
    for order in io::stdin().lines() {
        let answer = match order.map_err(failed)?.as_str() {
            BEGIN => OwnStages.begin().map(|()| BEGUN.to_owned()),
            END => OwnStages.end().and_then(|sums| serde_json::to_string(&sums).map_err(io::Error::other)),
            other => Err(io::Error::other(format!("{other} is not a command"))),
        };
        let answered = answer.and_then(|answer| say(&answer));
        // The benchmark was killed. The mount ends as it does when stdin ends.
        if answered.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return Ok(());
        }
        answered.map_err(failed)?;
    }
    Ok(())
}

/// Variables that the process needs; `RUN_MARK` marks the processes of a test run.
const KEPT_VARIABLES: [&str; 6] = ["PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "RUST_BACKTRACE", "RUN_MARK"];

/// The benchmark's side.
pub struct Companion {
    directory: PathBuf,
    child: Child,
    orders: Option<ChildStdin>,
    answers: TimedLines<ChildStdout>,
}

impl Companion {
    pub fn null(directory: &Path, timeouts: Timeouts) -> io::Result<Companion> {
        let Timeouts { directories, files, absent } = timeouts;
        let numbers = [directories, files, absent].map(|timeout| OsString::from(timeout.as_nanos().to_string()));
        Companion::start(directory, [[OsString::from("null"), directory.into()].as_slice(), &numbers].concat())
    }

    pub fn volume(store: &Path, directory: &Path, embedded: bool) -> io::Result<Companion> {
        let flag = embedded.then(|| OsString::from("--embedded"));
        let words = [OsString::from("volume"), store.into(), directory.into()];
        Companion::start(directory, words.into_iter().chain(flag).collect())
    }

    fn start(directory: &Path, words: Vec<OsString>) -> io::Result<Companion> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "companion"]).args(words).process_group(0).env_clear();
        // The owner of the store can read the environment of this process, which may have been started by root.
        let kept = std::env::vars_os().filter(|(name, _)| KEPT_VARIABLES.iter().any(|kept| name == kept));
        command.envs(kept);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let orders = child.stdin.take();
        let answers = TimedLines { input: BufReader::new(child.stdout.take().expect("piped")), max: ANSWER_MAX };
        let mut companion = Companion { directory: directory.to_owned(), child, orders, answers };
        let mut word = companion.answers.next()?;
        if word != READY {
            // The process writes the reason and ends.
            for _ in 0..LINES_MAX {
                let Ok(line) = companion.answers.next() else { break };
                word = format!("{word}\n{line}");
            }
            return Err(io::Error::other(word.trim_end().to_owned()));
        }
        Ok(companion)
    }

    fn ask(&mut self, order: &str) -> io::Result<String> {
        let mut orders = self.orders.as_ref().expect("only its end takes them");
        orders.write_all(format!("{order}\n").as_bytes())?;
        self.answers.next()
    }

    /// Makes the process unmount, and returns when it has ended.
    pub fn end(mut self) -> io::Result<()> {
        let status = self.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("the process that serves the mount has ended with {status}"))),
        }
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.orders.take());
        let end = Instant::now() + END_MAX;
        loop {
            match self.child.try_wait()? {
                Some(status) => return Ok(status),
                None if Instant::now() > end => {
                    self.child.kill()?;
                    return self.child.wait();
                }
                None => std::thread::sleep(LOOKED_AT_EVERY),
            }
        }
    }
}

/// Lines, each with a deadline.
struct TimedLines<R> {
    input: BufReader<R>,
    max: Duration,
}

impl<R: Read + AsFd> TimedLines<R> {
    fn next(&mut self) -> io::Result<String> {
        let end = Instant::now() + self.max;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if self.input.buffer().is_empty() {
                self.wait(end)?;
            }
            let found = self.input.fill_buf()?;
            if found.is_empty() {
                return Err(io::Error::other("the process that serves the mount has ended"));
            }
            let taken = found.iter().position(|byte| *byte == b'\n').map_or(found.len(), |at| at + 1);
            line.extend_from_slice(&found[..taken]);
            self.input.consume(taken);
        }
        line.pop();
        String::from_utf8(line).map_err(io::Error::other)
    }

    fn wait(&self, end: Instant) -> io::Result<()> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut watched = [PollFd::new(self.input.get_ref(), PollFlags::IN)];
            match poll(&mut watched, Some(&timeout)) {
                Ok(0) => {
                    let what = format!("the process that serves the mount has not answered for {:?}", self.max);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        if self.wait().is_ok_and(|status| status.success()) {
            return;
        }
        // A process that died or could not unmount leaves a mount that nobody serves.
        if let Err(error) = unmount(&self.directory, LOOKED_AT_EVERY, Unwritten::GiveUp, &|_| {}) {
            tracing::debug!("{} was not left mounted: {error}", self.directory.display());
        }
    }
}

impl Meter for Companion {
    fn begin(&mut self) -> io::Result<()> {
        match self.ask(BEGIN)? {
            answer if answer == BEGUN => Ok(()),
            other => Err(io::Error::other(other)),
        }
    }

    fn end(&mut self) -> io::Result<Sums> {
        let answer = self.ask(END)?;
        serde_json::from_str(&answer).map_err(io::Error::other)
    }
}

impl NullFuseMount for Companion {
    fn unmount(self: Box<Self>) -> io::Result<()> {
        Companion::end(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount's process that hangs does not block the benchmark for ever.
    #[test]
    fn companion_replies_within_deadline_or_fails() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut answers = TimedLines { input: BufReader::new(reader), max: Duration::from_millis(50) };
        writer.write_all(b"ready\nbegun\nhalf").unwrap();
        assert_eq!(answers.next().unwrap(), READY);
        assert_eq!(answers.next().unwrap(), BEGUN);
        assert_eq!(answers.next().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(writer);
        assert!(answers.next().unwrap_err().to_string().contains("has ended"));
    }
}
