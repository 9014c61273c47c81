//! Runs a program to its end, reads what it prints, and kills it after a signal or at the deadline.

use crate::interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A program that takes longer does not end, or measures nothing that a user would wait for.
const PROGRAM_MAX: Duration = Duration::from_secs(900);
/// A killed process that does not end is in a system call that nobody answers.
const KILLED_MAX: Duration = Duration::from_secs(10);
/// Interval of the check for a signal.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Interval of the check for the end of a program that has closed its output.
const END_TICK: Duration = Duration::from_micros(100);
/// Bytes of an error message that are kept.
const MESSAGE_BYTES_MAX: usize = 4096;

/// A program that ended with success.
#[derive(Debug)]
pub(super) struct Ran {
    pub elapsed: Duration,
    pub lines: u64,
    pub bytes: u64,
}

/// `None`: a signal came; the program is killed.
pub(super) fn run(mut command: Command) -> io::Result<Option<Ran>> {
    let begun = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut running = Running { child, message: Vec::new(), lines: 0, bytes: 0 };
    let ended = running.drain(begun).and_then(|()| running.wait(begun + PROGRAM_MAX, interrupt::raised));
    match ended {
        Ok(status) if status.success() => {
            Ok(Some(Ran { elapsed: begun.elapsed(), lines: running.lines, bytes: running.bytes }))
        }
        Ok(_) if interrupt::raised() => Ok(None),
        Ok(status) => {
            let message = String::from_utf8_lossy(&running.message);
            Err(io::Error::other(format!("{status}: {}", message.trim_end())))
        }
        Err(error) => {
            running.child.kill()?;
            running.wait(Instant::now() + KILLED_MAX, || false)?;
            if interrupt::raised() { Ok(None) } else { Err(error) }
        }
    }
}

struct Running {
    child: Child,
    message: Vec<u8>,
    lines: u64,
    bytes: u64,
}

impl Running {
    /// Reads both outputs to their ends.
    fn drain(&mut self, begun: Instant) -> io::Result<()> {
        let (mut output, mut errors) = (self.child.stdout.take(), self.child.stderr.take());
        let mut buffer = vec![0; 64 * 1024];
        while output.is_some() || errors.is_some() {
            if interrupt::raised() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if begun.elapsed() > PROGRAM_MAX {
                return Err(io::Error::other(format!("not done after {} s", PROGRAM_MAX.as_secs())));
            }
            let (mut output_ready, mut errors_ready) = (false, false);
            {
                let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(2);
                watched.extend(output.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
                watched.extend(errors.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
                match poll(&mut watched, Some(&TICK)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                let mut ready = watched.iter().map(|watched| !watched.revents().is_empty());
                output_ready |= output.is_some() && ready.next().unwrap_or(false);
                errors_ready |= errors.is_some() && ready.next().unwrap_or(false);
            }
            if let Some(pipe) = output.as_mut().filter(|_| output_ready) {
                let read = pipe.read(&mut buffer)?;
                self.bytes += read as u64;
                self.lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
                output = output.filter(|_| read > 0);
            }
            if let Some(pipe) = errors.as_mut().filter(|_| errors_ready) {
                let read = pipe.read(&mut buffer)?;
                let room = MESSAGE_BYTES_MAX - self.message.len();
                self.message.extend_from_slice(&buffer[..read.min(room)]);
                errors = errors.filter(|_| read > 0);
            }
        }
        Ok(())
    }

    fn wait(&mut self, until: Instant, stop: impl Fn() -> bool) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if stop() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if Instant::now() >= until {
                return Err(io::Error::other(format!("process {} does not end", self.child.id())));
            }
            std::thread::sleep(END_TICK);
        }
    }
}
