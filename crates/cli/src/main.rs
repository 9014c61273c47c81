//! The program `varve`.

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;
use std::ffi::c_long;
use std::process::ExitCode;

/// A request allocates and frees some dozens of small blocks, those of the log on one thread and on another. mimalloc
/// does this faster than glibc's allocator (docs/internals/performance-findings.md, "Build, allocator, memory").
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay`, which the crate does not name: how long freed memory is kept before it returns to the
/// system.
const PURGE_DELAY: mi_option_t = 15;
/// The default of a second makes a server with a small memory limit larger; ten milliseconds slow every flush of a
/// table.
const PURGE_DELAY_MS: c_long = 100;

fn main() -> ExitCode {
    // SAFETY: the call sets a number, unless the environment (MIMALLOC_PURGE_DELAY) does, and there are no other
    // threads yet.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
    varve_cli::run(std::env::args_os().collect()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const BY_NAME: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "4711");

    /// Promise: the option number is the one that the library uses for this name, in every version. The test runs in a
    /// process of its own, because the library reads the environment at its start.
    #[test]
    fn allocator_option_number_is_correct() {
        if std::env::var(BY_NAME.0).as_deref() == Ok(BY_NAME.1) {
            // SAFETY: the call only reads a number.
            assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, 4711);
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "tests::allocator_option_number_is_correct"]).env(BY_NAME.0, BY_NAME.1);
        assert!(child.output().unwrap().status.success());
    }
}
