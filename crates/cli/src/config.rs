//! The configuration file, and the order in which a flag gets its value: command line, then environment, then file,
//! then default.
//!
//! The keys of the file are the long flags, grouped by command, so there is one definition of all of them:
//!
//! ```toml
//! log = "info"            # varve --log
//! [serve]
//! workers = 4             # varve serve --workers
//! [bench.mdtest]
//! clients = [1, 8]        # varve bench mdtest --clients 1 --clients 8
//! ```
//!
//! A value in the file becomes the flag's default before the command line is parsed, so clap itself checks the values.
//! The environment variable of a flag is `VARVE_`, its command and its name in capitals: `VARVE_SERVE_WORKERS`.
//!
//! A file is used only if it belongs to the effective user or root and nobody else can write it. Flags that destroy
//! something ([`DESTRUCTIVE`]) can be set only on the command line.

use crate::problem::{Problem, Result};
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use varve_env::printable::printable;
use varve_env::private_file::{self, PrivateFileError};
use varve_env::toml_text;

/// Flags that a file may not set: the one that names the file itself, and clap's own.
const NOT_IN_A_FILE: [&str; 3] = ["config", "help", "version"];
/// Flags that destroy something, or discard unwritten data. A forgotten line or variable must not do that, so only the
/// command line can set them.
const DESTRUCTIVE: [&str; 3] = ["force", "repair", "without-data"];
/// For a key further than this from every known key, a suggestion would only mislead.
const SUGGESTION_DISTANCE_MAX: usize = 3;

/// Gives every flag its environment variable.
pub fn with_environment(command: Command) -> Command {
    name_variables(command, "VARVE")
}

fn name_variables(command: Command, prefix: &str) -> Command {
    command
        .mut_args(|arg| match arg.get_long().map(|long| variable(prefix, long)) {
            Some(name) if !is_ours_alone(&arg) && !is_destructive(&arg) => as_switch(arg).env(name),
            _ => arg,
        })
        .mut_subcommands(|sub| {
            let prefix = variable(prefix, sub.get_name());
            name_variables(sub, &prefix)
        })
}

fn variable(prefix: &str, name: &str) -> String {
    format!("{prefix}_{}", name.to_uppercase().replace('-', "_"))
}

fn is_destructive(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| DESTRUCTIVE.contains(&long))
}

/// Refuses environment variables that name a destructive flag of the command in `matches`.
pub fn check_environment(command: &Command, matches: &ArgMatches) -> Result<()> {
    check_variables(command, matches, "VARVE", &|name| std::env::var_os(name).is_some())
}

fn check_variables(command: &Command, matches: &ArgMatches, prefix: &str, is_set: &dyn Fn(&str) -> bool) -> Result<()> {
    for arg in command.get_arguments().filter(|arg| is_destructive(arg)) {
        let long = arg.get_long().unwrap_or_default();
        let name = variable(prefix, long);
        if is_set(&name) {
            return Err(Problem::usage(format!("the environment sets {name}"))
                .because(format!("--{long} destroys data, so it is taken from the command line alone"))
                .next(format!("Unset {name}, and give --{long} with the command if that is meant.")));
        }
    }
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let sub = command.find_subcommand(name).expect("what matched is defined");
    check_variables(sub, matches, &variable(prefix, name), is_set)
}

/// Whether the flag is `--help` or `--version`, which are no settings.
fn is_ours_alone(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
}

/// Makes a switch accept `1`, `yes` or `on` from the environment as well as `true`.
fn as_switch(arg: Arg) -> Arg {
    if matches!(arg.get_action(), ArgAction::SetTrue) { arg.value_parser(BoolishValueParser::new()) } else { arg }
}

/// Reads the configuration file, if there is one, into the defaults of `command`.
pub fn with_file(command: Command, arguments: &[OsString]) -> Result<Command> {
    let Some((path, asked_for)) = find(arguments) else {
        return Ok(command);
    };
    match private_file::read_text(&path) {
        Ok(text) => apply(command, &text, &path),
        Err(error) if !asked_for && is_none_here(&error) => Ok(command),
        // For example root with another user's HOME.
        Err(error @ (PrivateFileError::Owner { .. } | PrivateFileError::Link { .. })) if !asked_for => {
            let note = printable(&format!("varve: the configuration is not used: {error}"));
            let _ = writeln!(std::io::stderr(), "{note}");
            Ok(command)
        }
        Err(error) => {
            let next = match error {
                PrivateFileError::Owner { .. } => "Give the file to this user (chown), or another file with --config.",
                PrivateFileError::Writable { .. } => "Run chmod go-w on it, or give another file with --config.",
                _ => "Give another file with --config, or unset VARVE_CONFIG.",
            };
            Err(Problem::usage("cannot read the configuration").caused_by(&error).next(next))
        }
    }
}

