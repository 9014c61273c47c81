//! A mount in the background: this program again, in a session of its own. It reports on its stdout whether the mount
//! answers. The first process waits for that report. It never forks, so no thread can be lost.

use super::{Arguments, FstabOptions, log};
use crate::definition::Global;
use crate::problem::{Problem, Result};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use varve_env::identity::as_process_user;

/// The child's report when the mount answers; any other text is the reason why it does not.
const READY: &str = "ready\n";

/// Starts the background process and waits until its mount answers.
pub fn launch(options: &FstabOptions, arguments: &Arguments, global: &Global, log_file: &Path) -> Result<u32> {
    let failed = |error: std::io::Error| Problem::new("cannot start the mount's background process").caused_by(&error);
    let stderr = log::open(log_file)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(global.again()).arg("mount").arg("--in-background").arg("--log-file").arg(log_file);
    for list in &arguments.options {
        command.arg("-o").arg(list);
    }
    command.arg("--deadline").arg(arguments.deadline.to_string());
    if let Some(memory) = arguments.server.given_memory() {
        command.arg("--memory").arg(memory.to_string());
    }
    if let Some(workers) = arguments.server.workers {
        command.arg("--workers").arg(workers.to_string());
    }
    if let Some(directory) = &arguments.server.unix_dir {
        command.arg("--unix-dir").arg(std::path::absolute(directory).map_err(failed)?);
    }
    if let Some(file) = &arguments.client.key_file {
        command.arg("--key-file").arg(std::path::absolute(file).map_err(failed)?);
    }
    if arguments.client.tcp {
        command.arg("--tcp");
    }
    if let Some(address) = arguments.server.metrics {
        command.arg("--metrics").arg(address.to_string());
    }
    command.arg("--").arg(&options.store).arg(&options.directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    // The program may lie where only the starting user can reach it.
    let mut child = as_process_user(|| command.spawn()).map_err(failed)?;
    let mut word = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut word).map_err(failed)?;
    if word == READY {
        return Ok(child.id());
    }
    let status = child.wait().map_err(failed)?;
    let problem = if word.is_empty() {
        Problem::new("the mount's background process ended before the mount answered").because(status)
    } else {
        Problem::new(word.trim_end())
    };
    Err(problem.next(format!("Its log is {}", log_file.display())))
}

/// The process that waits for this one.
pub struct ParentProcess {
    stdout: std::io::Stdout,
}

/// Leaves the terminal, the session and the working directory of the starting process.
pub fn begin() -> Result<ParentProcess> {
    rustix::process::setsid()
        .and_then(|_| rustix::process::chdir("/"))
        .map_err(|error| Problem::new("cannot go into the background").caused_by(&error))?;
    Ok(ParentProcess { stdout: std::io::stdout() })
}

impl ParentProcess {
    pub fn ready(self) -> Result<()> {
        self.say(READY)
    }

    pub fn refuse(self, problem: &Problem) {
        if let Err(error) = self.say(&problem.to_string()) {
            tracing::warn!("cannot report the failed mount to the command that started it: {error}");
        }
    }

    /// Writes `word`, then closes stdout, for which the parent waits.
    fn say(mut self, word: &str) -> Result<()> {
        let failed =
            |error: std::io::Error| Problem::new("cannot reply to the command that started it").caused_by(&error);
        self.stdout.write_all(word.as_bytes()).and_then(|()| self.stdout.flush()).map_err(failed)?;
        let null = std::fs::File::options().write(true).open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdout(null).map_err(|errno| failed(errno.into()))
    }
}
