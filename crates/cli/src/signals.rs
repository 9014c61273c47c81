//! SIGTERM and SIGINT as requests to stop, SIGHUP and SIGUSR1 as requests to renew the log. Other signals that tools send
//! to services do nothing; the standard library ignores SIGPIPE. SIGXFSZ is ignored.

use crate::logging;
use crate::problem::{Problem, Result};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that no longer kill the process from [`listen`] on. Those that arrive before the handler runs are kept.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Some configurations of logrotate send SIGUSR1 for SIGHUP.
    user1: Signal,
    user2: Signal,
    alarm: Signal,
}

/// A signal, or the end of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalEvent {
    Stop,
    Renew,
    Ignored(&'static str),
    Later,
}

/// Why [`Signals::on_stop_or_later`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A signal arrived.
    Now,
    /// The requested time is over.
    Later,
}

/// Call this before others can see the process that a signal is to stop.
pub fn listen() -> Result<Signals> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let entered = runtime.enter();
    let of = |kind| signal(kind).map_err(failed);
    let (terminate, interrupt) = (of(SignalKind::terminate())?, of(SignalKind::interrupt())?);
    let (hangup, user1) = (of(SignalKind::hangup())?, of(SignalKind::user_defined1())?);
    let (user2, alarm) = (of(SignalKind::user_defined2())?, of(SignalKind::alarm())?);
    drop(entered);
    Ok(Signals { runtime, terminate, interrupt, hangup, user1, user2, alarm })
}

/// Makes a write beyond the file size limit (`ulimit -f`, RLIMIT_FSIZE) fail with EFBIG for its caller, instead of
/// killing the process, which serves others too.
pub fn ignore_file_size() {
    // SAFETY: ignoring a signal installs no code to run.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        tracing::debug!("a file that may not become larger ends this process");
    }
}

impl Signals {
    /// Runs `asked` in a thread of its own for each signal, until the process ends.
    pub fn on_stop(self, asked: impl Fn() + Send + 'static) -> Result<()> {
        self.on_stop_or_later(move |_| {
            asked();
            None
        })
    }

    /// Like [`Signals::on_stop`]; it also runs `asked` without a signal, with [`StopReason::Later`], after the time
    /// that `asked` returned.
    pub fn on_stop_or_later(
        self,
        mut asked: impl FnMut(StopReason) -> Option<Duration> + Send + 'static,
    ) -> Result<()> {
        // `asked` runs outside the runtime, because the object that it stops may have a runtime of its own.
        let mut signals = self;
        let heed = move || {
            let mut pause = None;
            while let Some(event) = signals.next(pause) {
                match event {
                    SignalEvent::Stop => pause = asked(StopReason::Now),
                    SignalEvent::Later => pause = asked(StopReason::Later),
                    SignalEvent::Renew => logging::renew(),
                    SignalEvent::Ignored(name) => tracing::info!("{name} has no effect"),
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(heed).map(drop).map_err(failed)
    }
}

impl Signals {
    /// The next event; `None` if no signal can arrive any more.
    fn next(&mut self, pause: Option<Duration>) -> Option<SignalEvent> {
        let Signals { runtime, terminate, interrupt, hangup, user1, user2, alarm } = self;
        let later = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        runtime.block_on(async {
            // Of signals that have come together, the log is renewed before others are noted in it.
            tokio::select! {
                biased;
                signal = terminate.recv() => signal.map(|()| SignalEvent::Stop),
                signal = interrupt.recv() => signal.map(|()| SignalEvent::Stop),
                signal = hangup.recv() => signal.map(|()| SignalEvent::Renew),
                signal = user1.recv() => signal.map(|()| SignalEvent::Renew),
                signal = user2.recv() => signal.map(|()| SignalEvent::Ignored("SIGUSR2")),
                signal = alarm.recv() => signal.map(|()| SignalEvent::Ignored("SIGALRM")),
                () = later => Some(SignalEvent::Later),
            }
        })
    }
}

fn failed(error: std::io::Error) -> Problem {
    Problem::new("cannot listen for signals").caused_by(&error)
}
