//! The one definition of the command line. Help, completions, man pages, the configuration's keys and the names of
//! environment variables are all derived from it.

use crate::commands;
use crate::config;
use crate::help;
use crate::logging::LogFormat;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

#[derive(Debug, Parser)]
#[command(
    name = "varve",
    version,
    about = "A parallel file system layered on the storage you already have",
    long_about = "Varve layers a parallel file system on the storage you already have: a directory of any POSIX file \
                  system becomes a volume whose directories scale over shards. Format one, mount it, measure it.",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but degraded, 10 assertion refuted, 130 interrupted (fsck has \
                  fsck(8)'s own).\n\
                  Every flag can be set in the environment (VARVE_SERVE_WORKERS for serve --workers) and in \
                  ~/.config/varve/config.toml ([serve] workers = 4), but for those that destroy something: --force, \
                  --repair and --without-data. The file must belong to this user or root, and others must not be able \
                  to write it.",
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Varve {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub struct Global {
    /// Configuration file [default: ~/.config/varve/config.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print results as JSON, with a schema_version
    #[arg(long, global = true)]
    pub json: bool,
    /// Log filter: off, error, warn, info, debug, trace, or a filter such as info,varve_meta=debug [default: info in a
    /// log file and in the journal, else warn]
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Whether the filter is from the command line, so that no change of the configuration replaces it.
    #[arg(skip)]
    pub log_on_command_line: bool,
    /// Form of the log's lines: text, or json with one object a line
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

impl Global {
    /// The global flags for a process of this program in another directory, without those for its output and without
    /// those that it takes from the environment and the configuration itself.
    pub fn again(&self) -> Vec<OsString> {
        let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let config = self.config.iter().flat_map(|file| ["--config".into(), absolute(file).into()]);
        let log = self.log.iter().filter(|_| self.log_on_command_line);
        let log = log.flat_map(|log| ["--log".into(), log.into()]);
        config.chain(log).chain(["--log-format".into(), self.log_format.name().into()]).collect()
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Format(commands::format::Arguments),
    Doctor(commands::doctor::Arguments),
    Serve(commands::serve::Arguments),
    Mount(commands::mount::Arguments),
    Umount(commands::umount::Arguments),
    Status(commands::status::Arguments),
    Info(commands::info::Arguments),
    Path(commands::path::Arguments),
    Stats(commands::stats::Arguments),
    Fsck(commands::fsck::Arguments),
    Dump(commands::dump::Arguments),
    Load(commands::load::Arguments),
    Key(commands::key::Arguments),
    Cluster(commands::cluster::Arguments),
    Volume(commands::volume::Arguments),
    Bench(commands::bench::Arguments),
    Report(commands::report::Arguments),
    Plan(commands::plan::Arguments),
    Record(commands::record::Arguments),
    Detector(commands::detector::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

impl Command {
    /// The file that the log of this process goes to, if it is not stderr.
    pub fn log_file(&self) -> Option<&Path> {
        match self {
            Command::Serve(arguments) => arguments.log_file.as_deref(),
            // Without these flags the file is that of another process, which this one starts.
            Command::Mount(arguments) if arguments.foreground || arguments.in_background => {
                arguments.log_file.as_deref()
            }
            Command::Record(arguments) => arguments.log_file(),
            _ => None,
        }
    }
}

/// The command line with the environment variables of its flags and its help screens.
pub fn definition() -> clap::Command {
    help::with_screens(config::with_environment(Varve::command()))
}
