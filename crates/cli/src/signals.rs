//! SIGTERM and SIGINT as requests to stop. SIGXFSZ is ignored.

use crate::problem::{Problem, Result};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, which no longer kill the process from [`listen`] on. Signals that arrive before the handler runs
/// are kept.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
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
    let (terminate, interrupt) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::interrupt()).map_err(failed)?)
    };
    Ok(Signals { runtime, terminate, interrupt })
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
        let Signals { runtime, mut terminate, mut interrupt } = self;
        // `asked` runs outside the runtime, because the object that it stops may have a runtime of its own.
        let heed = move || {
            let mut pause = None;
            loop {
                let later = async {
                    match pause {
                        Some(pause) => tokio::time::sleep(pause).await,
                        None => std::future::pending().await,
                    }
                };
                let event = runtime.block_on(async {
                    tokio::select! {
                        signal = terminate.recv() => signal.map(|()| StopReason::Now),
                        signal = interrupt.recv() => signal.map(|()| StopReason::Now),
                        () = later => Some(StopReason::Later),
                    }
                });
                let Some(event) = event else { return };
                pause = asked(event);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(heed).map(drop).map_err(failed)
    }
}

fn failed(error: std::io::Error) -> Problem {
    Problem::new("cannot listen for signals").caused_by(&error)
}
