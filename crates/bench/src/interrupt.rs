//! SIGINT and SIGTERM during a benchmark. The first signal ends the run in good order and removes everything that the
//! run made. The second one has its default effect.

use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static RAISED: AtomicBool = AtomicBool::new(false);

const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

extern "C" fn raise(_signal: i32) {
    RAISED.store(true, Relaxed);
}

/// Handles the signals until it is dropped, then restores the previous handlers.
pub(crate) struct Interrupt {
    before: Vec<(i32, libc::sigaction)>,
}

impl Interrupt {
    pub(crate) fn listen() -> Interrupt {
        RAISED.store(false, Relaxed);
        let before = SIGNALS
            .into_iter()
            .filter_map(|signal| {
                // SAFETY: all-zero is a valid sigaction, and the handler only stores to an atomic, which is
                // async-signal-safe. SA_RESETHAND makes the second signal deadly again.
                unsafe {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    let mut before: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = raise as extern "C" fn(i32) as usize;
                    action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
                    libc::sigemptyset(&mut action.sa_mask);
                    (libc::sigaction(signal, &action, &mut before) == 0).then_some((signal, before))
                }
            })
            .collect();
        Interrupt { before }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for (signal, action) in &self.before {
            // SAFETY: `action` is what sigaction(2) itself gave for this signal.
            unsafe {
                libc::sigaction(*signal, action, std::ptr::null_mut());
            }
        }
    }
}

/// Whether a signal arrived since the last [`Interrupt::listen`]. One relaxed load: cheap enough for every operation.
pub(crate) fn raised() -> bool {
    RAISED.load(Relaxed)
}

pub(crate) fn check() -> Result<()> {
    if raised() { Err(Error::Interrupted) } else { Ok(()) }
}
