//! `varve umount DIR`: returns when everything is durable, or reports the obstacle.
//!
//! A mount whose server is gone answers only after its timeout. A process that waits in the kernel for such an answer
//! cannot end before, not even by SIGKILL. Therefore a separate process, this program again, unmounts, and the command
//! ends without it when its deadline is over.

use crate::definition::Global;
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::Args;
use serde::Serialize;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_fuse::Error;
use varve_fuse::unmount::{self, MountHolder, UnmountProgress, Unwritten, unmount};

/// Extra time beyond the deadline, for a last report of the separate process.
const SAID_MAX: Duration = Duration::from_millis(500);
/// With --force: how long the mount and its server may take for a first answer. A server that is restarted answers again
/// within a second.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A line by which the separate process reports that answer.
const ANSWERING: &str = "answering\n";
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// Unmount a volume; returns when everything is on disk
///
/// A mount that cannot write everything stays, so that nothing is lost: restore its store or server and unmount again,
/// or discard the unwritten data with --force (exit code 3). When the deadline of --wait is over, the command reports
/// what still holds the mount, and what to do.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory on which the volume is mounted
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Deadline of the command: for the mount to write everything and for its process to end
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    wait: Span,
    /// Unmount even if not everything can be written: data written to files that were neither closed nor fsynced is
    /// lost, and changes acknowledged in the last sync interval are lost if the machine fails too
    #[arg(long, short)]
    force: bool,
    /// This is the separate process
    #[arg(long, hide = true)]
    apart: bool,
}

#[derive(Serialize)]
struct UmountOutput {
    directory: PathBuf,
    /// Why not everything is on disk; only with --force.
    given_up: Option<String>,
    /// Number of large files whose rows do not have their sizes yet. The next open of such a file records its size.
    #[serde(rename = "sizes_unsettled")]
    sizes_stale: usize,
}

pub fn run(arguments: &Arguments, global: &Global, output: &Output) -> Result<Exit> {
    let directory = &arguments.directory;
    let wait = arguments.wait.0;
    let (given_up, sizes_stale) = if arguments.apart {
        let unwritten = if arguments.force { Unwritten::GiveUp } else { Unwritten::Keep };
        let unmounted = unmount(directory, wait, unwritten, &tell).map_err(|error| problem(arguments, &error))?;
        (unmounted.given_up.map(|error| error.to_string()), unmounted.size_stale.map_or(0, |left| left.files))
    } else {
        match apart(arguments, wait, global, output)? {
            Apart::Done(exit) => return Ok(exit),
            Apart::GivenUp(why) => (Some(why), 0),
        }
    };
    let exit = if given_up.is_some() { Exit::Degraded } else { Exit::Done };
    let unmounted = UmountOutput { directory: directory.clone(), given_up, sizes_stale };
    output.result("umount", &unmounted, text)?;
    Ok(exit)
}

/// Reports to the command that started this process, which shows the reason for a wait to the user.
fn tell(progress: UnmountProgress) {
    let size_stale = match progress {
        UnmountProgress::Answering => {
            // If it has ended, nobody reads this.
            let _ = io::stdout().write_all(ANSWERING.as_bytes()).and_then(|()| io::stdout().flush());
            return;
        }
        UnmountProgress::AwaitingSizes(size_stale) => size_stale,
    };
    let seconds = size_stale.known_in.as_secs() + 1;
    let _ = writeln!(
        io::stderr(),
        "varve: waiting, {seconds}s at most: the server was started a moment ago and does not know the other writers \
         of {} large files yet; their sizes are recorded then",
        size_stale.files
    );
}

fn problem(arguments: &Arguments, error: &Error) -> Problem {
    let directory = &arguments.directory;
    let failed = || Problem::new(format!("cannot unmount {}", directory.display()));
    let problem = match error {
        Error::Unmount { source, .. } => failed().caused_by(source),
        Error::StillRunning { .. } | Error::Unwatched { .. } => Problem::new(error.to_string()),
        error => failed().caused_by(error),
    };
    match error {
        Error::Busy { .. } => problem.next("End the processes that use it, then unmount again."),
        Error::StillRunning { .. } => problem.next("Wait for that process to end before the store is used."),
        Error::NotDurable { .. } => {
            let force = format!("varve umount --force {}", directory.display());
            problem.next(format!(
                "Bring the store back, or the server, then unmount again. If that is impossible, `{force}` \
                 discards unwritten data."
            ))
        }
        _ => problem,
    }
}

/// The result of an unmount by a separate process.
enum Apart {
    /// The process has printed its result itself.
    Done(Exit),
    /// The unmount was given up for this reason, and the mount is detached.
    GivenUp(String),
}

