//! One command as a child process: it ends with this process's interruption, and leaves its output and its last words.

use crate::interrupt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often the suite looks for a signal or the end of the command.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(20);
/// A command that was interrupted removes its files first. After this time it is killed.
const CLEAN_UP_MAX: Duration = Duration::from_secs(600);

/// Runs the command to its end. After SIGINT or SIGTERM here, the command gets SIGTERM and ends in good order.
pub(super) fn run(program: &Path, words: &[String]) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A signal of the terminal is for the suite, which passes it on once.
    let child = command.process_group(0).spawn()?;
    let process = rustix::process::Pid::from_child(&child);
    thread::scope(|scope| {
        let waiting =
            thread::Builder::new().name("suite-step".into()).spawn_scoped(scope, || child.wait_with_output())?;
        let mut interrupted: Option<Instant> = None;
        while !waiting.is_finished() {
            thread::sleep(LOOKED_AT_EVERY);
            let signal = match interrupted {
                None if interrupt::raised() => rustix::process::Signal::TERM,
                Some(at) if at.elapsed() > CLEAN_UP_MAX => rustix::process::Signal::KILL,
                _ => continue,
            };
            interrupted = Some(Instant::now());
            // The process may have ended in this moment; its number stays reserved until it is waited for.
            let _ = rustix::process::kill_process(process, signal);
        }
        waiting.join().unwrap_or_else(|_| Err(io::Error::other("the thread that waits for the command panicked")))
    })
}
