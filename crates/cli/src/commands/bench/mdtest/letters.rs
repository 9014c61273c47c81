//! mdtest's own options, and the run that they select.

use super::Arguments;
use crate::commands::bench::explain;
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Bytes;
use clap::Args;
use std::path::PathBuf;
use varve_bench::target::Via;
use varve_bench::workloads::mdtest_tree::{self, MdtestOptions, MdtestTreeConfig, summary};

#[derive(Debug, Args)]
pub(super) struct Letters {
    /// Items of each client, in a tree
    #[arg(short = 'n', long, value_name = "COUNT")]
    items: Option<u64>,
    /// Items of each client in each directory of a tree
    #[arg(short = 'I', short_alias = 'l', long, value_name = "COUNT")]
    items_per_dir: Option<u64>,
    /// Depth of the tree
    #[arg(short = 'z', long, value_name = "LEVELS", default_value_t = 0)]
    depth: u32,
    /// Branches of each directory of the tree
    #[arg(short = 'b', long, value_name = "COUNT", default_value_t = 1)]
    branch: u64,
    /// Directory to measure, as --via path:DIR; several with @ between them
    #[arg(short = 'd', long, value_name = "DIR", value_delimiter = '@')]
    pub(super) dir: Vec<PathBuf>,
    /// Files only
    #[arg(short = 'F', long)]
    files_only: bool,
    /// Items only in the leaves of the tree
    #[arg(short = 'L', long)]
    leaf_only: bool,
    /// Read this much of each file
    #[arg(short = 'e', long, value_name = "SIZE", default_value_t = Bytes(0))]
    read: Bytes,
    /// Only create; the files stay for later runs
    #[arg(short = 'C', long)]
    only_create: bool,
    /// Only stat what -C made
    #[arg(short = 'T', long)]
    only_stat: bool,
    /// Only read what -C made
    #[arg(short = 'E', long)]
    only_read: bool,
    /// Only remove what -C made
    #[arg(short = 'r', long)]
    only_remove: bool,
    /// Distance to the client whose items are handled; 0: the own ones
    #[arg(short = 'N', long, value_name = "CLIENTS", default_value_t = 0)]
    stride: usize,
}

impl Letters {
    /// Whether the tree of mdtest is to be measured.
    pub(super) fn select_tree(&self) -> bool {
        self.items.is_some() || self.items_per_dir.is_some()
    }

    /// Options that have no meaning without a tree.
    pub(super) fn check_unused(&self) -> Result<()> {
        let flags =
            [self.files_only, self.leaf_only, self.only_create, self.only_stat, self.only_read, self.only_remove];
        if flags.contains(&true) || self.depth > 0 || self.branch > 1 || self.read.0 > 0 || self.stride > 0 {
            return Err(Problem::usage("-z, -b, -F, -L, -e, -C, -T, -E, -r and -N need -n or -I, as with mdtest"));
        }
        Ok(())
    }

    fn options(&self, arguments: &Arguments) -> MdtestOptions {
        MdtestOptions {
            items: self.items,
            items_per_directory: self.items_per_dir,
            depth: self.depth,
            branch: self.branch,
            files_only: self.files_only,
            directories_only: arguments.directories,
            unique: arguments.unique_dirs,
            leaf_only: self.leaf_only,
            write_bytes: arguments.write.0,
            read_bytes: self.read.0,
            create_only: self.only_create,
            stat_only: self.only_stat,
            read_only: self.only_read,
            remove_only: self.only_remove,
            stride: self.stride,
        }
    }
}

/// The targets of `--via`, then those of `-d`.
pub(super) fn targets(arguments: &Arguments) -> Vec<Via> {
    let directories = arguments.letters.dir.iter().map(|directory| Via::Path(directory.clone()));
    arguments.via.iter().cloned().chain(directories).collect()
}

pub(super) fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let (drive, save) = (&arguments.drive, arguments.report.save.as_ref());
    let Some(campaign) = drive.campaign(&targets(arguments), save, output)? else {
        return Ok(Exit::Done);
    };
    let config = MdtestTreeConfig {
        campaign,
        options: arguments.letters.options(arguments),
        clients: if arguments.clients.is_empty() { vec![1] } else { arguments.clients.clone() },
        iterations: arguments.repeat.unwrap_or(1),
    };
    let results = mdtest_tree::run(&config).map_err(|error| explain(&error))?;
    drive.deliver(&results, save, output, summary)
}
