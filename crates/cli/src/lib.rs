//! The program `varve`, as a library so that its tests share its one definition of the command line.
//!
//! [`run`] reads the configuration into the definition, parses the command line, runs one command, prints its error if
//! there is one, and returns the exit code. Results go to stdout, everything else to stderr.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program is the outside: it starts the real world and is never simulated"
)]

mod client;
mod commands;
mod config;
mod definition;
mod embedded;
mod escaping;
mod help;
mod identity;
mod late_replies;
mod logging;
mod metrics;
mod output;
mod problem;
mod quantity;
mod server;
mod signals;
mod stdout;

pub use config::with_file;
pub use definition::definition;
pub use problem::Exit;

use clap::FromArgMatches;
use clap::parser::ValueSource;
use definition::{Command, Varve};
use output::Output;
use problem::{Problem, Result};
use rustix::process::{Resource, Rlimit};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};

/// Runs the command in `arguments` (the program's name first).
pub fn run(arguments: Vec<OsString>) -> Exit {
    if commands::mount_helper::is_fake(&arguments) {
        return Exit::Done;
    }
    let arguments = commands::mount_helper::translate(&arguments).unwrap_or(arguments);
    let (usage, json) = (usage_exit(&arguments), asks_for_json(&arguments));
    let parsed = config::with_file(definition::definition(), &arguments);
    let result = parsed.and_then(|mut command| match command.try_get_matches_from_mut(&arguments) {
        Ok(matches) => {
            config::check_environment(&command, &matches).map_err(|problem| problem.exits(usage))?;
            let mut varve = Varve::from_arg_matches(&matches)
                .map_err(|error| Problem::usage("cannot understand the command line").because(error))?;
            varve.global.log_on_command_line = matches.value_source("log") == Some(ValueSource::CommandLine);
            logging::start(&varve, &arguments)?;
            raise_descriptors();
            signals::ignore_file_size();
            dispatch(&varve)
        }
        Err(answer) => {
            // Help and version are results on stdout; everything else is an error on stderr.
            if answer.use_stderr() {
                if json {
                    let text = answer.render().to_string();
                    return Err(Problem::new(text.trim().trim_start_matches("error: ")).exits(usage));
                }
                let _ = write!(std::io::stderr(), "{}", refusal(&answer));
                return Ok(usage);
            }
            let failed =
                if usage == Exit::Usage { Exit::Failed } else { Exit::Fsck(commands::fsck::OPERATIONAL_ERROR) };
            print_answer(&answer).map_err(|problem| problem.exits(failed))?;
            Ok(Exit::Done)
        }
    });
    result.unwrap_or_else(|problem| {
        // If the pipe is closed, nobody reads this; the exit code still reports the outcome.
        let _ = match json {
            true => writeln!(std::io::stderr(), "{}", problem.json()),
            false => writeln!(std::io::stderr(), "varve: {problem}"),
        };
        problem.exit()
    })
}

/// Whether errors are to be JSON, those of the command line included.
fn asks_for_json(arguments: &[OsString]) -> bool {
    let by_environment =
        || std::env::var("VARVE_JSON").is_ok_and(|value| matches!(value.as_str(), "1" | "true" | "yes" | "on"));
    arguments.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json") || by_environment()
}

/// The text of a command line error. It quotes words of the command line and of the environment.
fn refusal(answer: &clap::Error) -> String {
    let text = answer.render();
    match colours(std::io::stderr().is_terminal()) {
        true => escaping::coloured_lines(&text.ansi().to_string()),
        false => escaping::lines(&text.to_string()),
    }
}

/// Prints help or version. clap itself ignores a closed or full stdout.
fn print_answer(answer: &clap::Error) -> Result<()> {
    let text = answer.render();
    if colours(std::io::stdout().is_terminal()) {
        output::print_line(&text.ansi().to_string())
    } else {
        output::print_line(&text.to_string())
    }
}

fn colours(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// The exit code of a usage error: fsck(8) has a code of its own for it.
fn usage_exit(arguments: &[OsString]) -> Exit {
    let mut words = arguments.iter().skip(1);
    let command = loop {
        match words.next() {
            Some(flag) if flag == "--log" || flag == "--log-format" || flag == "--config" => drop(words.next()),
            Some(flag) if flag.to_string_lossy().starts_with('-') => {}
            command => break command,
        }
    };
    if command.is_some_and(|command| command == "fsck") { Exit::Fsck(commands::fsck::USAGE) } else { Exit::Usage }
}

fn dispatch(varve: &Varve) -> Result<Exit> {
    let output = Output::new(varve.global.json);
    match &varve.command {
        Command::Format(arguments) => commands::format::run(arguments, &output),
        Command::Doctor(arguments) => commands::doctor::run(arguments, &output),
        Command::Serve(arguments) => commands::serve::run(arguments, &output),
        Command::Mount(arguments) => commands::mount::run(arguments, &varve.global, &output),
        Command::Umount(arguments) => commands::umount::run(arguments, &varve.global, &output),
        Command::Status(arguments) => commands::status::run(arguments, &output),
        Command::Info(arguments) => commands::info::run(arguments, &output),
        Command::Volume(arguments) => commands::volume::run(arguments, &output),
        Command::Path(arguments) => commands::path::run(arguments, &output),
        Command::Stats(arguments) => commands::stats::run(arguments, &output),
        Command::Fsck(arguments) => commands::fsck::run(arguments, &output),
        Command::Dump(arguments) => commands::dump::run(arguments, &output),
        Command::Load(arguments) => commands::load::run(arguments, &output),
        Command::Key(arguments) => commands::key::run(arguments, &output),
        Command::Cluster(arguments) => commands::cluster::run(arguments, &output),
        Command::Bench(arguments) => commands::bench::run(arguments, &output),
        Command::Report(arguments) => commands::report::run(arguments, &output),
        Command::Plan(arguments) => commands::plan::run(arguments, &output),
        Command::Record(arguments) => commands::record::run(arguments, &output),
        Command::Detector(arguments) => commands::detector::run(arguments, &output),
        Command::Completions(arguments) => commands::completions::run(arguments),
        Command::Man(arguments) => commands::man::run(arguments, &output),
    }
}

/// Raises the limit of open files and connections to the hard limit. The soft limit of shells and systemd, a thousand,
/// is meant for programs that wait with select(2). A server's clients alone can use that many, and then no table could
/// be opened.
fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::debug!("this process stays with {:?} open files at most: {error}", limit.current);
    }
}
