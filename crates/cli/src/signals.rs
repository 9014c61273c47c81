//! SIGTERM and SIGINT as a wish to stop.

use crate::problem::{Problem, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or SIGINT in a thread of its own and runs `asked` each time, until the process ends. Listening
/// begins before this returns: a signal that comes later has no longer its deadly effect.
pub fn on_stop(asked: impl Fn() + Send + 'static) -> Result<()> {
    let failed = |error: std::io::Error| Problem::new("cannot listen for signals").caused_by(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::interrupt()).map_err(failed)?)
    };
    // `asked` runs outside the runtime: what it stops may have one of its own.
    let listen = move || {
        while runtime
            .block_on(async {
                tokio::select! {
                    more = terminate.recv() => more,
                    more = interrupt.recv() => more,
                }
            })
            .is_some()
        {
            asked();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map(drop).map_err(failed)
}
