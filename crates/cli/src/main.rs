//! The program `varve`.

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;
use std::ffi::c_long;
use std::process::ExitCode;

/// A request allocates and frees some dozens of small pieces, those of the log on one thread and on another: that takes less time than
/// with glibc's (docs/measurements/2026-11-27-release.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay`: for how long what is free is kept before the system has it back.
const PURGE_DELAY: mi_option_t = 15;
/// A second, which it is else, makes a server that is to take little larger; a hundredth is felt in every flush of a table.
const PURGE_DELAY_MS: c_long = 100;

fn main() -> ExitCode {
    // SAFETY: it sets a number, and there are no other threads yet.
    unsafe { mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) };
    varve_cli::run(std::env::args_os().collect()).into()
}
