//! The program `varve`.

use mimalloc::MiMalloc;
use std::process::ExitCode;

/// A request allocates and frees some dozens of small pieces, the log's on one thread and on another. It takes a removal a quarter less time
/// than with glibc's, and gives memory back by itself (docs/measurements/2026-11-27-allocator.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    varve_cli::run(std::env::args_os().collect()).into()
}
