//! The program `varve`.

use std::process::ExitCode;

fn main() -> ExitCode {
    varve_cli::run(std::env::args_os().collect()).into()
}
