//! The commands of the README and of the page about several servers exist: every `varve` line of their code blocks parses.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_commands_of_the_readme_parse() {
    for (page, least) in [("README.md", 4), ("docs/operate/several-servers.md", 4), ("docs/guide/benchmarking.md", 9)] {
        let text = std::fs::read_to_string(in_repository(page)).expect("the page is there");
        let lines: Vec<&str> = commands(&text).collect();
        assert!(lines.len() >= least, "{page} shows how to use the program, but only {lines:?}");
        lines.into_iter().for_each(|line| expect_command(page, line));
    }
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn expect_command(page: &str, line: &str) {
    let words = line.split_whitespace().take_while(|word| !matches!(*word, "#" | "|" | ">" | "&"));
    if let Err(error) = varve_cli::definition().try_get_matches_from(words) {
        panic!("{page} says `{line}`, but:\n{error}");
    }
}

/// The job script has no cluster to run on here, so the test checks its syntax and its calls of the program.
#[test]
fn the_job_script_for_slurm_parses() {
    let page = "docs/operate/varve-job.sbatch";
    let checked = Command::new("bash").arg("-n").arg(in_repository(page)).output().expect("bash runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let text = std::fs::read_to_string(in_repository(page)).expect("the script is there");
    let calls = ["varve format ", "varve serve ", "varve cluster status ", "varve mount "];
    for call in calls {
        let line = text.lines().find_map(|line| line.find(call).map(|at| &line[at..])).expect("it makes this call");
        let line = line.replace("\"$workers\"", "2").replace("\"0.0.0.0:$port\"", "0.0.0.0:20000");
        // The rest of the line is the shell's.
        let end = line.find(['\'', '>', '&']).unwrap_or(line.len());
        expect_command(page, line[..end].trim_end().trim_end_matches(" 2"));
    }
}

/// Lines of code blocks that call the program; a `\` at the end continues the line.
fn commands(readme: &str) -> impl Iterator<Item = &str> {
    let blocks = readme.split("```").skip(1).step_by(2);
    blocks.flat_map(str::lines).filter_map(|line| {
        let line = line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
        line.starts_with("varve ").then_some(line)
    })
}

#[test]
fn completions_and_man_pages_match_the_definition() {
    let definition = varve_cli::definition();
    definition.clone().debug_assert();
    for command in [
        "format",
        "serve",
        "mount",
        "umount",
        "status",
        "info",
        "stats",
        "fsck",
        "bench",
        "record",
        "detector",
        "completions",
        "man",
    ] {
        assert!(definition.find_subcommand(command).is_some(), "{command}");
    }
}