/// Whether there is no such file, or it lies in the home of another user, with whose environment this program was
/// started.
fn is_none_here(error: &PrivateFileError) -> bool {
    matches!(error.kind(), Some(ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied))
}

/// The file to read, and whether the user named it; a named file must exist.
fn find(arguments: &[OsString]) -> Option<(PathBuf, bool)> {
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else { continue };
        if text == "--" {
            break;
        }
        if text == "--config" {
            return rest.next().map(|path| (PathBuf::from(path), true));
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some((PathBuf::from(path), true));
        }
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("VARVE_CONFIG") {
        return Some((path, true));
    }
    let base = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some((base.join("varve/config.toml"), false))
}

/// Makes the file's values the defaults of the flags that they name.
fn apply(command: Command, text: &str, path: &Path) -> Result<Command> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        Problem::usage(format!("the configuration {} is not TOML", path.display()))
            .because(toml_text::reason(text, &error))
    })?;
    merge(command, table, "", path)
}

fn merge(mut command: Command, table: Table, prefix: &str, path: &Path) -> Result<Command> {
    for (key, value) in table {
        let full = format!("{prefix}{key}");
        let place = || format!("the configuration {} sets `{full}`", path.display());
        if let Value::Table(inner) = value {
            let Some(sub) = command.find_subcommand(&key).cloned() else {
                return Err(unknown(place(), &key, &known_keys(&command)));
            };
            let merged = merge(sub, inner, &format!("{full}."), path)?;
            command = command.mut_subcommand(&key, |_| merged);
            continue;
        }
        let Some(flag) = flags(&command).find(|arg| arg.get_long() == Some(&key)) else {
            return Err(unknown(place(), &key, &known_keys(&command)));
        };
        if is_destructive(flag) {
            return Err(Problem::usage(place())
                .because(format!("--{key} destroys data, so it is taken from the command line alone"))
                .next(format!("Remove the key, and give --{key} with the command if that is meant.")));
        }
        let values = texts(&value)
            .ok_or_else(|| Problem::usage(place()).because("a date or an array of arrays is no value of a flag"))?;
        check(flag, &key, &values).map_err(|why| Problem::usage(place()).because(why))?;
        let id = flag.get_id().to_string();
        command = command.mut_arg(id, |arg| arg.default_values(values));
    }
    Ok(command)
}

/// Checks whether the flag accepts these values. clap's own error for a bad default does not name the file.
fn check(flag: &Arg, key: &str, values: &[String]) -> std::result::Result<(), String> {
    let mut alone = Arg::new("VALUE").long(key.to_owned()).action(ArgAction::Append);
    alone = alone.value_parser(flag.get_value_parser().clone()).allow_hyphen_values(true);
    if let Some(name) = flag.get_value_names().and_then(<[_]>::first) {
        alone = alone.value_name(name.clone());
    }
    if let Some(delimiter) = flag.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let words = values.iter().map(|value| format!("--{key}={value}"));
    let probed = Command::new("alone").no_binary_name(true).arg(alone).try_get_matches_from(words);
    let Err(refusal) = probed else { return Ok(()) };
    let text = refusal.to_string();
    let printed = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = printed.trim_start_matches("error: ").lines().map(str::trim).collect();
    Err(lines.join(" "))
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let settable = |arg: &&Arg| arg.get_long().is_some_and(|long| !NOT_IN_A_FILE.contains(&long));
    command.get_arguments().filter(settable)
}

fn known_keys(command: &Command) -> Vec<String> {
    let subcommands = command.get_subcommands().map(|sub| sub.get_name().to_owned());
    flags(command).filter_map(|arg| arg.get_long().map(str::to_owned)).chain(subcommands).collect()
}

/// One text per value, in the form of the command line; `None` for a value that no command line can express.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Float(number) => Some(vec![number.to_string()]),
        Value::Boolean(truth) => Some(vec![truth.to_string()]),
        Value::Array(values) => {
            let scalars: Option<Vec<Vec<String>>> =
                values.iter().map(|value| if value.is_array() { None } else { texts(value) }).collect();
            Some(scalars?.into_iter().flatten().collect())
        }
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

fn unknown(place: String, key: &str, known: &[String]) -> Problem {
    let problem = Problem::usage(place).because("there is no such key");
    match nearest(key, known) {
        Some(suggestion) => problem.next(format!("Did you mean `{suggestion}`?")),
        None => problem.next(format!("Known here: {}.", known.join(", "))),
    }
}

fn nearest<'a>(key: &str, known: &'a [String]) -> Option<&'a str> {
    let distances = known.iter().map(|candidate| (strsim::levenshtein(key, candidate), candidate.as_str()));
    // A short key is close to every other key, so at most half of it may differ.
    let limit = SUGGESTION_DISTANCE_MAX.min(key.chars().count() / 2);
    distances.min().filter(|(distance, _)| *distance <= limit).map(|(_, candidate)| candidate)
}

#[cfg(test)]
#[path = "config/tests.rs"]
mod tests;
