//! Direct access to standard output, so that a command reports a result that it could not write.
//!
//! The standard library is lenient: before `main` it opens /dev/null in place of a closed stdout, and it ignores errors
//! of a stdout that is not open for writing. A dump written there would be lost silently.

use rustix::io::Errno;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Run by the loader, before the standard library has opened anything.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: the call queries a descriptor number, which need not be open.
        let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
        CLOSED.store(closed, Relaxed);
    }
    look
};

/// Whether this program was started with a closed stdout.
pub fn is_closed() -> bool {
    CLOSED.load(Relaxed)
}

/// Writes to stdout without a buffer.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_closed() {
            return Err(Errno::BADF.into());
        }
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
