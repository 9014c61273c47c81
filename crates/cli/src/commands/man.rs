//! `varve man DIR`: a manual page for the program and for each command, for the mount helper and for the configuration
//! file.
//!
//! Options and descriptions are those of the command line's definition. The other sections are in `man/sections.rs`.

mod sections;

use crate::definition;
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Command};
use clap_mangen::Man;
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// Write the manual pages into a directory
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for varve.1, varve-format.1 and so on; made if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Serialize)]
struct ManOutput {
    pages: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let directory = &arguments.directory;
    let failed = |error: io::Error| {
        Problem::new(format!("cannot write manual pages into {}", directory.display())).caused_by(&error)
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut pages = Vec::new();
    let mut write = |name: String, page: Vec<u8>| {
        let path = directory.join(name);
        std::fs::write(&path, page)?;
        pages.push(path);
        io::Result::Ok(())
    };
    for (name, page) in pages_of_commands().map_err(failed)? {
        write(name, page).map_err(failed)?;
    }
    for (name, text) in [sections::mount_helper(), sections::configuration()] {
        write(name.to_owned(), text.into_bytes()).map_err(failed)?;
    }
    pages.sort();
    let lines = |written: &ManOutput| written.pages.iter().map(|page| format!("{}\n", page.display())).collect();
    output.result("man", &ManOutput { pages }, lines)?;
    Ok(Exit::Done)
}

/// File name and text of the page of each command.
fn pages_of_commands() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = definition::definition().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, "", &mut pages)?;
    Ok(pages)
}

/// `path`: the words of the command after `varve`.
fn add(command: &Command, path: &str, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(sub, format!("{path} {}", sub.get_name()).trim_start(), pages)?;
    }
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(sections::of_command(command, path).as_bytes());
    pages.push((man.get_filename(), page));
    Ok(())
}

#[cfg(test)]
mod tests;
