//! The README's commands exist: every `varve` line of its code blocks parses.

use std::path::Path;

#[test]
fn the_commands_of_the_readme_parse() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md"));
    let readme = readme.expect("the README is there");
    let lines: Vec<&str> = commands(&readme).collect();
    assert!(lines.len() >= 4, "the README shows how to use the program, but only {lines:?}");
    for line in lines {
        let words = line.split_whitespace().take_while(|word| !matches!(*word, "#" | "|" | ">" | "&"));
        if let Err(error) = varve_cli::definition().try_get_matches_from(words) {
            panic!("the README says `{line}`, but:\n{error}");
        }
    }
}

/// Lines of code blocks that call the program; a `\` at the end continues the line.
fn commands(readme: &str) -> impl Iterator<Item = &str> {
    let blocks = readme.split("```").skip(1).step_by(2);
    blocks.flat_map(str::lines).filter_map(|line| {
        let line = line.trim_start_matches("$ ").trim_start_matches("sudo ");
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
