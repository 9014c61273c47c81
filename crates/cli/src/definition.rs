//! The one definition of the command line. Help, completions, man pages, the configuration's keys and the names of
//! environment variables are all derived from it.

use crate::commands;
use crate::config;
use crate::help;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Parser)]
#[command(
    name = "varve",
    version,
    about = "A parallel file system layered on the storage you already have",
    long_about = "Varve layers a parallel file system on the storage you already have: a directory of any POSIX file \
                  system becomes a volume whose directories scale over shards. Format one, mount it, measure it.",
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but degraded, 130 interrupted (fsck has \
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
    /// Log filter for stderr: error, warn, info, debug, trace, or a filter such as varve_meta=debug
    #[arg(long, global = true, value_name = "FILTER", default_value = "warn")]
    pub log: String,
}

impl Global {
    /// The global flags for another process of this program, without those for its output.
    pub fn again(&self) -> Vec<OsString> {
        let config = self.config.iter().flat_map(|file| ["--config".into(), file.into()]);
        config.chain(["--log".into(), self.log.clone().into()]).collect()
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
    Stats(commands::stats::Arguments),
    Fsck(commands::fsck::Arguments),
    Dump(commands::dump::Arguments),
    Load(commands::load::Arguments),
    Key(commands::key::Arguments),
    Cluster(commands::cluster::Arguments),
    Volume(commands::volume::Arguments),
    Bench(commands::bench::Arguments),
    Record(commands::record::Arguments),
    Detector(commands::detector::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

/// The command line with the environment variables of its flags and its help screens.
pub fn definition() -> clap::Command {
    help::with_screens(config::with_environment(Varve::command()))
}