fn apart(arguments: &Arguments, wait: Duration, global: &Global, output: &Output) -> Result<Apart> {
    let failed = |error: io::Error| Problem::new("cannot run the process that unmounts").caused_by(&error);
    let directory = &arguments.directory;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .args(global.again())
        .args(output.is_json().then_some("--json"))
        .args(["umount", "--apart", "--wait"])
        .arg(Span(wait).to_string());
    command.args(arguments.force.then_some("--force")).arg("--").arg(directory);
    // The process gets pipes that this command reads, and not the command's own. A caller that waits for the end of
    // those must not wait for the separate process.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut problems = child.stderr.take().expect("piped");
    // Copied as it arrives, because the process may report what it waits for.
    let tell = move || {
        // If stderr is closed, nobody reads this, and the unmount succeeds all the same.
        let _ = io::copy(&mut problems, &mut io::stderr());
    };
    let telling = std::thread::Builder::new().spawn(tell).map_err(failed)?;
    let answering = Arc::new(AtomicBool::new(!arguments.force));
    let (results, answers) = (child.stdout.take().expect("piped"), Arc::clone(&answering));
    let reading = std::thread::Builder::new().spawn(move || printed(results, &answers)).map_err(failed)?;
    let begun = Instant::now();
    let in_time = || {
        let wait = wait.saturating_add(SAID_MAX);
        begun.elapsed() < if answering.load(Relaxed) { wait } else { wait.min(ANSWER_MAX) }
    };
    if let Some(status) = ended(&mut child, in_time).map_err(failed)? {
        telling.join().expect("what copies does not panic");
        let result = reading.join().expect("what reads does not panic").map_err(failed)?;
        output::print_line(&result)?;
        return Ok(Apart::Done(exit_of(status)));
    }
    let wait = if answering.load(Relaxed) { wait } else { wait.min(ANSWER_MAX) };
    // The process does nothing more after this, though it may take a while to end.
    child.kill().map_err(failed)?;
    let why = format!("the mount has not answered for {}, or has not written everything in that time", Span(wait));
    if !unmount::is_mounted(directory) {
        let what = format!("{} is unmounted, but its process has not ended for {}", directory.display(), Span(wait));
        return Err(Problem::new(what).next("Wait for that process to end before the store is used."));
    }
    if !arguments.force {
        let next = format!(
            "It stays mounted; {}. Is the volume served (`varve status STORE`)? If it is only slow, a longer --wait \
             helps. If it cannot be served, `varve umount --force {}` discards unwritten data.",
            held(directory, child.id()),
            directory.display()
        );
        return Err(Problem::new(format!("cannot unmount {}", directory.display())).because(why).next(next));
    }
    unmount::take_away(directory, child.id()).map_err(|error| problem(arguments, &error))?;
    Ok(Apart::GivenUp(why))
}

/// Names the processes and mounts that use the mount, without this program's own.
fn held(directory: &Path, asker: u32) -> String {
    let own = [std::process::id(), asker];
    let holders = unmount::holders_unasked(directory);
    let others =
        holders.iter().filter(|holder| !matches!(holder, MountHolder::Process { pid, .. } if own.contains(pid)));
    let others: Vec<String> = others.map(MountHolder::to_string).collect();
    match others.is_empty() {
        true => "no process other than its own was found to use it".to_owned(),
        false => format!("it is in use by {}", others.join("; ")),
    }
}

/// `None`: it has not ended, and time is over.
fn ended(child: &mut Child, in_time: impl Fn() -> bool) -> io::Result<Option<ExitStatus>> {
    loop {
        match child.try_wait()? {
            None if in_time() => std::thread::sleep(LOOKED_AT_EVERY),
            status => return Ok(status),
        }
    }
}

/// The output of the separate process, once it has ended. Sets `answering` when it reports that the mount answers.
fn printed(results: ChildStdout, answering: &AtomicBool) -> io::Result<String> {
    let mut results = BufReader::new(results);
    let mut text = String::new();
    results.read_line(&mut text)?;
    if text == ANSWERING {
        answering.store(true, Relaxed);
        text.clear();
    }
    results.read_to_string(&mut text)?;
    Ok(text)
}

fn exit_of(status: ExitStatus) -> Exit {
    let exits = [Exit::Done, Exit::Usage, Exit::Degraded];
    exits.into_iter().find(|exit| status.code() == Some(exit.code().into())).unwrap_or(Exit::Failed)
}

fn text(unmounted: &UmountOutput) -> String {
    let directory = unmounted.directory.display();
    match (&unmounted.given_up, unmounted.sizes_stale) {
        (Some(reason), _) => format!(
            "{directory} is unmounted, and not everything was written: {reason}.\nData of files that were neither \
             closed nor fsynced is lost. Acknowledged changes are kept in the volume's logs:\nits server replays them \
             when it is started, and `varve fsck` checks it.\n"
        ),
        (None, 0) => String::new(),
        (None, files) => format!(
            "{directory} is unmounted, and everything is written. The sizes of {files} large files are not \
             recorded:\nthe server was started too recently to know their other writers. The next open of each file \
             records its size.\n"
        ),
    }
}
