//! The log of this process: its filter, its form, the file it goes to, and what SIGHUP renews.
//!
//! The log goes to stderr. A log file takes the place of stderr, so that the text of a panic is in it too. [`renew`]
//! opens the file anew by its name, which logrotate has given to another file, and takes over the filter that the
//! configuration file has now.

mod filter;
mod form;

use crate::definition::Varve;
use crate::escaping::Escaping;
use crate::late_replies::WithoutLateReplies;
use crate::problem::{Problem, Result};
use crate::{config, definition};
use clap::{FromArgMatches, ValueEnum};
use form::{EventForm, Layout};
use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};
use varve_env::identity::as_process_user;
use varve_env::private_file::open_log;
use varve_env::service_manager;

/// The filter of a log that is kept, if none is given.
const KEPT: &str = "info";
/// The filter of a log on a terminal or in a pipe, if none is given.
const SHOWN: &str = "warn";

/// The form of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl LogFormat {
    /// The name in the flag.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// The parts of the log that [`renew`] changes.
struct Running {
    filter: reload::Handle<EnvFilter, Registry>,
    arguments: Vec<OsString>,
    /// The log file that stderr is, by its absolute path.
    file: Mutex<Option<PathBuf>>,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Starts the log of a process with these arguments.
pub fn start(varve: &Varve, arguments: &[OsString]) -> Result<()> {
    let journal = service_manager::logs_to_journal();
    let filter = filter::parse(filter_of(varve, journal))?;
    let colours = !journal && crate::colours(std::io::stderr().is_terminal());
    let layout = match varve.global.log_format {
        LogFormat::Json => Layout::Json,
        LogFormat::Text if journal => Layout::Journal,
        LogFormat::Text => Layout::Text { colours },
    };
    let (filter, handle) = reload::Layer::new(filter);
    let writer = move || Escaping::new(std::io::stderr(), colours);
    let lines = fmt::layer().with_ansi(colours).event_format(EventForm(layout)).with_writer(writer);
    tracing_subscriber::registry().with(filter).with(WithoutLateReplies).with(lines).init();
    let running = Running { filter: handle, arguments: arguments.to_vec(), file: Mutex::new(None) };
    // The tests of this crate start one log a process.
    let _ = RUNNING.set(running);
    match varve.command.log_file() {
        Some(file) => log_to(file),
        None => Ok(()),
    }
}

/// The filter that the user has given, or the default for the place where the log goes.
fn filter_of(varve: &Varve, journal: bool) -> &str {
    let kept = journal || varve.command.log_file().is_some();
    varve.global.log.as_deref().unwrap_or(if kept { KEPT } else { SHOWN })
}

/// Makes `path` the log file in place of stderr.
fn log_to(path: &Path) -> Result<()> {
    let failed = |error: &dyn std::error::Error| {
        let problem = Problem::new(format!("cannot write the log {}", path.display())).caused_by(error);
        problem.next("Choose another with --log-file FILE.")
    };
    let path = std::path::absolute(path).map_err(|error| failed(&error))?;
    let file = as_process_user(|| open_log(&path)).map_err(|error| failed(&error))?;
    become_stderr(&file).map_err(|error| failed(&error))?;
    if let Some(running) = RUNNING.get() {
        *running.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
    }
    Ok(())
}

fn become_stderr(file: &File) -> std::io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Opens the log file anew and rereads the configuration's filter, for SIGHUP.
pub fn renew() {
    let Some(running) = RUNNING.get() else { return };
    let file = running.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let reopened = file.as_deref().map(log_to);
    if let Some(Err(problem)) = &reopened {
        tracing::warn!("{problem}; the log goes on in the file that was open");
    }
    match reread(&running.arguments) {
        Ok((filter, text)) => {
            // An error means that the log itself is gone.
            let _ = running.filter.reload(filter);
            let place = file.filter(|_| matches!(reopened, Some(Ok(())))).map(|file| file.display().to_string());
            tracing::info!("SIGHUP: log {}, filter {text}", place.as_deref().unwrap_or("stays where it is"));
        }
        Err(problem) => tracing::warn!("cannot reread the configuration, and the log's filter stays: {problem}"),
    }
}

/// The filter by the command line, the environment and the configuration file as it is now.
fn reread(arguments: &[OsString]) -> Result<(EnvFilter, String)> {
    let mut command = as_process_user(|| config::with_file(definition::definition(), arguments))?;
    let understood = command.try_get_matches_from_mut(arguments).and_then(|found| Varve::from_arg_matches(&found));
    let varve = understood.map_err(|error| Problem::usage("cannot understand the settings").because(error))?;
    let text = filter_of(&varve, service_manager::logs_to_journal()).to_owned();
    Ok((filter::parse(&text)?, text))
}

#[cfg(test)]
mod tests;
