//! Tasks for developers: `cargo xtask tidy` checks the rules of the codebase.

use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask tidy    check the rules of the codebase (layers, sizes, language, promises, links)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    match xtask::tidy::check(&xtask::root()) {
        Ok(violations) if violations.is_empty() => ExitCode::SUCCESS,
        Ok(violations) => {
            for violation in &violations {
                println!("{violation}");
            }
            eprintln!("tidy: {} violations", violations.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: cannot check the tree: {error:#}");
            ExitCode::FAILURE
        }
    }
}
