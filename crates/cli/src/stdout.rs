//! Standard output as it is, so that who asked for a result learns where it could not be written.
//!
//! The standard library means to be lenient: before `main` it opens /dev/null in the place of a stdout that is closed,
//! and takes it for done when one that is not open for writing refuses. A dump that went there would be gone without a
//! word.

use rustix::io::Errno;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Run by the loader, before the library has opened anything.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: it asks about a number, which need not be open.
        let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
        CLOSED.store(closed, Relaxed);
    }
    look
};

/// Whether this program was started without a stdout.
pub fn is_closed() -> bool {
    CLOSED.load(Relaxed)
}

/// Writes to stdout at once.
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
