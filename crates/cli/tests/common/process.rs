//! Processes that do not outlive their guard, started by a separate shell.
//!
//! A suite that works on a mount must not start that mount's server itself. The new process inherits copies of the
//! suite's open files and closes them before it becomes the server. At each close the kernel makes the mount flush the
//! file, and the flush waits for the server. Therefore a [`Launcher`], started before anything is open, starts all
//! processes.

use super::until;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// `start COMMAND LINE` prints the process's number, `wait NUMBER` its exit code once it has ended.
const SCRIPT: &str = r#"
while read -r verb rest; do
  case $verb in
    start) eval "$rest & echo \$!" ;;
    wait) wait "$rest"; echo $? ;;
  esac
done
"#;

/// A killed process ends at once; one that hangs in the kernel is reported.
const DEATH: Duration = Duration::from_secs(20);

pub struct Launcher {
    shell: Mutex<Shell>,
}

struct Shell {
    child: Child,
    /// Closing it ends the shell.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Launcher {
    pub fn start() -> Launcher {
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh is everywhere");
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Launcher { shell: Mutex::new(Shell { child, requests, answers }) }
    }

    fn ask(&self, request: &str) -> i32 {
        // A suite that panicked with this lock must still be able to end its processes.
        let mut shell = self.shell.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        writeln!(shell.requests.as_ref().expect("open until the end"), "{request}").expect("the launcher listens");
        let mut answer = String::new();
        shell.answers.read_line(&mut answer).expect("the launcher answers");
        answer.trim().parse().unwrap_or_else(|_| panic!("the launcher answers {answer:?} to {request}"))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        shell.requests = None;
        // The shell ends with its input. If it does not, nothing can be done.
        let _ = shell.child.wait();
    }
}

pub struct Process {
    launcher: Arc<Launcher>,
    pid: Pid,
    log: PathBuf,
    ended: bool,
}

impl Process {
    /// Starts a process with both outputs appended to `log`.
    pub fn start(launcher: &Arc<Launcher>, command: &Command, log: &Path) -> Process {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words.map(|word| quoted(word.to_str().expect("words are text"))).collect();
        let environment: Vec<String> = command
            .get_envs()
            .map(|(name, value)| {
                let name = name.to_str().expect("names are text");
                match value {
                    Some(value) => format!("{name}={}", quoted(value.to_str().expect("values are text"))),
                    None => format!("-u {name}"),
                }
            })
            .collect();
        // env(1) expects the variables to unset first. The shell executes the process in its place, so the number is
        // the process's own.
        let (unset, set): (Vec<_>, Vec<_>) = environment.into_iter().partition(|word| word.starts_with("-u "));
        let log_word = quoted(log.to_str().expect("temporary directories have plain names"));
        let line = format!(
            "start exec env {} {} {} </dev/null >>{log_word} 2>&1",
            unset.join(" "),
            set.join(" "),
            words.join(" ")
        );
        let pid = Pid::from_raw(launcher.ask(&line)).expect("a process has a number");
        Process { launcher: Arc::clone(launcher), pid, log: log.to_owned(), ended: false }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn expect_alive(&self) {
        assert!(is_running(self.pid()), "the process ended before it was ready\n{}", self.log());
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("a process that was not waited for can be signalled");
    }

    /// Stops the process. All its threads have stopped when this returns; the signal alone does not wait for that.
    pub fn hang(&self) {
        self.signal(Signal::STOP);
        self.await_stopped(DEATH);
    }

    /// Waits until all threads of the process have stopped, as the process itself may ask for.
    pub fn await_stopped(&self, deadline: Duration) {
        until("all threads of a stopped process stand", deadline, || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a process has threads");
            let state = |stat: String| stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('T'));
            // A thread that has ended does not run either.
            tasks.flatten().all(|task| {
                std::fs::read_to_string(task.path().join("stat")).map_or(true, |stat| state(stat) == Some(true))
            })
        });
    }

    /// Continues the stopped process.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        until("a killed process is gone", DEATH, || !is_running(self.pid()));
        self.launcher.ask(&format!("wait {}", self.pid()));
        self.ended = true;
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it has not ended within `deadline`, or not with 0.
    pub fn expect_end(&mut self, what: &str, deadline: Duration) {
        let code = self.await_end(what, deadline);
        assert_eq!(code, 0, "{what} ended with {code}\n{}", self.log());
    }

    /// Waits for its end, and returns its exit code.
    ///
    /// # Panics
    /// If it has not ended within `deadline`.
    pub fn await_end(&mut self, what: &str, deadline: Duration) -> i32 {
        until(&format!("{what} has ended"), deadline, || !is_running(self.pid()));
        let code = self.launcher.ask(&format!("wait {}", self.pid()));
        self.ended = true;
        code
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- {}", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        if !self.ended {
            // The process has not been waited for yet, so its number is still its own.
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// Whether a process runs. A process that has ended and was not waited for does not run. While any of its threads is
/// still ending, it still has its files, mounts and locks.
pub fn is_running(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The fields after the name, which is in parentheses and may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
    })
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
